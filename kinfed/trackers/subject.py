"""What trackers get of a run."""

import math
from dataclasses import dataclass
from pathlib import Path

from kinfed.experiment import RoundResult, Summary


@dataclass(frozen=True)
class Subject:
    """A run that is tracked."""

    folder: Path
    name: str
    settings: dict[str, object]  # dotted key -> value

    def recall(self, tracker: str) -> str | None:
        """The id under which a tracker knew this run before it was stopped."""
        path = self._note(tracker)
        return path.read_text(encoding="utf-8").strip() if path.exists() else None

    def remember(self, tracker: str, known_as: str) -> None:
        """Keeps that id with the run."""
        self._note(tracker).write_text(known_as + "\n", encoding="utf-8")

    def _note(self, tracker: str) -> Path:
        return self.folder / f"{tracker}_run.txt"


def numbers(result: RoundResult) -> dict[str, float]:
    """What a round came to, by name; what is not a number is left out."""
    cost = {"megabytes": (result.down + result.up) / 1e6, "seconds": result.seconds}
    return {name: value for name, value in (result.metrics | cost).items() if math.isfinite(value)}


def final_numbers(summary: Summary) -> dict[str, float]:
    """The numbers of a summary."""
    return {f"final_{name}": float(v) for name, v in summary.items() if v is not None and math.isfinite(v)}
