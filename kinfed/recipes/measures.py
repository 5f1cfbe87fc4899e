"""What the papers' tables report, read from finished runs, and how far two numbers may lie apart."""

from collections.abc import Callable
from dataclasses import dataclass

from kinfed.config import Config
from kinfed.runs.reader import Run

CLUSTERED = ("flhc", "rounds_before")  # the setting that says after which round clients are clustered


Value = Callable[[Run, Config], float | None]  # of a run, in a cell of this config


@dataclass(frozen=True)
class Measure:
    """A number of a cell, and the rule by which a measured one is judged; docs/reproducing.md explains it."""

    title: str
    value: Value
    least: float  # a difference that is always forgiven, in the unit of the table
    share: float = 0.0  # or this share of the published number
    lower_is_better: bool = False
    over: str = ""  # divided by the same of this method on the same clients
    shown: str = ".2f"

    def of(self, run: Run, config: Config, reference: Run | None = None) -> float | None:
        """The number of a run; with `over` as a multiple of the reference's."""
        own = self.value(run, config)
        if not self.over or own is None:
            return own
        other = self.value(reference, config) if reference else None
        return own / other if other else None


def last(metric: str, scale: float = 1.0) -> Value:
    """The metric at the end of a run."""

    def value(run: Run, config: Config) -> float | None:
        found = run.final(metric)
        return None if found is None else scale * found

    return value


def at_home(run: Run, config: Config) -> float | None:
    """The accuracy, in percent, of what clients use: after their own training where the config has them adapt."""
    return last("accuracy_adapted" if config.evaluation.adapt else "accuracy", 100)(run, config)


def clustered(metric: str, scale: float = 1.0, later: int = 1) -> Value:
    """The metric so many rounds after the clustering that the cell's config asks for."""
    method, setting = CLUSTERED

    def value(run: Run, config: Config) -> float | None:
        found = run.after(int(str(config.settings_of(method)[setting])) + later, metric)
        return None if found is None else scale * found

    return value


def rounds_to_target(run: Run, config: Config) -> float | None:
    return run.first_round_at(config.evaluation.target)


def megabits_to_target(run: Run, config: Config) -> float | None:
    """Megabits that a client of all moves on average until the target is reached (FLIS)."""
    reached = run.first_round_at(config.evaluation.target)
    moved = None if reached is None else [run.after(reached, column) for column in ("bytes_down", "bytes_up")]
    clients = int(str(run.settings.resolve()["partition"]["clients"]))  # type: ignore[index]
    return None if moved is None else sum(each or 0 for each in moved) * 8 / 1e6 / clients


ACCURACY, PERCENT_OF_CLIENTS = 1.0, 5.0  # points
MEASURES = {
    "accuracy": Measure("accuracy %", at_home, ACCURACY),
    "variance": Measure("variance", last("variance"), 1.0, share=0.25, lower_is_better=True),
    "at_target": Measure("% at target", last("at_target", 100), PERCENT_OF_CLIENTS, shown=".1f"),
    "accuracy_post": Measure("post accuracy %", clustered("accuracy", 100), ACCURACY),
    "at_target_post": Measure("post % at target", clustered("at_target", 100), PERCENT_OF_CLIENTS, shown=".1f"),
    "accuracy_later": Measure("accuracy % ten rounds after", clustered("accuracy", 100, later=10), ACCURACY),
    "at_target_later": Measure(
        "% at target ten rounds after", clustered("at_target", 100, later=10), PERCENT_OF_CLIENTS, shown=".1f"
    ),
    "accuracy_times": Measure("accuracy × FL", last("accuracy"), 0.1, over="fedavg"),
    "at_target_times": Measure("% at target × FL", last("at_target"), 0.2, 0.25, over="fedavg", shown=".1f"),
    "accuracy_post_times": Measure("post accuracy × FL", clustered("accuracy"), 0.1, 0.1, over="fedavg"),
    "at_target_post_times": Measure(
        "post % at target × FL", clustered("at_target"), 0.2, 0.5, over="fedavg", shown=".1f"
    ),
    "strangers": Measure("unseen, as served %", last("accuracy_unseen", 100), ACCURACY),
    "strangers_adapted": Measure("unseen %", last("accuracy_unseen_adapted", 100), ACCURACY),
    "robustness": Measure("robustness", last("robustness"), 0.05),
    "rounds_to_target": Measure("rounds", rounds_to_target, 5, 0.25, lower_is_better=True, shown=".0f"),
    "megabits_to_target": Measure("Mb a client", megabits_to_target, 2.0, 0.25, lower_is_better=True),
}
