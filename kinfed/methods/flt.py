"""FLT: Federated Learning with Taskonomy (Jamali-Rad et al., IEEE TNNLS 2022; ICLR DPML workshop 2021).

`form_relatedness` is Algorithm 2, `round` is Algorithm 3. Deviations, each explained in docs/methods/flt.md:
- related means a distance *below* the threshold; the printed Sign(A - γ) has it the other way round;
- relatives are found anew as they were at first; the paper always lets clients tune the encoder then;
- weights are normalised over the relatives; the printed diag(pₘ/‖Ãₘ‖₀) would shrink the models;
- the default set distance needs no oracle that tells the right k, and a wider threshold where no groups are clear;
  `min` (printed) and `matching` (code) are options.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from kinfed.client import Client
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.federation import Federation
from kinfed.methods.assigning import first_state
from kinfed.methods.cluster_models import Stale
from kinfed.methods.signature_based import Described, DescribedState
from kinfed.models import Model
from kinfed.params import Payload
from kinfed.per_client import Each
from kinfed.relatedness import Relatedness
from kinfed.signatures import EncoderCentroids, Signatures
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FLTState(DescribedState):
    flags: Each  # [clients] bool: "my data changed" or "I am new"  δ


@dataclass(frozen=True)
class FLT(Described[FLTState]):
    """NeighbourSets found before training by encoder signatures; every model is averaged among relatives."""

    model: Model
    local: LocalTraining = LocalTraining()
    signature: EncoderCentroids = field(default_factory=EncoderCentroids)
    relatedness: Relatedness = field(default_factory=Relatedness)
    case: Literal["related", "clusters"] = "related"  # I: the full matrix; II: disjoint clusters
    clusters: int = 0  # C, groups to form; 0: found
    stale: Stale = "aggregated"  # what a client that was not asked contributes
    newcomers: Literal["nearest", "relate"] = "nearest"  # join the group of the nearest mean, or whom they are near
    dynamic: bool = False  # clients flag changed data, and relatives are found anew
    recluster_share: float = 0.05  # λ: relatives are found anew when more clients than this share flag
    recluster_every: int = 0  # τ, rounds; 0: never

    def init(self, fed: Federation) -> FLTState:
        first, nowhere = first_state(self.model, self.stale, fed), torch.full((fed.count,), -1, device=fed.device)
        nobody = Signatures.none(fed.count, self.signature.k, self.signature.latent, fed.device)
        blank = FLTState(
            **vars(first), autoencoder=self.pretrained(fed), known=nobody, kinship=nowhere, flags=nowhere >= 0
        )
        return self.form_relatedness(blank, fed)

    def form_relatedness(self, state: FLTState, fed: Federation) -> FLTState:
        """Algorithm 2: signatures, distances, threshold, clusters; strangers are placed again by what they sent."""
        unseen = fed.unseen[state.kinship[fed.unseen] >= 0]
        state, described = self.described(state, fed.clients, fed)
        compared = self.relatedness.compare(state.known.of(described))  # A
        kinship = compared.clusters(self.clusters)
        related = compared.neighbours() if self.case == "related" else NeighbourSets.of_clusters(kinship)  # Ã
        self.warn_if_lonely(related)
        state = self.seated(state, described, related, kinship, fed)
        tree = compared.tree(described, self.clusters)
        state = replace(state, tree=tree, flags=torch.zeros_like(state.flags))
        return self.joined(state, unseen, fed) if len(unseen) else state

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
        many = int(state.flags[fed.clients].sum()) > self.recluster_share * len(fed.clients)
        return self.form_relatedness(state, fed) if often or many else state

    def remarks(self, client: Client) -> Payload:
        """Client: beside what it trained, whether its data changed since it was described."""
        return {"changed": client.since > client.recall("described")} if self.dynamic else {}

    def admit(self, state: FLTState, newcomers: Tensor, fed: Federation) -> FLTState:
        state, _ = self.described(state, newcomers, fed)
        return self.joined(replace(state, flags=state.flags.index_fill(0, newcomers, True)), newcomers, fed)
