"""Figures of recipes: lines over an axis or over rounds, and what `kinfed report` draws of single runs."""

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, stdev

from kinfed.recipes.measures import MEASURES
from kinfed.recipes.outcome import AT_ROUND, Outcome, Result, values_of
from kinfed.report import plot_accuracies, plot_dendrogram, plot_relatedness, plot_signatures
from kinfed.report.vega import Chart, Rows, Spec, digits, number, show
from kinfed.runs.reader import Run

OF_A_RUN: dict[str, Callable[[Path], Chart]] = {
    "relatedness": plot_relatedness,
    "signatures": plot_signatures,
    "dendrogram": plot_dendrogram,
}
LINE = {"width": 420, "height": 260}


def save_figures(outcome: Outcome, folder: Path) -> list[Path]:
    """Draws a figure's charts as SVG files into a folder, if the renderer is installed and something has run."""
    if outcome.recipe.figure is None or find_spec("vl_convert") is None:
        return []
    charts = [(folder / f"{outcome.recipe.name}{ending}.svg", chart) for ending, chart in draw_figures(outcome)]
    for path, chart in charts:
        chart.save(path)
    return [path for path, _ in charts]


def draw_figures(outcome: Outcome) -> Iterator[tuple[str, Chart]]:
    """The charts of a figure, each with the ending of its file's name; none where nothing has run."""
    kind = outcome.recipe.figure.kind if outcome.recipe.figure else "lines"
    if kind == "lines":
        if panels := draw_panels(outcome):
            yield "", panels
        return
    for name in outcome.recipe.columns:
        results = [result for result in outcome.results if result.cell.column.name == name]
        if kind == "clients":
            yield from draw_histograms(outcome, name, results)
        else:
            yield from draw_runs(kind, name, [run for result in results for run in result.runs[:1]])


def draw_histograms(outcome: Outcome, column: str, results: Sequence[Result]) -> Iterator[tuple[str, Chart]]:
    """One chart for each protocol of a column: the accuracies of the clients of each row."""
    for protocol in outcome.recipe.protocols:
        runs = [run for result in results if protocol in result.cell.protocols for run in result.runs[:1]]
        if runs:
            yield f"-{column}-{protocol}", plot_accuracies([run.path for run in runs])


def draw_runs(kind: str, column: str, runs: Sequence[Run]) -> Iterator[tuple[str, Chart]]:
    """One chart for each run of a column."""
    for at, run in enumerate(runs):
        yield f"-{column}" + (f"-{at}" if at else ""), OF_A_RUN[kind](run.path)


def draw_panels(outcome: Outcome) -> Chart | None:
    """A panel for each measure, over rounds also for each column, with a line for each row and protocol."""
    groups = [list(outcome.recipe.columns)] if outcome.is_along_columns else [[c] for c in outcome.recipe.columns]
    panels: list[Spec] = []
    tables: dict[str, Rows] = {}
    for measure in outcome.recipe.measures:
        for group in groups:
            rows = list(point_rows(outcome, group, measure))
            if rows:
                name = f"points{len(panels)}"
                where = "" if outcome.is_along_columns else outcome.recipe.columns[group[0]].title
                panels.append(line_panel(outcome, name, MEASURES[measure].title, where))
                tables[name] = rows
    return Chart(tuple(panels), tables, stacked=len(panels) > 3) if panels else None


def point_rows(outcome: Outcome, columns: Sequence[str], measure: str) -> Iterator[dict[str, object]]:
    """One row for each point of a line: its place, its mean, and the mean less and plus one standard deviation."""
    for result in outcome.results:
        if result.cell.column.name not in columns or not result.numbers:
            continue
        for x, values in points_of(outcome, result, measure):
            spread = stdev(values) if len(values) > 1 else 0.0
            line = f"{result.cell.row.title}, {' = '.join(result.cell.protocols)}"
            low, middle, high = (digits(mean(values) + sign * spread) for sign in (-1, 0, 1))
            yield {"line": line, "x": x, "y": middle, "low": low, "high": high}


def points_of(outcome: Outcome, result: Result, measure: str) -> Iterator[tuple[float, tuple[float, ...]]]:
    """The places of a cell's numbers on the axis, with the value of each seed."""
    if outcome.is_along_columns:
        if values := values_of(result.numbers, measure):
            yield result.cell.column.x or 0.0, values
        return
    begin = f"{measure}{AT_ROUND}"
    for name in dict.fromkeys(name for numbers in result.numbers.values() for name in numbers):
        if name.startswith(begin):
            yield float(name.removeprefix(begin)), values_of(result.numbers, name)


def line_panel(outcome: Outcome, table: str, title: str, where: str) -> Spec:
    """Lines with points, and a band of one standard deviation over seeds."""
    axis = outcome.recipe.figure.x if outcome.recipe.figure else ""
    x, y = number("x", title=axis), number("y", title=title, scale={"zero": False})
    color: Spec = {"field": "line", "type": "nominal", "title": None, "legend": {"orient": "right", "symbolOpacity": 1}}
    tips = show(line="line", x=axis, y=title)
    layers: list[Spec] = [
        {"mark": {"type": "area", "opacity": 0.15},
         "encoding": {"x": x, "y": number("low"), "y2": {"field": "high"}, "color": color}},
        {"mark": {"type": "line", "point": True, "strokeWidth": 2},
         "encoding": {"x": x, "y": y, "color": color, "tooltip": tips}},
    ]  # fmt: skip
    return {"data": {"name": table}, "title": where, "layer": layers, **LINE}
