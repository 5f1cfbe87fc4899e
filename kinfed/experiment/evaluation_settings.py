"""When and how clients are scored."""

from dataclasses import dataclass
from typing import Literal

from kinfed.errors import ConfigError


@dataclass(frozen=True)
class Evaluation:
    """When and how clients are scored."""

    every: int = 1  # rounds between two evaluations; the last round is always evaluated
    adapt: bool = False  # also after local adaptation
    adapt_every: int = 0  # rounds between two evaluations after adaptation, the last round too; 0: at each evaluation
    target: float = 0.99  # accuracy, or other main metric of the task, that a client should reach
    metrics: Literal["main", "all"] = "all"  # all: after the last round, all metrics of the task, on up to 1000 clients
    correlation: bool = False  # are clients with similar data similar to the method? All train once more for it
    signatures: Literal["own", "all", "none"] = "own"  # kept for reports; of "all" methods: clients train once more

    def __post_init__(self) -> None:
        if self.every < 1 or not self.target >= 0:
            raise ConfigError(f"wanted every >= 1 and a target of at least 0, got {self.every} and {self.target}")
        if self.adapt_every < 0 or self.adapt_every % self.every:
            raise ConfigError(f"adapt_every: wanted a multiple of every ({self.every}) or 0, got {self.adapt_every}")

    def adapts(self, done: int, rounds: int) -> bool:
        """Whether clients are also scored after local adaptation, once so many of all rounds are done."""
        return self.adapt and (not self.adapt_every or done % self.adapt_every == 0 or done == rounds)


EVALUATION = Evaluation()
