"""FLT: Federated Learning with Taskonomy (Jamali-Rad et al., IEEE TNNLS 2022; ICLR DPML workshop 2021).

`form_relatedness` is Algorithm 2, `round` is Algorithm 3. Deviations, each explained in docs/methods/flt.md:
- related means a distance *below* the threshold; the printed Sign(A - γ) has it the other way round;
- relatives are found anew as they were at first; the paper always lets clients tune the encoder then;
- weights are normalised over the relatives; the printed diag(pₘ/‖Ãₘ‖₀) would shrink the models;
- the default set distance needs no oracle that tells the right k; `min` (printed) and `matching` (code) are options.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from kinfed.algorithms.groups import Groups, GroupState, Stale, first_state, seat
from kinfed.client import Client, Reply
from kinfed.federation import Federation, Offer
from kinfed.models import Model, encoder_of, has_decoder
from kinfed.params import Params, Payload, rows
from kinfed.relatedness import Relatedness, nearest_groups
from kinfed.signatures import EncoderCentroids, Signatures
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FLTState(GroupState):
    autoencoder: Params
    known: Signatures
    kinship: Tensor  # [clients] the group found; -1: not placed
    flags: Tensor  # [clients] bool: "my data changed" or "I am new"  δ


@dataclass(frozen=True)
class FLT(Groups[FLTState]):
    """Relatives found before training by encoder signatures; every model is averaged among relatives."""

    model: Model
    local: LocalTraining = LocalTraining()
    signature: EncoderCentroids = field(default_factory=EncoderCentroids)
    relatedness: Relatedness = field(default_factory=Relatedness)
    case: Literal["related", "clusters"] = "related"  # I: the full matrix; II: disjoint clusters
    clusters: int = 0  # C; 0: found
    stale: Stale = "aggregated"
    newcomers: Literal["nearest", "relate"] = "nearest"
    dynamic: bool = False  # clients flag changed data, and relatives are found anew
    recluster_share: float = 0.05  # λ, of the clients
    recluster_every: int = 0  # τ, rounds; 0: never

    def init(self, fed: Federation) -> FLTState:
        network = self.signature.network(fed.x.shape[1:])
        weights = self.signature.pretraining(network, fed.x[fed.population.public.to(fed.device)])
        return self.form_relatedness(self._blank(weights, fed), fed)

    def form_relatedness(self, state: FLTState, fed: Federation) -> FLTState:
        """Algorithm 2: signatures, distances, threshold, clusters."""
        state, described = self._described(state, fed.clients, fed)
        distances = self.relatedness.distances(state.known.of(described))  # A
        kinship = self.relatedness.groups(distances, self.clusters)
        related = self.relatedness.related(distances) if self.case == "related" else kinship[:, None] == kinship  # Ã
        strangers = torch.isin(fed.present, described, invert=True) & (state.kinship[fed.present] >= 0)
        state = self._seated(state, described, related, kinship, fed)
        return self._placed(state, fed.present[strangers], fed) if bool(strangers.any()) else state

    def round(self, state: FLTState, t: int, fed: Federation) -> FLTState:
        """Algorithm 3: sampled clients train the models they are served, and relatives are averaged."""
        cohort = fed.sample()
        replies = fed.run(self.train, cohort, self.offer(state, cohort, fed))
        state = self.blend(state, replies, fed)
        if not self.dynamic:
            return state
        raised = state.flags[replies.cohort] | replies["changed"]
        state = replace(state, flags=state.flags.index_put((replies.cohort,), raised))  # Δ
        often = self.recluster_every and t > 0 and t % self.recluster_every == 0
        if often or int(state.flags[fed.clients].sum()) > self.recluster_share * len(fed.clients):
            return self.form_relatedness(state, fed)
        return state

    def admit(self, state: FLTState, newcomers: Tensor, fed: Federation) -> FLTState:
        state, _ = self._described(state, newcomers, fed)
        state = replace(state, flags=state.flags.index_fill(0, newcomers, True))
        return self._placed(state, newcomers, fed)

    def train(self, client: Client, params: Params) -> Reply:
        """Client task: E epochs from the model it is served; a flag says if its data changed since it was described."""
        trained, _ = self.local(client, params, self.model.gradient)
        if not self.dynamic:
            return Reply({"params": trained})
        return Reply({"params": trained, "changed": client.since > client.recall("described")})

    def describe(self, client: Client, autoencoder: Params) -> Reply:
        """Client task: its signature; it tunes its own copy of the auto-encoder if it is sent the decoder too."""
        tuned = self.signature.tune(client, autoencoder) if has_decoder(autoencoder) else autoencoder
        return Reply(self._signature(client, tuned), keep=self._described_in(client))

    def describe_and_pass_on(self, client: Client, autoencoder: Params) -> Reply:
        """Client task: its signature and the tuned weights, for the next client to go on from (FLT's first code)."""
        tuned = self.signature.tune(client, autoencoder)
        return Reply({**self._signature(client, tuned), "autoencoder": tuned}, keep=self._described_in(client))

    def blank_memory(self) -> Payload:
        return {"described": torch.tensor(-1)} if self.dynamic else {}

    def groups(self, state: FLTState) -> Tensor:
        return state.kinship

    def graph(self, state: FLTState) -> Tensor:
        return state.hears[state.labels] & (state.labels >= 0)[:, None]

    def _signature(self, client: Client, weights: Params) -> Params:
        points, shares = self.signature.centroids(client, weights, self.model.classes)
        weighted = self.relatedness.needs_shares or self.signature.k_by_labels
        return {"centroids": points, "shares": shares} if weighted else {"centroids": points}

    def _described_in(self, client: Client) -> Payload:
        return {"described": client.round} if self.dynamic else {}

    def _described(self, state: FLTState, clients: Tensor, fed: Federation) -> tuple[FLTState, Tensor]:
        """The state with the signatures of these clients, and those who sent one."""
        if self.signature.tuning == "sequential":
            return self._described_in_turn(state, clients, fed)
        weights = state.autoencoder if self.signature.tuning == "own_copy" else encoder_of(state.autoencoder)
        replies = fed.run(self.describe, clients, Offer(shared={"autoencoder": weights}))
        return replace(state, known=state.known.learnt(replies)), replies.cohort

    def _described_in_turn(self, state: FLTState, clients: Tensor, fed: Federation) -> tuple[FLTState, Tensor]:
        weights, known = state.autoencoder, state.known
        heard: list[Tensor] = []
        for client in clients:
            replies = fed.run(self.describe_and_pass_on, client[None], Offer(shared={"autoencoder": weights}))
            known = known.learnt(replies)
            heard.append(replies.cohort)
            weights = rows(replies.stack("autoencoder"), 0) if len(replies.cohort) else weights
        return replace(state, known=known), torch.cat(heard)

    def _seated(self, state: FLTState, who: Tensor, related: Tensor, kinship: Tensor, fed: Federation) -> FLTState:
        """The state in which `who` are related like this; training clients without a signature stay by themselves."""
        alone = fed.clients[torch.isin(fed.clients, who, invert=True)]
        groups = torch.full_like(state.kinship, -1).index_copy(0, who, kinship)
        groups[alone] = int(kinship.max()) + 1 + torch.arange(len(alone), device=fed.device)
        return seat(replace(state, kinship=groups, flags=torch.zeros_like(state.flags)), who, related, fed)

    def _placed(self, state: FLTState, newcomers: Tensor, fed: Federation) -> FLTState:
        """The state in which newcomers join the nearest group, or are related to whom they are near."""
        members = (state.kinship >= 0).nonzero()[:, 0]
        is_known = state.known.are_described()[members]
        known, strangers = state.known.of(members[is_known]), state.known.of(newcomers)
        kinship = nearest_groups(known, state.kinship[members[is_known]], strangers)
        related = kinship[:, None] == state.kinship[members]
        if self.newcomers == "relate":
            near = torch.zeros_like(related)
            near[:, is_known] = self.relatedness.distances(known, strangers) < self.relatedness.near
            related = torch.where(near.any(1, keepdim=True), near, related)
        among = kinship[:, None] == kinship
        before = state.hears[state.labels[members]][:, members]
        whole = torch.cat([torch.cat([before, related.T], 1), torch.cat([related, among], 1)])
        who = torch.cat([members, newcomers])
        flags = state.flags
        return replace(self._seated(state, who, whole, torch.cat([state.kinship[members], kinship]), fed), flags=flags)

    def _blank(self, autoencoder: Params, fed: Federation) -> FLTState:
        nowhere = torch.full((fed.count,), -1, device=fed.device)
        return FLTState(
            **vars(first_state(self.model, self.stale, fed)),
            autoencoder=autoencoder,
            known=Signatures.none(fed.count, self.signature.k, self.signature.latent, fed.device),
            kinship=nowhere,
            flags=nowhere >= 0,
        )
