"""Shape: clients are described by encoder centroids, and related by how near their descriptions are (FLT).

A client sends the centroids of its rows in the encoder's latent space, and tunes its own copy of the encoder before
that if it is asked to. `kinship` is the group found for each client; the related-clients matrix need not respect it.
"""

import logging
import warnings
from abc import ABC
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from kinfed.client import Client, Reply, client_task
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.federation import Federation, Offer
from kinfed.methods.assigning import gathered, seat
from kinfed.methods.cluster_models import Clusters, GroupState
from kinfed.models import encoder_of, has_decoder
from kinfed.params import Params, Payload, select
from kinfed.per_client import Labels
from kinfed.relatedness import Relatedness, from_clusters, nearest_clusters
from kinfed.relatedness.clear import MANY
from kinfed.signatures import EncoderCentroids, Signatures


@dataclass(frozen=True)
class DescribedState(GroupState):
    autoencoder: Params
    known: Signatures
    kinship: Labels  # [clients] the group found; -1: not placed


D = TypeVar("D", bound=DescribedState)
log = logging.getLogger("kinfed")


class Described(Clusters[D], ABC):
    """How descriptions are collected, and clients seated by them; a method says when, and who is related."""

    signature: EncoderCentroids
    relatedness: Relatedness
    newcomers: Literal["nearest", "relate"]
    dynamic: bool

    stores_signatures: ClassVar[bool] = True

    @client_task(key="describe")  # its first name: another key would draw other centroids, and change results
    def compute_signature(self, client: Client, autoencoder: Params) -> Reply:
        """Client task: its signature; it tunes its own copy of the auto-encoder if it is sent the decoder too."""
        tuned = self.signature.tune(client, autoencoder) if has_decoder(autoencoder) else autoencoder
        return Reply(self._signature(client, tuned), keep=self._described_in(client))

    @client_task(key="describe_and_pass_on")
    def tune_in_turn(self, client: Client, autoencoder: Params) -> Reply:
        """Client task: its signature and the tuned weights, for the next client to go on from (FLT's first code)."""
        tuned = self.signature.tune(client, autoencoder)
        return Reply({**self._signature(client, tuned), "autoencoder": tuned}, keep=self._described_in(client))

    def initial_memory(self) -> Payload:
        return {"described": torch.tensor(-1)} if self.dynamic else {}

    def networks(self, shape: tuple[int, ...]) -> tuple[Params, ...]:
        return self.model.init(), self.signature.network(torch.Size(shape)).init()

    def cluster_assignment(self, state: D) -> Tensor:
        return state.kinship

    def signatures(self, state: D, fed: Federation) -> Tensor:
        known = state.known.of(fed.clients)
        return known.means().where(known.are_described()[:, None], torch.nan)

    def export_state(self, state: D, clients: Tensor, sizes: Tensor) -> D:
        if self.newcomers == "nearest":  # strangers are never served the models of some members only
            trained = torch.full_like(state.kinship, -1).index_copy(0, clients, state.kinship[clients])
            state = gathered(state, trained, sizes)
        return super().export_state(state, clients, sizes)

    def assignment_rule(self) -> str:
        if self.newcomers == "nearest":
            return "a client joins the group whose mean signature is nearest to its own"
        return "a client is served the mean of those whose signatures are near its own, or else of the nearest group"

    def distances_to_clusters(self, state: D, clients: Tensor, fed: Federation) -> Tensor:
        others = (state.kinship >= 0) & state.known.are_described()
        others = others.index_fill(0, clients, False).nonzero()[:, 0]
        names, apart = from_clusters(state.known.of(others), state.kinship[others], state.known.of(clients))
        return torch.full((len(clients), int(names.max()) + 1), torch.inf).index_copy(1, names.cpu(), apart.cpu())

    def needs_server_samples(self) -> bool:
        return self.signature.pretraining.source == "public"

    def admits_by_server_samples(self) -> bool:
        return False

    def pretrained(self, fed: Federation) -> Params:
        """Server: the auto-encoder's weights, trained on its own rows or another dataset."""
        network = self.signature.network(fed.x.shape[1:])
        return self.signature.pretraining(network, fed.x[fed.population.public.to(fed.device)])

    def described(self, state: D, clients: Tensor, fed: Federation) -> tuple[D, Tensor]:
        """Server: the state with the signatures of these clients, and those who sent one."""
        tuning = self.signature.tuning != "none"
        how = f": {self.signature.tuning_epochs} epochs of tuning the encoder each" if tuning else ""
        log.info("%d clients describe themselves%s", len(clients), how)
        if self.signature.tuning == "sequential":
            return self._described_in_turn(state, clients, fed)
        weights = state.autoencoder if self.signature.tuning == "own_copy" else encoder_of(state.autoencoder)
        replies = fed.run(self.compute_signature, clients, Offer(shared={"autoencoder": weights}))
        return replace(state, known=state.known.learnt(replies)), replies.cohort

    def seated(self, state: D, who: Tensor, related: NeighbourSets, kinship: Tensor, fed: Federation) -> D:
        """The state in which `who` are related like this; training clients without a signature stay by themselves."""
        alone = fed.clients[torch.isin(fed.clients, who, invert=True)]
        clusters = torch.full_like(state.kinship, -1).index_copy(0, who, kinship)
        clusters[alone] = kinship.max().clamp(min=-1) + 1 + torch.arange(len(alone), device=fed.device)
        return seat(replace(state, kinship=clusters), who, related, fed)

    def warn_if_lonely(self, related: NeighbourSets) -> None:
        """Says so when most clients have no relative, and will train alone."""
        lonely = int(related.sizes()[related.rows.sum(1) <= 1].sum())
        if 2 * lonely > len(related.whose) >= MANY:
            warnings.warn(
                f"{lonely} of {len(related.whose)} clients have no relative and train alone: signature.tuning = 'none' "
                "and a larger relatedness.threshold, or none, bring them together",
                stacklevel=2,
            )

    def joined(self, state: D, newcomers: Tensor, fed: Federation) -> D:
        """The state in which described newcomers join the nearest group, or are related to whom they are near."""
        members = (state.kinship >= 0).nonzero()[:, 0]
        is_known = state.known.are_described()[members]
        known, unseen = state.known.of(members[is_known]), state.known.of(newcomers)
        kinship = nearest_clusters(known, state.kinship[members[is_known]], unseen)
        names, whose = kinship.unique(return_inverse=True)
        related = NeighbourSets(state.kinship[members] == names[:, None], whose)
        if self.newcomers == "relate":
            near = self.relatedness.near_known(known, unseen)
            wide = torch.zeros(len(near.rows), len(members), dtype=torch.bool, device=fed.device)
            wide[:, is_known] = near.rows
            whose = torch.where(wide.any(1)[near.whose], near.whose, len(wide) + related.whose)
            related = NeighbourSets(torch.cat([wide, related.rows]), whose)
        before = NeighbourSets(state.hears[:, members], state.labels[members])
        whole = [before.beside(related.turned()), related.beside(NeighbourSets.of_clusters(kinship))]
        everyone, clusters = torch.cat([members, newcomers]), torch.cat([state.kinship[members], kinship])
        return self.seated(state, everyone, NeighbourSets.stacked(whole), clusters, fed)

    def _signature(self, client: Client, weights: Params) -> Params:
        points, shares = self.signature.centroids(client, weights, self.model.classes)
        weighted = self.relatedness.needs_shares or self.signature.k_by_labels
        return {"centroids": points, "shares": shares} if weighted else {"centroids": points}

    def _described_in(self, client: Client) -> Payload:
        return {"described": client.round} if self.dynamic else {}

    def _described_in_turn(self, state: D, clients: Tensor, fed: Federation) -> tuple[D, Tensor]:
        weights, known = state.autoencoder, state.known
        heard: list[Tensor] = []
        for client in clients:
            replies = fed.run(self.tune_in_turn, client[None], Offer(shared={"autoencoder": weights}))
            known = known.learnt(replies)
            heard.append(replies.cohort)
            weights = select(replies.stack("autoencoder"), 0) if len(replies.cohort) else weights
        return replace(state, known=known), torch.cat(heard)
