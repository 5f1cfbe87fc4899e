"""Runs that differ in nothing but the seed, put together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kinfed.comparison import Outcome
from kinfed.config import flatten
from kinfed.runs.reader import Run, read_runs

SAME = ("seed", "seeds", "compare", "checkpoint_every", "data.dir", "trackers", "evaluation.signatures")
SOME = ("engine.",)  # how it was computed, not what


@dataclass(frozen=True)
class Series:
    """One method with one config, for one seed or several."""

    name: str
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]

    @property
    def outcomes(self) -> list[Outcome]:
        """How its runs ended, under the series' name."""
        return [Outcome(self.name, run.seed, run.summary, run.seconds) for run in self.runs]


def gather(runs: Iterable[Run | Path | str]) -> list[Series]:
    """The runs (or their folders) by method and config, in the order in which methods came."""
    by_settings: dict[str, list[Run]] = {}
    for run in opened(runs):
        by_settings.setdefault(repr(sorted(settings_of(run).items())), []).append(run)
    together = [sorted(some, key=lambda run: run.seed) for some in by_settings.values()]
    return [Series(name, tuple(some)) for name, some in zip(names_of(together), together, strict=True)]


def opened(runs: Iterable[Run | Path | str]) -> list[Run]:
    """The runs at these places."""
    return [run for one in runs for run in ([one] if isinstance(one, Run) else read_runs([Path(one)]))]


def settings_of(run: Run) -> dict[str, object]:
    """The settings that make a run what it is, by dotted key."""
    other = [f"methods.{name}." for name in _methods(run) if name != run.method]
    left_out = (*SOME, *other)
    return {key: v for key, v in flatten(run.config).items() if key not in SAME and not key.startswith(left_out)}


def names_of(together: Sequence[Sequence[Run]]) -> list[str]:
    """A name for each: the method, and what sets it apart from others of the same method."""
    methods = [some[0].method for some in together]
    settings = [settings_of(some[0]) for some in together]
    names = []
    for at, method in enumerate(methods):
        others = [settings[i] for i, name in enumerate(methods) if name == method]
        differing = sorted({key for other in others for key in settings[at] if other.get(key) != settings[at][key]})
        said = ", ".join(f"{key.removeprefix(f'methods.{method}.')}={settings[at][key]}" for key in differing[:3])
        names.append(f"{method} ({said})" if said else method)
    return [
        name if names.count(name) == 1 else f"{name} #{names[:at].count(name) + 1}" for at, name in enumerate(names)
    ]


def _methods(run: Run) -> list[str]:
    methods = run.config.get("methods", {})
    return list(methods) if isinstance(methods, dict) else []
