"""What a client is handed: its model, its group, and how far it is from that and the other groups."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from kinfed.data.arrays import Array
from kinfed.data.sample_kind import SampleKind
from kinfed.models import Model
from kinfed.params import Params
from kinfed.runs.logs import write_text
from kinfed.serving.files import write_tensors

MODEL, ASSIGNMENT = "model.safetensors", "assignment.json"
AT_ONCE = 256  # rows


@dataclass(frozen=True)
class Assigned:
    """A client's model, and how it came to it."""

    model: Model
    params: Params
    kind: SampleKind  # of the rows it takes
    cluster: int | None  # None: the method has no groups, or none for this client
    distances: dict[int, float]  # to each group, by the method's own measure; empty where it has none
    rows: int  # it was placed by
    test_samples: int
    test_correct: int

    @property
    def nearest(self) -> list[int]:
        """The groups, nearest first."""
        return sorted(self.distances, key=self.distances.__getitem__)

    @property
    def margin(self) -> float | None:
        """How sure the group is: 1 - nearest / next distance, so 0 is a tie and 1 a perfect match."""
        first = [self.distances[cluster] for cluster in self.nearest[:2]]
        return 1 - first[0] / first[1] if len(first) == 2 and first[1] > 0 else None

    def predict(self, x: Array) -> Tensor:
        """The probability of each class for rows as in training: [n, classes]."""
        rows, _ = self.kind.checked(x, None, "the rows to predict")
        with torch.no_grad():
            return torch.cat([self.model.logits(self.params, part).softmax(1) for part in rows.split(AT_ONCE)])

    def module(self) -> nn.Module:
        """The network itself with its weights, in evaluation mode; it takes images scaled to 0..1."""
        network = self.model.build_module()
        network.load_state_dict(self.params, strict=False)  # counters of batch norm are not weights
        return network.eval()

    def summary(self) -> dict[str, object]:
        """All but the weights, as JSON."""
        return {
            "cluster": self.cluster,
            "distance": None if self.cluster is None else self.distances.get(self.cluster),
            "margin": self.margin,
            "distances": {str(cluster): self.distances[cluster] for cluster in self.nearest},
            "rows": self.rows,
            "test_samples": self.test_samples,
            "test_accuracy": self.test_correct / self.test_samples if self.test_samples else None,
        }

    def save(self, folder: Path, about: dict[str, object]) -> None:
        """Writes the weights, and beside them the summary and what else is said about them."""
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / MODEL, self.params)
        write_text(folder / ASSIGNMENT, json.dumps(self.summary() | about, indent=1, ensure_ascii=False) + "\n")
