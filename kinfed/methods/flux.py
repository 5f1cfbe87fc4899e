"""FLUX (Fenoglio et al., NeurIPS 2025), after the authors' code: clusters by what a common model makes of the samples.

After some rounds of FedAvg each client embeds its samples by the common model, projects them to a few numbers, and
sends their mean and standard deviation, overall and for each label. The server scales these descriptors, clusters them
by DBSCAN (two points make a cluster; its radius is the knee of the sorted distances to nearest neighbours), and FedAvg
goes on in each cluster. A client without labels joins the cluster that is nearest by the overall numbers alone.
Deviations: clusters are formed after `rounds_before` rounds (authors: from the third on, once accuracy grows by less
than 0.06); samples are embedded as the last layer takes them (authors: as the first linear layer does) and projected at
random (authors: by a PCA of 200 random points); the knee is where the curve is furthest below its chord (kneed).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kinfed.capabilities import TRAIN_SUMMED, AssignsUnseen
from kinfed.checks import above_zero, at_least
from kinfed.client import Client, Reply, client_task
from kinfed.clustering.hierarchy import distances
from kinfed.clustering.knee_linkage import link_within_knee
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.federation import Federation, Offer, Replies
from kinfed.methods.cluster_models import Clustered, ClusterModels, Stale, drop_outlying
from kinfed.models import Model
from kinfed.params import Params, select
from kinfed.signatures import find_limits, find_moments, scale_moments
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FLUXState:
    served: ClusterModels
    root: Params  # the common model that embeds samples; empty before clusters are formed
    limits: Tensor  # [2, 1 + labels, 2, 1] the least and the largest number of each block of descriptors
    centroids: Tensor  # [clusters, 1 + labels, 2, d] the mean descriptors of each cluster's members
    has_members: Tensor  # [clusters] bool: whether any has known descriptors; else nobody joins it


@dataclass(frozen=True)
class FLUX(Clustered[FLUXState], AssignsUnseen[FLUXState]):
    """FedAvg for some rounds, then clusters by moments of what the common model makes of each client's samples."""

    model: Model
    local: LocalTraining = LocalTraining()
    rounds_before: int = 3  # of FedAvg, before clusters are formed
    dimensions: int = 10  # of a projected sample
    radius: float = 1.0  # of DBSCAN, as a multiple of the knee
    stale: Stale = "exclude"  # what a client that was not sampled contributes

    clusters_after: ClassVar[str] = "rounds_before"
    summed_tasks: ClassVar[Mapping[str, str]] = TRAIN_SUMMED
    hides_clients: ClassVar[bool] = False  # descriptors are not protected

    def __post_init__(self) -> None:
        at_least(0, rounds_before=self.rounds_before)
        at_least(1, dimensions=self.dimensions)
        above_zero(radius=self.radius)

    def init(self, fed: Federation) -> FLUXState:
        none = torch.zeros(0, device=fed.device)
        return FLUXState(ClusterModels.init(self.model, self.stale, fed), {}, none, none, none.bool())

    def round(self, state: FLUXState, t: int, fed: Federation) -> FLUXState:
        state = self.form_clusters(state, fed) if t == self.rounds_before else state
        return replace(state, served=self.train_clusters(state.served, fed.sample(), fed))

    def form_clusters(self, state: FLUXState, fed: Federation) -> FLUXState:
        """Server: clusters of all clients that train; each goes on from the model that all had."""
        root = select(state.served.models, 0)
        replies, moments = drop_outlying(*self.collect(root, fed.clients, fed), fed)
        limits = find_limits(moments)
        scaled = scale_moments(moments, limits)
        copies = fed.aggregation.find_copies(scaled.flatten(1))
        found = link_within_knee(scaled.flatten(1), self.radius, copies, fed.aggregation.count_doubted(len(scaled)))
        served = state.served.relate(replies.cohort, NeighbourSets.of_clusters(found), fed)
        members = served.contributors[:, replies.cohort].float()
        centroids = torch.einsum("cm,mlsd->clsd", members / members.sum(1, keepdim=True).clamp(min=1), scaled)
        new = FLUXState(served, root, limits, centroids, members.any(1))
        return self.admit(new, fed.present[served.assignment[fed.present] < 0], fed)

    def collect(self, root: Params, clients: Tensor, fed: Federation) -> tuple[Replies, Tensor]:
        """Server: the replies of these clients, and their descriptors: [replies, 1 + labels, 2, d]."""
        replies = fed.run(self.compute_moments, clients, Offer(shared={"params": root}))
        return replies, replies["moments"]

    @client_task
    def compute_moments(self, client: Client, params: Params) -> Reply:
        """Client task: mean and standard deviation of its embedded samples, of all and of each label."""
        return Reply({"moments": find_moments(client, self.model, params, self.dimensions)})

    def admit(self, state: FLUXState, unseen: Tensor, fed: Federation) -> FLUXState:
        if not state.root or not len(unseen):
            return replace(state, served=state.served.assign(unseen, unseen[:0], unseen[:0], fed))
        replies, apart = self.compare(state, unseen, fed)
        return replace(state, served=state.served.assign(unseen, replies.cohort, apart.argmin(1), fed))

    def compare(self, state: FLUXState, clients: Tensor, fed: Federation) -> tuple[Replies, Tensor]:
        """Server: the replies of these clients, and how far each is from each cluster: [replies, clusters]."""
        replies, moments = self.collect(state.root, clients, fed)
        scaled, overall = scale_moments(moments, state.limits), slice(1)
        apart, by_overall = (
            distances(scaled[:, part].flatten(1), state.centroids[:, part].flatten(1), "l2")
            for part in (slice(None), overall)
        )
        has_labels = ~torch.isin(replies.cohort, fed.unlabelled)[:, None]
        return replies, torch.where(has_labels, apart, by_overall).where(state.has_members, torch.inf)

    def distances_to_clusters(self, state: FLUXState, clients: Tensor, fed: Federation) -> Tensor:
        if not state.root:  # all are served the common model
            return torch.zeros(len(clients), len(state.served.contributors), device=fed.device)
        return self.compare(state, clients, fed)[1]

    def assignment_rule(self) -> str:
        return "a client joins the cluster whose mean moments of embedded samples are nearest to its own"
