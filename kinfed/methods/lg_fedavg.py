"""LG-FedAvg (Liang et al., 2020, Algorithm 1): representations stay with the client, the head is averaged.

The global part θ_g crosses the wire, the local part θ_l never leaves its client; both are trained together. By default
θ_g is the last four weight tensors, the last two linear layers, as in FLIS; `shares` chooses weights by name instead.
Deviations: all clients start from one common model (the authors' code: from one that FedAvg has trained), the mean is
weighted by samples as in FLIS' code (the authors': a plain one), and nothing is selected on test data.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kinfed.errors import ConfigError
from kinfed.methods.one_model import OnePart
from kinfed.models import Model
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class LGFedAvg(OnePart):
    """The last layers are averaged over clients; each client keeps the others to itself."""

    model: Model
    local: LocalTraining = LocalTraining()
    shared_tensors: int = 4  # the last so many weights are global
    shares: Callable[[str], bool] | None = None  # or those whose name it says yes to

    def __post_init__(self) -> None:
        if self.shared_tensors < 1:
            raise ConfigError(f"shared_tensors must be at least 1, got {self.shared_tensors}; for none use 'local'")

    def is_shared(self, name: str) -> bool:
        return self.shares(name) if self.shares else name in self.model.weights[-self.shared_tensors :]
