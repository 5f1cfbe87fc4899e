"""FLT: Federated Learning with Taskonomy (Jamali-Rad et al., IEEE TNNLS 2022; ICLR DPML workshop 2021).

`form_relatedness` is Algorithm 2, `round` is Algorithm 3. Deviations, each explained in docs/methods/flt.md:
- related means a distance *below* the threshold; the printed Sign(A - γ) has it the other way round;
- relatedness is found anew as it was at first; the paper always lets clients tune the encoder then;
- weights are normalised over related clients (printed: diag(pₘ/‖Ãₘ‖₀)); `raise_flags` bounds how often a flag counts;
- by default signatures are mean embeddings of random parts of a client's samples, whose noise says which clients differ
  (`calibrated`). Presets have the paper's centroids: `flt_paper` (`min`, γ = 1, as printed), `flt_code` (`matching`).
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from kinfed.checks import at_least, fraction
from kinfed.client import Client, Reply, client_task
from kinfed.clustering.hierarchy import Dendrogram
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.federation import Federation
from kinfed.methods.cluster_models import Clustered, ClusterModels, Merges, Stale, check_clusters
from kinfed.methods.signature_tasks import (
    ComputesSignatures,
    Flagged,
    Newcomers,
    drop_bridges,
    drop_outliers,
    label_clients,
    log_misfits,
    lower_flags,
    raise_flags,
    relate_to_members,
)
from kinfed.models import Model
from kinfed.params import Params
from kinfed.per_client import Labels
from kinfed.ranges import FLAG
from kinfed.relatedness import Calibrated, Clusterer, warn_if_fewer, warn_if_isolated
from kinfed.signatures import PartMeans, Signature, Signatures
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FLTState(Flagged):
    served: ClusterModels  # one model for each different row of Ã, averaged over the clients in that row
    encoder: Params
    known: Signatures
    clusters: Labels  # [clients] the cluster found for each; -1: none
    merges: Merges


@dataclass(frozen=True)
class FLT(ComputesSignatures[FLTState], Clustered[FLTState]):
    """Related clients are found before training by signatures of their samples; every model is averaged among them."""

    model: Model
    local: LocalTraining = LocalTraining()
    signature: Signature = field(default_factory=PartMeans)
    relatedness: Clusterer = field(default_factory=Calibrated)
    case: Literal["related", "clusters"] = "related"  # I: the full matrix; II: disjoint clusters
    clusters: int = 0  # C, clusters to form; 0: found
    stale: Stale = "exclude"  # what a client that was not sampled contributes
    newcomers: Newcomers = "nearest"  # join the cluster of the nearest mean, or the clients they are near to
    dynamic: bool = False  # clients flag changed data, and relatedness is found anew
    recluster_share: float = 0.05  # λ: relatedness is found anew when more clients than this share flag
    recluster_every: int = 0  # τ, rounds; 0: never

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, clusters=self.clusters, recluster_every=self.recluster_every)
        fraction(recluster_share=self.recluster_share)

    def init(self, fed: Federation) -> FLTState:
        check_clusters(self.clusters or 1, fed)
        served, none = ClusterModels.init(self.model, self.stale, fed), torch.full((fed.count,), -1, device=fed.device)
        known = self.no_signatures(fed)
        encoder, merges = self.own_signature.encoder(fed), Dendrogram.none(fed.device)
        return self.form_relatedness(FLTState(*lower_flags(fed), served, encoder, known, none, merges), fed)

    def form_relatedness(self, state: FLTState, fed: Federation) -> FLTState:
        """Algorithm 2: signatures, distances, threshold, clusters; unseen clients are assigned again."""
        unseen = fed.unseen[state.clusters[fed.unseen] >= 0]
        known, clients = drop_outliers(*self.collect(state.known, state.encoder, fed.clients, fed), fed)
        by_own = partial(label_clients, self.relatedness, self.clusters, self.scale)
        known, clients = drop_bridges(known, clients, fed, by_own)
        compared = self.relatedness.compare(self.scale(own := known.of(clients), own))  # A
        clusters = compared.clusters(self.clusters)
        related = compared.neighbours() if self.case == "related" else NeighbourSets.of_clusters(clusters)  # Ã
        warn_if_fewer(clusters, self.clusters)
        warn_if_isolated(related)
        merges = compared.dendrogram(clients, self.clusters)
        state = replace(state, known=known, merges=merges, flags=torch.zeros_like(state.flags))
        state = self.relate(state, clients, related, clusters, fed)
        return self.assign_unseen(state, unseen, fed) if len(unseen) else state

    def relate(
        self, state: FLTState, clients: Tensor, related: NeighbourSets, clusters: Tensor, fed: Federation
    ) -> FLTState:
        """Clients are averaged with those they are related to, and training clients without a signature alone."""
        alone = fed.clients[torch.isin(fed.clients, clients, invert=True)]
        found = torch.full_like(state.clusters, -1).index_copy(0, clients, clusters)
        found[alone] = clusters.max().clamp(min=-1) + 1 + torch.arange(len(alone), device=fed.device)
        return replace(state, served=state.served.relate(clients, related, fed), clusters=found)

    def round(self, state: FLTState, t: int, fed: Federation) -> FLTState:
        """Algorithm 3: sampled clients train the models they are served, and related ones are averaged."""
        cohort = fed.sample()
        replies = fed.run(self.train, cohort, self.offer(state, cohort, fed))
        state = replace(state, served=state.served.average(replies, fed, self.stale))  # over the rows of Ã
        if not self.dynamic:
            return state
        state = raise_flags(state, replies.cohort[replies["changed"]], t)  # Δ
        often = self.recluster_every and t > 0 and t % self.recluster_every == 0
        many = int(state.flags[fed.clients].sum()) > self.recluster_share * len(fed.clients)
        return self.form_relatedness(state, fed) if often or many else state

    @client_task(ranges={"changed": FLAG})
    def train(self, client: Client, params: Params) -> Reply:
        """Client task: E epochs from the model it is served; beside it whether its data changed since its signature."""
        trained = {"params": self.local(client, params, self.model.gradient)[0]}
        return Reply(trained | {"changed": client.since > client.recall("computed")} if self.dynamic else trained)

    def admit(self, state: FLTState, unseen: Tensor, fed: Federation) -> FLTState:
        known, _ = self.collect(state.known, state.encoder, unseen, fed)
        state = replace(state, known=known, flags=state.flags.index_fill(0, unseen, True))
        return self.assign_unseen(state, unseen, fed)

    def assign_unseen(self, state: FLTState, unseen: Tensor, fed: Federation) -> FLTState:
        """Unseen clients are related to members; those stay related to each other as they were."""
        members = (state.clusters >= 0).nonzero()[:, 0]
        like, clusters = state.known.of(members), state.clusters[members]
        known, asked = self.scale(like, like), self.scale(state.known.of(unseen), like)
        fit = log_misfits(self.judge_fit(state, unseen, fed))
        own, near = relate_to_members(self.newcomers, self.relatedness, known, clusters, asked, fit)
        before = NeighbourSets(state.served.contributors[:, members], state.served.assignment[members])
        related = NeighbourSets.stack([before.beside(near.transpose()), near.beside(NeighbourSets.of_clusters(own))])
        return self.relate(state, torch.cat([members, unseen]), related, torch.cat([clusters, own]), fed)

    def export_state(self, state: FLTState, clients: Tensor, sizes: Tensor) -> FLTState:
        if self.newcomers == "nearest":  # unseen clients are never served the models of some members only
            trained = torch.full_like(state.clusters, -1).index_copy(0, clients, state.clusters[clients])
            state = replace(state, served=state.served.pool(trained, sizes))
        return super().export_state(state, clients, sizes)
