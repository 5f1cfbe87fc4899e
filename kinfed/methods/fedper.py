"""FedPer (Arivazhagan et al., 2019, arXiv 1912.00818, Algorithms 1 and 2): the base is averaged, the head is personal.

A layer is a module with weights of its own, and its buffers go with it (paper: the classifier is one, then each block).
Deviations: all clients start from one common model (paper: each draws its personal layers), and the mean is taken
over those who took part (paper: everybody does, every round).
"""

from dataclasses import dataclass

from kinfed.errors import ConfigError
from kinfed.methods.one_model import OnePart
from kinfed.models import Model, is_last_layer
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FedPer(OnePart):
    """The first layers are averaged over clients; each client keeps the last ones to itself."""

    model: Model
    local: LocalTraining = LocalTraining()
    personal_layers: int = 1  # K_P, counted from the last one

    def __post_init__(self) -> None:
        if self.personal_layers < 1:
            raise ConfigError(f"personal_layers must be at least 1, got {self.personal_layers}; for none use 'fedavg'")

    def is_shared(self, name: str) -> bool:
        return not is_last_layer(self.model, name, self.personal_layers)
