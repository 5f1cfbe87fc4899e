"""What the command line does, without the command line: run, compare, resume, report, bench."""

import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kinfed.bench.contenders import Contender
from kinfed.bench.race import Plan, Timing, as_json, explain_absences, make_table, race
from kinfed.capabilities import neighbours_of
from kinfed.comparison import Outcome, as_csv, compared
from kinfed.config import Config, assemble, make_population
from kinfed.data import Population
from kinfed.errors import ConfigError, KinfedError, NoRoom
from kinfed.experiment import Experiment
from kinfed.progress import Display, Watcher, as_markdown, heard, in_bytes, percent
from kinfed.registry import as_file
from kinfed.runs import (
    CHECKPOINT,
    CONFIG,
    SUMMARY,
    RunFolder,
    Summary,
    can_go_on,
    free_folder,
    held,
    new_folder,
    refuse_other,
    refuse_taken,
    stored_config,
    write_config,
)  # fmt: skip
from kinfed.runs.findings import write_findings
from kinfed.runs.logs import write_text
from kinfed.trackers import check_trackers, trackers_of

COMPARISON = "compare.toml"


class Interrupted(KeyboardInterrupt):
    """The user stopped a run; the message says how to go on."""


@dataclass(frozen=True)
class Place:
    """Where a run or a comparison is written."""

    out: Path | None = None  # None: a new folder under runs/
    force: bool = False  # replace a run that is there

    def check(self) -> None:
        """Raises if something is there that must not be replaced; before any work is done."""
        if self.out:
            refuse_taken(self.out, self.force)

    def make(self, stem: str) -> Path:
        """The folder, ready to be written to."""
        return new_folder(self.out, self.force) if self.out else free_folder(Path("runs") / stem)


def run(config: Config, place: Place, display: Display) -> Path:
    """Runs one method; gives back its folder."""
    place.check()
    with display.live():
        folder = start(config, place, display).path
    display.table(summary_rows(read_summary(folder)))
    display.say(f"written to {folder}")
    return folder


def compare(config: Config, place: Place, display: Display) -> list[Outcome]:
    """Runs all methods for all seeds on the same clients."""
    if place.out and (place.out / COMPARISON).exists() and not place.force:
        raise ConfigError(
            f"{place.out} already holds a comparison: go on with `kinfed resume {place.out}`, choose another --out, "
            "or replace it with --force"
        )
    population = make_population(replace(config, seed=(config.seeds or (config.seed,))[0]))
    for method in config.compare:
        assemble(replace(config, method=method), population)  # bad input shows here, before a folder is made
    check_trackers(config.trackers)
    folder = place.make(f"compare-{config.data.name}")
    write_config(folder, config, COMPARISON)
    return all_runs(config, folder, display, force=place.force)


def all_runs(config: Config, folder: Path, display: Display, force: bool = False) -> list[Outcome]:
    """The outcomes of a comparison; runs that ended are read, stopped ones go on, the others start (all, if forced)."""
    outcomes = []
    with display.live():
        for seed in config.seeds or (config.seed,):
            population = make_population(replace(config, seed=seed))
            for method in config.compare:
                mine = replace(config, method=method, seed=seed)
                outcomes.append(one_of_many(mine, folder, display, population, force))
    write_text(folder / "compare.csv", as_csv(outcomes))
    write_text(folder / "compare.md", as_markdown(compared(outcomes)) + "\n")
    display.table(compared(outcomes))
    display.say(f"written to {folder}")
    return outcomes


def one_of_many(config: Config, folder: Path, display: Display, population: Population, force: bool) -> Outcome:
    """The outcome of one run of a comparison."""
    path = folder / f"{as_file(config.method)}-seed{config.seed}"
    try:
        if force or not (path / CONFIG).exists():
            start(config, Place(path, force=True), display, population)
        else:
            stored = stored_config(path)
            refuse_other(stored.resolve(), config, f"{path} is from another config than {folder / COMPARISON}")
            if not (path / SUMMARY).exists() or stored.rounds < config.rounds:
                go_on(config, path, display, population)
    except Interrupted:
        raise Interrupted(f"stopped; go on with: kinfed resume {folder}") from None
    return Outcome(config.method, config.seed, read_summary(path), seconds_of(path))


def resume(folder: Path, changes: Callable[[Config], Config], display: Display) -> None:
    """Takes a stopped run or comparison to its end."""
    if (folder / COMPARISON).exists():
        stored = stored_config(folder, COMPARISON)
        config = changes(stored)
        refuse_other(stored.resolve(), config, f"the comparison at {folder} has another config")
        write_config(folder, config, COMPARISON)
        all_runs(config, folder, display)
        return
    config = changes(stored_config(folder))
    with display.live():
        go_on(config, folder, display)
    display.table(summary_rows(read_summary(folder)))
    display.say(f"written to {folder}")


def bench(workloads: Sequence[str], contenders: Sequence[Contender], plan: Plan, display: Display) -> list[Timing]:
    """Races the contenders on each workload; gives back what was measured."""
    timings = race(workloads, contenders, plan, display.say)
    for line in explain_absences(timings):
        display.say(line)
    display.table(make_table(timings, plan))
    return timings


@dataclass(frozen=True)
class ReportPlan:
    """What a report is made of beside the page."""

    figures: tuple[str, ...] = ()  # kinds of files
    latex: bool = False
    markdown: bool = False


def report_runs(runs: Sequence[Path], out: Path | None, plan: ReportPlan, display: Display) -> Path:
    """Writes the report of these runs; gives back the page."""
    from kinfed.report.writing import checked_kinds, report_folder, write_report

    checked_kinds(plan.figures)
    folder = out or report_folder(runs)
    with heard(display.say):
        written = write_report(runs, folder, plan.figures, latex=plan.latex, markdown=plan.markdown)
    display.say(f"written to {written[0]}" + (f" and {len(written) - 1} more files" if len(written) > 1 else ""))
    return written[0]


def write_bench(path: Path, timings: Sequence[Timing], plan: Plan) -> None:
    """Writes what was measured as JSON."""
    write_text(path, json.dumps(as_json(timings, plan), indent=1) + "\n")


def start(config: Config, place: Place, display: Display, population: Population | None = None) -> RunFolder:
    """A run from its first round on."""
    with roomy():
        experiment = assemble(config, population)  # bad input shows here, before a folder is made
    check_trackers(config.trackers)
    path = place.make(f"{as_file(config.method)}-{config.data.name}-seed{config.seed}")
    return conduct(config, path, display, experiment, resume=False)


def go_on(config: Config, path: Path, display: Display, population: Population | None = None) -> RunFolder:
    """A run from its checkpoint on, or from the start if it has none yet."""
    resuming = can_go_on(path, config)
    with roomy():
        experiment = assemble(config, population)
    return conduct(config, path, display, experiment, resume=resuming)


def conduct(config: Config, path: Path, display: Display, experiment: Experiment[object], resume: bool) -> RunFolder:
    """The run itself, watched by its folder and the display; nobody else may write the folder meanwhile."""
    with held(path):
        write_config(path, config)
        (path / SUMMARY).unlink(missing_ok=True)
        return _conducted(config, path, display, experiment, resume)


def _conducted(config: Config, path: Path, display: Display, experiment: Experiment[object], resume: bool) -> RunFolder:
    about: dict[str, str | int] = {"method": config.method, "dataset": config.data.name, "seed": config.seed}
    experiment.fed.settle(path)
    folder = RunFolder(path, experiment.fed, about | {"rounds": config.rounds})
    folder.events.mend()
    folder.events.note("resumed" if resume else "started", device=str(experiment.fed.device))
    watcher = display.watch(f"{config.method} seed {config.seed}")
    observers = (folder, watcher, *trackers_of(config, path))
    experiment.attach(observers, path / CHECKPOINT)
    try:
        with roomy(), told(folder, watcher):
            experiment.run(resume=resume)
            folder.add_relatedness(neighbours_of(experiment.method, experiment.state))
            write_findings(path, experiment)
    except KeyboardInterrupt:
        folder.events.note("interrupted")
        raise Interrupted(f"stopped; go on with: kinfed resume {path}") from None
    except KinfedError as error:
        folder.events.note("failed", message=str(error))
        raise
    finally:
        experiment.fed.close()
    return folder


@contextmanager
def roomy() -> Iterator[None]:
    """Inside it a GPU that is full is an error in words."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        asked = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
        more = f", {asked[1]} more were asked for" if asked else ""
        raise NoRoom(f"the GPU's memory is full{more}: let fewer runs share it, or set engine.device=cpu") from None


@contextmanager
def told(folder: RunFolder, watcher: Watcher) -> Iterator[None]:
    """Inside it warnings are one line on standard error and an event each; what kinfed logs goes to the watcher."""

    def warn(message: Warning | str, *where: object, **more: object) -> None:
        text = " ".join(str(message).split())
        print(f"warning: {text}", file=sys.stderr)
        folder.events.note("warning", message=text)

    with heard(watcher.message), warnings.catch_warnings():
        warnings.filterwarnings("default", category=UserWarning)
        warnings.showwarning = warn
        yield


def read_summary(path: Path) -> Summary:
    """The numbers of a run's summary."""
    said: Summary = json.loads((path / SUMMARY).read_text(encoding="utf-8"))
    return {name: value for name, value in said.items() if not isinstance(value, str)}


def seconds_of(path: Path) -> float:
    """How long a run took, without evaluation."""
    lines = (path / "timing.csv").read_text(encoding="utf-8").splitlines()[1:]
    return sum(float(line.split(",")[1]) for line in lines)


def summary_rows(summary: Summary) -> list[tuple[str, str]]:
    """The end of a run as a table."""
    shares = {"accuracy": "accuracy", "accuracy_adapted": "after adaptation", "accuracy_unseen": "strangers",
              "accuracy_unseen_adapted": "strangers after adaptation", "worst_decile": "worst decile",
              "at_target": "clients at target"}  # fmt: skip
    numbers = {"variance": "variance over clients", "ari": "ARI with planted groups", "clusters": "groups found",
               "clustering_error": "clustering error", "uniformity": "uniformity of labels",
               "robustness": "robustness", "correlation_labels": "correlation with labels",
               "correlation_drift": "correlation with drift",
               "rounds_to_target": "rounds to target", "converged_at": "converged at round",
               "rejected_replies": "rejected replies"}  # fmt: skip
    rows = [(title, percent(summary[name])) for name, title in shares.items() if name in summary]
    rows += [(title, number(summary[name])) for name, title in numbers.items() if name in summary]
    rows += [(reason_of(name), number(summary[name])) for name in summary if name.startswith("replies_")]
    bytes_moved = {"bytes_down": "sent to clients", "bytes_up": "sent by clients"}
    cost = [(title, in_bytes(summary[name] or 0)) for name, title in bytes_moved.items()]
    return [("", "last round"), *rows, *cost]


def reason_of(name: str) -> str:
    """What became of some replies, in words."""
    return f"replies: {name.removeprefix('replies_').replace('_', ' ')}"


def number(value: float | int | None) -> str:
    return "–" if value is None else f"{value:.2f}".rstrip("0").rstrip(".")
