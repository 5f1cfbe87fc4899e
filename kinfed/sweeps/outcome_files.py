"""What came of a sweep: its tables, its figure, the config of its best point."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kinfed.comparison import (
    Outcome,
    comparison_table,
    headline,
    make_cell,
    make_cells,
    mean_and_spread,
    runs_as_csv,
)
from kinfed.comparison.outcomes import as_cell
from kinfed.config import to_toml
from kinfed.config.toml import shorten_keys
from kinfed.errors import ConfigError
from kinfed.methods import title_of
from kinfed.progress import Display, as_markdown
from kinfed.registry import as_file
from kinfed.report.parameter_chart import ParameterPoint, plot_points
from kinfed.report.vega import Chart
from kinfed.runs.logs import as_csv, write_text
from kinfed.sweeps.sweep_folder import Sweep, Tried

SHOWN = 20  # points in a terminal
FAR = 2  # times as good on validation samples as on test samples: more than chance explains


def write_sweep(sweep: Sweep, failed: Mapping[Path, str]) -> None:
    """Writes all tables, the figure where charts can be drawn, and the best config."""
    texts = {"sweep.csv": points_as_csv(sweep), "sweep.md": as_text(sweep), "runs.csv": all_runs_as_csv(sweep)}
    rows = [[path.name, path.parent.name, why] for path, why in failed.items()]
    texts |= {"failed.csv": as_csv([["run", "part", "error"], *rows])} if failed else {}
    methods = len({tried.config.method for tried in sweep.tried})
    for place, tried in enumerate(sweep.selected):
        text = to_toml(tried.config.resolve() | {"methods": own_methods(tried)})
        texts |= {"best.toml": text} if place == 0 else {}
        texts |= {f"best-{as_file(tried.config.method)}.toml": text} if methods > 1 else {}
    if not failed:
        (sweep.path / "failed.csv").unlink(missing_ok=True)
    for name, text in texts.items():
        write_text(sweep.path / name, text)
    if sweep.selected:
        write_figure(sweep)


def own_methods(tried: Tried) -> dict[str, object]:
    """The section of the point's own method."""
    methods = tried.config.resolve()["methods"]
    return {tried.config.method: methods[tried.config.method]} if isinstance(methods, dict) else {}


def write_figure(sweep: Sweep) -> None:
    """Draws the metric against each parameter; nothing where the package for charts is not installed."""
    try:
        plot_sweep(sweep).save(sweep.path / "sweep.svg")
    except ConfigError:  # an extra
        return


def plot_sweep(sweep: Sweep) -> Chart:
    """The metric on validation samples against each parameter; the points that were selected stand out."""
    chosen = {tried.name for tried in sweep.selected}
    points = [
        ParameterPoint(tried.name, tried.config.method, tried.point, *mean_and_spread(sweep.column, tried.outcomes),
                       len(tried.runs), tried.name in chosen)
        for tried in sweep.tried
    ]  # fmt: skip
    return plot_points(points, f"validation {sweep.column.title}", joined=not sweep.definition.draws)


def points_as_csv(sweep: Sweep) -> str:
    """One row a point: its settings, mean and spread on validation samples; of the selected ones, on test samples."""
    keys = list(dict.fromkeys(key for tried in sweep.tried for key in tried.point))
    tests = {tried.name: tried for tried in sweep.tested}
    chosen = {tried.name for tried in sweep.selected}
    name = sweep.column.name
    rows = []
    for tried in sweep.tried:
        test = tests[tried.name].outcomes if tried.name in tests else []
        numbers = (*mean_and_spread(sweep.column, tried.outcomes), *mean_and_spread(sweep.column, test))
        settings = [as_cell(tried.point.get(key)) for key in keys]
        rows.append([*settings, len(tried.runs), *numbers, str(tried.name in chosen).lower()])
    header = [f"{name}_validation", f"{name}_validation_spread", f"{name}_test", f"{name}_test_spread", "is_selected"]
    return as_csv([[*keys, "seeds", *header], *rows])


def all_runs_as_csv(sweep: Sweep) -> str:
    """One row a run, on validation and on test samples."""
    outcomes = [
        replace(outcome, method=tried.config.method, settings={"scored_on": part, **outcome.settings})
        for part, some in (("validation", sweep.tried), ("test", sweep.tested))
        for tried in some
        for outcome in tried.outcomes
    ]
    return runs_as_csv(outcomes)


def points_table(sweep: Sweep, most: int | None = None) -> list[list[str]]:
    """A header, then one row a point, the best first: settings, validation metric, difference to the best."""
    ranked = sorted((tried for tried in sweep.tried if tried.runs), key=lambda tried: -sweep.score(tried))
    header, rows = make_cells([outcome for tried in ranked for outcome in tried.outcomes])
    short = shorten_keys(list(dict.fromkeys(key for tried in sweep.tried for key in tried.point)))
    chosen = {tried.name for tried in sweep.selected}
    width = min(len(header), 3)  # the metric, and where there are several points the difference to the best
    table = [[*short.values(), f"validation {header[1]}" if width > 1 else "", *header[2:width], "selected"]]
    for tried, cells in list(zip(ranked, rows, strict=True))[:most]:
        settings = [show_setting(key, tried.point.get(key, "–")) for key in short]
        table.append([*settings, *map(str, cells[1:width]), "yes" if tried.name in chosen else ""])
    return table


def show_setting(key: str, value: object) -> str:
    """A setting in a table to read; a method by the name that the field has for it."""
    return title_of(str(value)) if key == "method" else str(value)


def as_text(sweep: Sweep) -> str:
    """The sweep to read: what was selected, and all points."""
    said = "\n\n".join(explain(sweep))
    return f"{said}\n\n{as_markdown(points_table(sweep))}\n" if any(tried.runs for tried in sweep.tried) else said


def explain(sweep: Sweep) -> list[str]:
    """What was selected by validation samples, and how it does on test samples, in sentences."""
    said = []
    for tried, test in zip(sweep.selected, match_order(sweep.tested, sweep.selected), strict=True):
        method = f"{title_of(tried.config.method)}: " if len(sweep.selected) > 1 else ""
        metric = f" {sweep.column.title}"
        scored = make_cell(sweep.column, tried.outcomes)
        tested = f"; on test samples {make_cell(sweep.column, test.outcomes)}" if test and test.runs else ""
        said.append(f"{method}selected on validation samples: {tried.name} ({scored}{metric}{tested})")
        said += at_edges(sweep, tried) + (find_collapsed(sweep, tried, test) if test else [])
    if len(sweep.tested) > 1 and (best := headline(list_tested(sweep))):
        said.append(f"On test samples: {best}")
    return said


def find_collapsed(sweep: Sweep, tried: Tried, test: Tried) -> list[str]:
    """The seeds of a selected point that are far worse on test samples than on validation samples."""
    said, before = [], {outcome.seed: sweep.column.value(outcome) for outcome in tried.outcomes}
    for outcome in test.outcomes:
        now, then = sweep.column.value(outcome), before.get(outcome.seed)
        worse, better = (then, now) if sweep.column.lower_is_better else (now, then)
        if worse is not None and better is not None and worse < better / FAR:
            said.append(
                f"seed {outcome.seed} has {now:.4g} on test samples, {then:.4g} on validation samples: its training "
                "may have diverged; a smaller training.lr is the usual remedy"
            )
    return said


def match_order(tested: Sequence[Tried], selected: Sequence[Tried]) -> list[Tried | None]:
    """The tested points in the order of the selected ones."""
    by_name = {tried.name: tried for tried in tested}
    return [by_name.get(tried.name) for tried in selected]


def list_tested(sweep: Sweep) -> list[Outcome]:
    """How the runs on test samples ended, under their methods' names."""
    return [replace(o, method=tried.config.method) for tried in sweep.tested for o in tried.outcomes]


def at_edges(sweep: Sweep, tried: Tried) -> list[str]:
    """The numbers of a point that are the smallest or the largest that were tried."""
    said = []
    for key, value in tried.point.items():
        others = [other.point[key] for other in sweep.tried if key in other.point]
        numbers = [float(other) for other in others if isinstance(other, int | float) and not isinstance(other, bool)]
        if len(numbers) < len(others) or len(set(numbers)) < 3 or value not in (min(numbers), max(numbers)):
            continue
        edge, way = ("smallest", "below") if value == min(numbers) else ("largest", "above")
        said.append(f"{key}={value} is the {edge} that was tried: a better one may lie {way}")
    return said


def show_sweep(sweep: Sweep, display: Display) -> None:
    """Shows the points, what was selected, and where everything is."""
    if any(tried.runs for tried in sweep.tried):
        display.table(points_table(sweep, SHOWN))
    if len(sweep.tested) > 1:
        display.table(comparison_table(list_tested(sweep)))
    for line in explain(sweep):
        display.say(line)
    figure = "" if (sweep.path / "sweep.svg").exists() else "; no figure without pip install 'kinfed[report]'"
    display.say(f"written to {sweep.path}{figure}")
