"""The progress of runs: bars in a terminal or a notebook, lines elsewhere, or nothing."""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from html import escape
from typing import Protocol, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from kinfed.experiment import Observer, RoundResult, Summary
from kinfed.registry import is_installed
from kinfed.threads import Listeners, SharedChange

Rows = Sequence[Sequence[str]]  # the first one is the header


class Watcher(Observer, Protocol):
    """An observer that also gets messages between rounds."""

    def message(self, text: str) -> None: ...


class Display(Protocol):
    """A way to show runs and tables."""

    def live(self) -> AbstractContextManager[object]:
        """Inside it runs are shown as they go."""
        ...

    def watch(self, label: str) -> Watcher:
        """An observer that shows one run under this label."""
        ...

    def say(self, text: str) -> None: ...

    def table(self, rows: Rows) -> None: ...


def choose_display(plain: bool = False, quiet: bool = False, markdown: bool = False) -> Display:
    """Bars if standard output is a terminal or a notebook, else lines; tables in Markdown come with lines."""
    if quiet:
        return Silence()
    console = Console()
    is_notebook = console.is_jupyter and is_installed("ipywidgets")  # without it rich draws no bars there
    bars = (sys.stdout.isatty() or is_notebook) and not plain and not markdown
    return Bars.on(console) if bars else Lines(sys.stdout, markdown)


@dataclass(frozen=True)
class Bars:
    """One bar a run: rounds, main metric, bytes, time."""

    console: Console
    progress: Progress

    @classmethod
    def on(cls, console: Console) -> "Bars":
        """Bars on this terminal."""
        columns = (
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rounds]}"),
            TextColumn("{task.fields[metric]}", style="bold"), TextColumn("{task.fields[moved]}"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        )  # fmt: skip
        return cls(console, Progress(*columns, console=console))

    def live(self) -> AbstractContextManager[object]:
        return self.progress

    def watch(self, label: str) -> Watcher:
        return Bar(self.progress, self.progress.add_task(label, total=None, rounds="preparing", metric="", moved=""))

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def table(self, rows: Rows) -> None:
        table = Table(box=SIMPLE_HEAD)
        for i, name in enumerate(rows[0]):
            table.add_column(name, justify="right" if i else "left", no_wrap=True)
        for row in rows[1:]:
            table.add_row(*row)
        self.console.print(table)


@dataclass(frozen=True)
class Bar:
    """One run as a bar."""

    progress: Progress
    task: TaskID

    def message(self, text: str) -> None:
        task = self.progress.tasks[self.task]
        done = f"{task.completed:.0f}/{task.total:.0f}, " if task.total else ""
        self.progress.update(self.task, rounds=f"{done}{text}")

    def on_start(self, rounds: int, done: int) -> None:
        self.progress.reset(self.task, total=rounds, completed=done, rounds=f"{done}/{rounds}", metric="", moved="")

    def on_round(self, result: RoundResult) -> None:
        total = self.progress.tasks[self.task].total or result.round
        shown = {"rounds": f"{result.round}/{total:.0f}", "moved": in_bytes(result.down + result.up)}
        if result.metrics:
            shown["metric"] = show_metric(result)
        self.progress.update(self.task, completed=result.round, **shown)  # type: ignore[arg-type]

    def on_end(self, summary: Summary) -> None:
        """The last round was evaluated: its metric is shown already."""


@dataclass(frozen=True)
class Lines:
    """One line for each evaluation."""

    out: TextIO
    markdown: bool = False  # of tables
    only_tables: bool = False

    def live(self) -> AbstractContextManager[object]:
        return nullcontext()

    def watch(self, label: str) -> Watcher:
        return LineByLine(label, self)

    def say(self, text: str) -> None:
        if not self.only_tables:
            self._print(text)

    def table(self, rows: Rows) -> None:
        self._print(as_markdown(rows) if self.markdown else as_text(rows))

    def _print(self, text: str) -> None:
        print(text, file=self.out, flush=True)


@dataclass
class LineByLine:
    """One run as lines."""

    label: str
    display: Lines
    rounds: int = 0
    first: int = 0  # rounds that were done when it began
    start: float = 0.0

    def message(self, text: str) -> None:
        self.display.say(f"{self.label}: {text}")

    def on_start(self, rounds: int, done: int) -> None:
        self.rounds, self.first, self.start = rounds, done, time.monotonic()

    def on_round(self, result: RoundResult) -> None:
        if not result.metrics:
            return
        each = (time.monotonic() - self.start) / (result.round - self.first)
        self.display.say(
            f"{self.label}: round {result.round}/{self.rounds}, {result.metric.title} {show_metric(result)}, "
            f"{in_bytes(result.down + result.up)}, {each * (self.rounds - result.round):.0f} s left"
        )

    def on_end(self, summary: Summary) -> None:
        pass


@dataclass(frozen=True)
class Silence:
    """Shows nothing; messages between runs may go to a function."""

    on_message: Callable[[str], None] | None = None

    def live(self) -> AbstractContextManager[object]:
        return nullcontext()

    def watch(self, label: str) -> Watcher:
        return self

    def say(self, text: str) -> None:
        if self.on_message:
            self.on_message(text)

    def table(self, rows: Rows) -> None:
        pass

    def message(self, text: str) -> None:
        pass

    def on_start(self, rounds: int, done: int) -> None:
        pass

    def on_round(self, result: RoundResult) -> None:
        pass

    def on_end(self, summary: Summary) -> None:
        pass


def as_text(rows: Rows) -> str:
    """A table in plain text, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        [c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))] for row in rows
    )
    return "\n".join("  ".join(cells).rstrip() for cells in lines)


def as_html(rows: Rows) -> str:
    """A table in HTML, for notebooks."""
    head, *body = (
        "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
        for tag, row in zip(["th", *["td"] * (len(rows) - 1)], rows, strict=True)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{row}</tr>' for row in body)}</tbody></table>"


def as_markdown(rows: Rows) -> str:
    """A table in Markdown, numbers to the right."""
    ruler = ["---", *("---:" for _ in rows[0][1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], ruler, *rows[1:]))


def show_metric(result: RoundResult) -> str:
    """The main metric of an evaluated round, in words."""
    return result.metric.show(result.metrics.get(result.metric.name))


def percent(share: float | int | None) -> str:
    return "–" if share is None else f"{100 * share:.2f} %"


def in_bytes(count: float) -> str:
    if count < 1e3:
        return f"{count:.0f} bytes"
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


class LogForwarder(logging.Handler):
    """Passes log messages to those who listen on the thread they come from."""

    def emit(self, record: logging.LogRecord) -> None:
        for say in LOG_LISTENERS.here():
            say(record.getMessage())


@contextmanager
def divert_log() -> Iterator[None]:
    """Inside it what kinfed logs goes to the listeners, and nowhere else."""
    log, handler = logging.getLogger("kinfed"), LogForwarder()
    before = log.level, log.propagate
    log.setLevel(min(log.level or logging.INFO, logging.INFO))
    log.propagate = False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.level, log.propagate = before


LOG_LISTENERS: Listeners[Callable[[str], None]] = Listeners()
DIVERTED = SharedChange(divert_log)


@contextmanager
def forward_log(say: Callable[[str], None]) -> Iterator[None]:
    """Inside it what kinfed logs goes to `say`, and nowhere else; what the engine chose, too, at the level DEBUG."""
    with LOG_LISTENERS.add(say), DIVERTED.hold():
        yield


@contextmanager
def log_once() -> Iterator[None]:
    """Inside it kinfed logs a text once, but for what it says in runs: many runs have the same data and settings."""
    log, known = logging.getLogger("kinfed"), set[str]()

    def is_new(record: logging.LogRecord) -> bool:
        if LOG_LISTENERS.known:  # a run listens
            return True
        text = record.getMessage()
        is_first = text not in known
        known.add(text)
        return is_first

    log.addFilter(is_new)
    try:
        yield
    finally:
        log.removeFilter(is_new)
