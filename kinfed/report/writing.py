"""A report on disk: the page, and beside it figures and tables on demand."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from kinfed.errors import ConfigError
from kinfed.registry import suggest
from kinfed.report.figures.all import write_figures
from kinfed.report.page import page
from kinfed.report.series import Series, gather
from kinfed.report.tables import latex as in_latex
from kinfed.report.tables import markdown as in_markdown
from kinfed.runs.lifecycle import free_folder
from kinfed.runs.logs import write_text

log = logging.getLogger("kinfed")
PAGE = "index.html"
KINDS = ("png", "svg")


def report_folder(runs: Sequence[Path]) -> Path:
    """`report` in the folder that was given; of several, a new one under runs/."""
    return runs[0] / "report" if len(runs) == 1 else free_folder(Path("runs") / "report")


def checked_kinds(kinds: Sequence[str]) -> None:
    """Raises unless figures can be written as files of these kinds."""
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"--figures: wanted {' or '.join(KINDS)}, got '{kind}'{suggest(kind, KINDS)}")


def write_report(
    runs: Sequence[Path], folder: Path, figures: Sequence[str] = (), *, latex: bool = False, markdown: bool = False
) -> list[Path]:
    """Writes the page of these runs and what else is wanted; gives back all files, the page first."""
    series = gather(runs)
    if not series:
        raise ConfigError("report: wanted at least one run, got none")
    folder.mkdir(parents=True, exist_ok=True)
    wanted: dict[str, Callable[[Sequence[Series]], str]] = {PAGE: page}
    wanted |= {"results.tex": in_latex} if latex else {}
    wanted |= {"results.md": in_markdown} if markdown else {}
    for name, make in wanted.items():
        write_text(folder / name, make(series))
    if figures:
        log.info("drawing the figures as %s", " and ".join(figures))
    pictures = write_figures(series, folder / "figures", figures) if figures else []
    return [*(folder / name for name in wanted), *pictures]
