"""PACFL: principal angles between client data subspaces (Vahidian et al., AAAI 2023, arXiv 2209.10526), Algorithm 1.

Once, every client sends the p leading left singular vectors of each label's samples. The server compares clients by the
angles between them, merges those that are near, and trains one model per cluster by FedAvg. The default angle is that
of the authors' code: the smallest between any two vectors; `principal` is the paper's first principal angle (eq. 2),
`by_label` its sum over pairs (eq. 3), as a mean. Deviations: signs of vectors do not matter (code: they do, though a
singular vector has none, which is `signed`); without a threshold one is searched by the silhouette (authors: 4.9° for
CIFAR-10 with two labels); the mean of all pairs links two clusters (code: of their two parts). An unseen client joins
the cluster with the least mean angle (paper: all clients are merged anew).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kinfed.capabilities import TRAIN_SUMMED, AssignsUnseen, require_labels
from kinfed.checks import at_least
from kinfed.client import Client, Reply, client_task
from kinfed.clustering.hierarchy import Dendrogram, search_height
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.clustering.subspaces import Angle, Labelled, find_angles, find_bases
from kinfed.federation import Federation, Replies
from kinfed.methods.cluster_models import ClusteredOnce, ClusterModels, Merges, Stale, drop_outlying
from kinfed.methods.pca_km_hc import as_vectors
from kinfed.models import Model
from kinfed.per_client import Members
from kinfed.ranges import SLACK, Range
from kinfed.targets import mark_labels
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class PACFLState:
    served: ClusterModels
    merges: Merges
    members: Members  # [m] the clients that were clustered, and unseen ones are compared with
    bases: Tensor  # [m, labels, d, p] what each sent; [0, ...] where no client may join


@dataclass(frozen=True)
class PACFL(ClusteredOnce[PACFLState], AssignsUnseen[PACFLState]):
    """Clusters found before training by the angles between main directions of clients' samples, label by label."""

    model: Model
    local: LocalTraining = LocalTraining()
    vectors: int = 3  # p, of each label
    angle: Angle = "smallest"  # between clients: smallest, signed (the authors' code), principal or by_label
    threshold: float | None = None  # β, degrees from which on clusters are not merged; none: searched
    stale: Stale = "exclude"  # what a client that was not sampled contributes

    needs_labels: ClassVar[str] = "PACFL compares clients label by label"
    summed_tasks: ClassVar[Mapping[str, str]] = TRAIN_SUMMED
    hides_clients: ClassVar[bool] = False  # singular vectors are not protected

    def __post_init__(self) -> None:
        at_least(1, vectors=self.vectors)
        at_least(0, threshold=self.threshold or 0.0)

    def init(self, fed: Federation) -> PACFLState:
        replies, bases = drop_outlying(*self.collect(fed.clients, fed), fed)
        apart = find_angles(bases, bases, self.angle)  # A
        doubted = fed.aggregation.count_doubted(len(bases))
        height = search_height(apart, "average", 100, doubted) if self.threshold is None else self.threshold
        found = Dendrogram.of(replies.cohort, apart, "average", height)
        served = ClusterModels.init(self.model, self.stale, fed)
        served = served.relate(replies.cohort, NeighbourSets.of_clusters(found.clusters()), fed)
        kept = slice(None) if len(fed.clients) < fed.count else slice(0)
        return PACFLState(served, found, replies.cohort[kept], bases[kept])

    def collect(self, clients: Tensor, fed: Federation) -> tuple[Replies, Tensor]:
        """Server: the replies of these clients, and their bases: [replies, labels, d, p]."""
        replies = fed.run(self.compute_bases, clients)
        return replies, replies["bases"]

    @client_task(ranges={"bases": Range(-1 - SLACK, 1 + SLACK)})  # unit vectors
    def compute_bases(self, client: Client) -> Reply:
        """Client task: the leading left singular vectors of its samples of each label; 0 where it has none."""
        classes, batches = self.model.classes, client.train.in_order()
        parts = [Labelled(as_vectors(self.model, b.x), mark_labels(b.y, b.mask, classes).double()) for b in batches]
        return Reply({"bases": find_bases(parts, self.vectors).float()})

    def round(self, state: PACFLState, t: int, fed: Federation) -> PACFLState:
        return replace(state, served=self.train_clusters(state.served, fed.sample(), fed))

    def admit(self, state: PACFLState, unseen: Tensor, fed: Federation) -> PACFLState:
        require_labels(self, unseen, fed)
        replies, bases = self.collect(unseen, fed)
        nearest = self.compare(state, bases).argmin(1)
        return replace(state, served=state.served.assign(unseen, replies.cohort, nearest, fed))

    def compare(self, state: PACFLState, bases: Tensor) -> Tensor:
        """Server: the mean angle between these bases and those of each cluster's members: [bases, clusters]."""
        clusters = state.served.assignment[state.members]
        members = (clusters[:, None] == torch.arange(len(state.served.contributors), device=clusters.device)).float()
        means = find_angles(bases, state.bases, self.angle) @ members / members.sum(0)
        return means.nan_to_num(torch.inf)

    def distances_to_clusters(self, state: PACFLState, clients: Tensor, fed: Federation) -> Tensor:
        return self.compare(state, self.collect(clients, fed)[1])

    def assignment_rule(self) -> str:
        return "a client joins the cluster with the least mean angle between its main directions and the members'"
