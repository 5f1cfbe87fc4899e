"""One run: made, resumed and read from its folder; reports and bundles of runs that are there."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from kinfed.api.arguments import Text, change, give, to_path
from kinfed.comparison import summary_table
from kinfed.config import Config
from kinfed.config.assembly import DataLike, MethodLike, configure
from kinfed.errors import CheckpointError, ConfigError
from kinfed.experiment import Summary
from kinfed.methods import title_of
from kinfed.progress import Display, as_html, as_text, choose_display, forward_log
from kinfed.registry import refuse_code
from kinfed.runs import lifecycle
from kinfed.runs.lifecycle import Given, Place
from kinfed.runs.logs import CONFIG
from kinfed.runs.reader import Run, check_format, check_parts, is_comparison, read_config, read_part
from kinfed.runs.writer import refuse_incomplete

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class RunResult:
    """A run on disk; `given` holds the objects that Python ran it with, for resuming and export.

    Code that its config names is imported only where it is trusted, or was named by the user in this process.
    """

    path: Path
    given: Given = Given()
    trust: bool = False

    @cached_property
    def run(self) -> Run:
        """All tables and arrays of the folder."""
        return Run(self.path, self.trust)

    @property
    def config(self) -> Config:
        """All settings."""
        return self.run.settings

    @property
    def summary(self) -> Summary:
        """The last metrics and the cost."""
        return self.run.summary

    @property
    def diagnosis(self) -> str:
        """What the method found of the clients, in words; empty where it says nothing."""
        return self.run.diagnosis

    @property
    def clusters(self) -> list[int] | None:
        """The cluster of each client (-1: none); None if the method looks for no clusters."""
        return None if self.run.found is None else self.run.found.tolist()

    @property
    def accuracy(self) -> list[float]:
        """The accuracy of each client at the last evaluation; of other tasks, their main metric."""
        return [float(share) for share in self.run.scores]

    def to_frame(self, table: str = "rounds") -> "DataFrame":
        """A table of the folder as a pandas DataFrame: rounds, clients, clusters, ledger, ledger_clients, timing."""
        frame: DataFrame = load_pandas().read_csv(self.path / f"{table}.csv")
        return frame

    def report(self, out: Text | None = None, figures: Sequence[str] = ()) -> Path:
        """Writes the report of this run; gives back the page."""
        return report(self.path, out=out, figures=figures)

    def resume(self, *, rounds: int | None = None, device: str | None = None, quiet: bool = False) -> "RunResult":
        """Takes the run to its end, or to more rounds."""
        return resume(self.path, rounds=rounds, device=device, quiet=quiet, given=self.given, trust=self.trust)

    def export(self, folder: Text, *, force: bool = False) -> Path:
        """Writes a bundle that assigns unseen clients to models; gives back its folder."""
        export_run(self.path, folder, force=force, given=self.given, trust=self.trust)
        return Path(folder)

    def __repr__(self) -> str:
        state = "" if self.run.has_ended else ", not ended"
        table = as_text(summary_table(self.summary, self.run.metric, self.run.own_metrics))
        return f"{title_of(self.run.method)} seed {self.run.seed} at {self.path}{state}\n{table}"

    def _repr_html_(self) -> str:
        return as_html(summary_table(self.summary, self.run.metric, self.run.own_metrics))


def run(
    method: MethodLike | None = None, data: DataLike | None = None, *, out: Text | None = None, force: bool = False,
    resume: bool = False, quiet: bool = False, display: Display | None = None, **settings: object,
) -> RunResult:  # fmt: skip
    """Runs one method and writes its folder (`out`, else a new one under runs/).

    `settings` are those of a config: rounds=50, seed=1, fraction=0.2, model="leaf_cnn", partition={"clients": 20},
    training=LocalTraining(lr=0.1), engine="sequential", device="cuda", data_dir="data"; or by dotted keys, as in
    **{"training.lr": 0.1, "methods.ifca.clusters": 3}.
    With `resume` a run in `out` goes on.
    """
    config, given = configure(method, data, settings), give(method, data)
    display = display or choose_display(quiet=quiet)
    place = Place(None if out is None else to_path(out), force)
    if resume and place.out is None:
        raise ConfigError("run(resume=True): wanted out=, the folder of the run")
    with display.live():
        if resume and place.out and (place.out / CONFIG).exists():
            check_format(place.out)
            path = lifecycle.resume(config, place.out, display, given)
        else:
            place.check()
            path = lifecycle.start(config, place, display, given)
    return show_run(RunResult(path, given), display)


def resume(
    folder: Text, *, rounds: int | None = None, device: str | None = None, data_dir: Text | None = None,
    quiet: bool = False, display: Display | None = None, given: Given = lifecycle.CONFIGURED, trust: bool = False,
) -> RunResult:  # fmt: skip
    """Takes a stopped run to its end, or an ended one to more rounds; only with `trust` its config may import code."""
    path, display = to_path(folder, "folder"), display or choose_display(quiet=quiet)
    config = change(read_config(path, trust=trust), rounds, device, data_dir)
    with display.live(), refuse_code(f"{path / CONFIG}", trust):
        lifecycle.resume(config, path, display, given)
    return show_run(RunResult(path, given, trust), display)


def show_run(result: RunResult, display: Display) -> RunResult:
    """Shows how a run ended."""
    display.table(summary_table(result.summary, result.run.metric, result.run.own_metrics))
    say_diagnoses([result], display)
    display.say(f"written to {result.path}")
    return result


def say_diagnoses(results: Sequence[RunResult], display: Display) -> None:
    """What methods found of the clients: of each its first seed."""
    said = {result.config.method: result.diagnosis for result in reversed(results)}
    for method, diagnosis in reversed(said.items()):
        if diagnosis:
            display.say(f"{title_of(method)}: {diagnosis}")


def load_run(folder: Text, trust: bool = False) -> RunResult:
    """The run in a folder that `kinfed run` or `kinfed.run` wrote; only with `trust` is code of its config imported."""
    path = to_path(folder, "folder")
    if is_comparison(path):
        raise CheckpointError(f"{path} is a comparison: use kinfed.load_comparison, or name one of the runs in it")
    check_format(path)
    refuse_incomplete(path)
    found = Run(path, trust)
    read_part(found, "rounds.csv", "rounds")
    if found.has_ended or len(found.rounds):
        check_parts(found)
    return RunResult(path, trust=trust)


def report(
    *runs: Text, out: Text | None = None, figures: Sequence[str] = (), latex: bool = False, markdown: bool = False,
    display: Display | None = None,
) -> Path:  # fmt: skip
    """Writes the report of these runs or comparisons, figures and tables on demand; gives back the page."""
    from kinfed.report.page import check_kinds, report_folder, write_report  # what draws is loaded when it is used

    check_kinds(figures)
    paths, display = [to_path(each, "report") for each in runs], display or choose_display(quiet=True)
    folder = report_folder(paths) if out is None else to_path(out)
    with forward_log(display.say):
        written = write_report(paths, folder, figures, latex=latex, markdown=markdown)
    more = f" and {len(written) - 1} more files" if len(written) > 1 else ""
    display.say(f"written to {written[0]}{more}")
    return written[0]


def export_run(
    folder: Text, bundle: Text, *, force: bool = False, given: Given = lifecycle.CONFIGURED, trust: bool = False
) -> list[str]:
    """Writes a bundle of a run that has ended, for unseen clients; says what is in it."""
    from kinfed.serving.assignment import OutputFolder
    from kinfed.serving.run_export import export_run as write_bundle

    return list(write_bundle(Path(folder), OutputFolder(to_path(bundle, "bundle"), force), given.population, trust))


def load_pandas() -> ModuleType:
    """The package pandas; raises ConfigError where it is not installed."""
    try:
        return import_module("pandas")
    except ModuleNotFoundError:
        raise ConfigError("to_frame() needs pandas: install it with pip install pandas") from None
