"""FedBN (Li et al., ICLR 2021, Algorithm 1): each client keeps its normalisation layers, all others are averaged.

Made for clients whose images look different: own batch norms, weights and statistics, undo that. Batch, instance, group
and layer norms all count. Deviations: all clients start from one common model, means are weighted by samples and taken
over those who took part. A client that never trained has the first model's norms; a network without normalisation
layers is trained as by FedAvg, and a warning says so.
"""

from dataclasses import dataclass

from kinfed.methods.one_model import OnePart
from kinfed.models import Model, is_normalisation
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FedBN(OnePart):
    """All layers are averaged over clients but normalisation layers, which each client keeps to itself."""

    model: Model
    local: LocalTraining = LocalTraining()

    def is_shared(self, name: str) -> bool:
        return not is_normalisation(self.model, name)
