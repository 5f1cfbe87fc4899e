"""Figures of recipes: lines over an axis or over rounds, and what `kinfed report` draws of single runs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise, product
from math import inf
from pathlib import Path
from statistics import mean, median, stdev

from kinfed.recipes.measures import MEASURES, Measure
from kinfed.recipes.outcome import AT_ROUND, Outcome, Result, values_of
from kinfed.recipes.recipe import Recipe
from kinfed.report import plot_accuracies, plot_dendrogram, plot_relatedness, plot_signatures
from kinfed.report.vega import COLOURS, MORE_COLOURS, Chart, Rows, Spec, digits, number, show

OF_A_RUN: dict[str, Callable[[Path], Chart]] = {
    "relatedness": plot_relatedness,
    "signatures": plot_signatures,
    "dendrogram": plot_dendrogram,
}
LINE = {"width": 420, "height": 260}
MOST_POINTS = 25  # on a line
LONG = 5  # times as long as most lines: such a one asks for an axis by powers
MARGIN = 8  # pixels between the ends of an axis and the points nearest to them
DASHES = {"symbolType": "stroke", "symbolSize": 400, "symbolStrokeColor": "#555", "symbolStrokeWidth": 2}  # in a legend


def save_figures(outcome: Outcome, folder: Path) -> list[Path]:
    """Draws a figure's charts as files into a folder, if the renderer is installed and something has run."""
    if outcome.recipe.figure is None or find_spec("vl_convert") is None:
        return []
    charts = [(folder / f"{outcome.recipe.name}{ending}", chart) for ending, chart in draw_figures(outcome)]
    for path, chart in charts:
        chart.save(path)
    return [path for path, _ in charts]


def draw_figures(outcome: Outcome) -> Iterator[tuple[str, Chart]]:
    """The charts of a figure, each with the ending of its file's name; none where nothing has run."""
    kind = outcome.recipe.figure.kind if outcome.recipe.figure else "lines"
    if kind == "lines":
        if panels := draw_panels(outcome):
            yield ".svg", panels
        return
    for ending, (column, row, protocol) in list_files(outcome.recipe):
        rows = [row] if row else list(outcome.recipe.rows)
        cells = [result for name in rows if (result := outcome.result(name, column, protocol))]
        runs = [run.path for result in cells for run in result.runs[:1]]
        if runs:
            yield ending, plot_accuracies(runs) if kind == "clients" else OF_A_RUN[kind](runs[0])


def list_files(recipe: Recipe) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """The endings of a figure's files, each with its column, row (none: all of them) and protocol."""
    kind = recipe.figure.kind if recipe.figure else "lines"
    if kind == "lines":
        yield ".svg", ("", "", "")
        return
    form = ".png" if kind in OF_A_RUN else ".svg"  # a rectangle for each pair of clients would be megabytes of SVG
    for column, row, protocol in product(recipe.columns, [""] if kind == "clients" else recipe.rows, recipe.protocols):
        yield "".join(f"-{part}" for part in (column, row, protocol) if part) + form, (column, row, protocol)


def embed_figures(recipe: Recipe, folder: Path) -> str:
    """Markdown that shows those files of a figure that are in a folder, each with what it is of."""
    shown = []
    for ending, (column, row, protocol) in list_files(recipe):
        titles = (column and recipe.columns[column].title, row and recipe.rows[row].title, protocol)
        about = ", ".join(filter(None, titles))
        path = folder / f"{recipe.name}{ending}"
        if path.exists():
            shown.append((f"\n{about}:\n" if about else "") + f"\n![{recipe.title}]({path.name})\n")
    return "".join(shown)


@dataclass(frozen=True)
class Panel:
    """The lines of one measure, over rounds in one column."""

    measure: Measure
    where: str  # the column's title; empty: columns are along the axis
    rows: Rows

    @property
    def places(self) -> list[float]:
        """Where there are numbers, along the axis."""
        return sorted({float(str(row["x"])) for row in self.rows})

    @property
    def heights(self) -> Spec:
        """The scale of numbers: those that differ by less than the measure forgives do not fill the panel."""
        ends = [float(str(row[end])) for row in self.rows for end in ("low", "high")]
        low, high, least = min(ends), max(ends), self.measure.least
        if high - low < 2 * least:
            return {"zero": False, "domain": [digits(low - least), digits(high + least)]}
        if low == 0:  # else an axis of shares would begin below 0
            return {"zero": True}
        return {"zero": False, "padding": MARGIN}

    @property
    def widths(self) -> Spec:
        """The scale of the axis: by powers where each place is a multiple of the one before, or one line is far longer
        than most.
        """
        places = self.places
        ratios = [after / before for before, after in pairwise(places)] if places[0] > 0 else []
        is_by_powers = len(ratios) > 3 and max(ratios) < 1.01 * min(ratios)
        is_log = is_by_powers or 0 < LONG * median(self.ends) < places[-1]
        return {"nice": False, "padding": MARGIN} | ({"type": "log"} if is_log else {"zero": False})

    @property
    def ends(self) -> list[float]:
        """Where each line ends on the axis."""
        found: dict[object, float] = {}
        for row in self.rows:
            found[row["line"]] = max(float(str(row["x"])), found.get(row["line"], -inf))
        return list(found.values())


def draw_panels(outcome: Outcome) -> Chart | None:
    """A panel for each measure, over rounds also for each column, with a line for each row and protocol."""
    panels = list(list_panels(outcome))
    stacked = len(panels) > 2
    beside = 0 if stacked else len(panels) - 1  # the legend, which is that of all panels
    specs = [line_panel(outcome, panel, f"points{at}", at == beside) for at, panel in enumerate(panels)]
    tables = {f"points{at}": panel.rows for at, panel in enumerate(panels)}
    return Chart(tuple(specs), tables, stacked=stacked) if specs else None


def list_panels(outcome: Outcome) -> Iterator[Panel]:
    """The panels of a figure that have numbers."""
    columns = outcome.recipe.columns
    groups = [("", list(columns))] if outcome.is_along_columns else [(c.title, [name]) for name, c in columns.items()]
    for measure, (where, group) in product(outcome.recipe.measures, groups):
        if rows := list(point_rows(outcome, group, measure)):
            yield Panel(MEASURES[measure], where, rows)


def point_rows(outcome: Outcome, columns: Sequence[str], measure: str) -> Iterator[dict[str, object]]:
    """One row for each point of a line: its place, its mean, and the mean less and plus one standard deviation, which
    does not go below 0 where no number does.
    """
    for result in outcome.results:
        if result.cell.column.name not in columns or not result.numbers:
            continue
        row, protocol = result.cell.row.title, " = ".join(result.cell.protocols)
        for x, values in points_of(outcome, result, measure):
            spread = stdev(values) if len(values) > 1 else 0.0
            least = 0.0 if min(values) >= 0 else -inf
            low, middle, high = (digits(max(mean(values) + sign * spread, least)) for sign in (-1, 0, 1))
            line = f"{row}, {protocol}"
            yield {"line": line, "row": row, "protocol": protocol, "x": x, "y": middle, "low": low, "high": high}


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


def line_panel(outcome: Outcome, panel: Panel, table: str, has_legend: bool) -> Spec:
    """Lines, with points where they are few, and a band of one standard deviation over seeds.

    Rows have one colour in all panels, protocols one dash.
    """
    axis, title, places = outcome.recipe.figure.x if outcome.recipe.figure else "", panel.measure.title, panel.places
    ticks: Spec = {"values": places, "labelExpr": "datum.value"} if outcome.is_along_columns else {}
    x = number("x", title=axis, axis=ticks | {"labelFlush": False}, scale=panel.widths)
    y = number("y", title=title, scale=panel.heights)
    ran = [result.cell for result in outcome.results if result.numbers]
    colour = color_rows([cell.row.title for cell in ran]) | ({} if has_legend else {"legend": None})
    look: Spec = {"color": colour, "detail": {"field": "line"}}
    if len(protocols := dict.fromkeys(" = ".join(cell.protocols) for cell in ran)) > 1:
        look["strokeDash"] = tell_apart("protocol", list(protocols), **DASHES)
    tips = show(line="line", x=axis, y=title)
    layers: list[Spec] = [
        {"mark": {"type": "area", "opacity": 0.15},
         "encoding": {"x": x, "y": number("low", scale=panel.heights), "y2": {"field": "high"}, "color": look["color"],
                      "detail": look["detail"]}},
        {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"x": x, "y": y, "tooltip": tips, **look}},
    ]  # fmt: skip
    if len(places) <= MOST_POINTS:  # a layer of their own: as a part of lines they would hide the dashes of the legend
        layers.append({"mark": {"type": "point", "filled": True, "size": 30, "opacity": 1},
                       "encoding": {"x": x, "y": y, "tooltip": tips, "color": look["color"]}})  # fmt: skip
    return {"data": {"name": table}, "title": panel.where, "layer": layers, **LINE}


def color_rows(titles: Sequence[str]) -> Spec:
    """A colour for each row; more than the theme's eight where there are more rows."""
    look, rows = tell_apart("row", titles), len(set(titles))
    colours = [*COLOURS["light"], *MORE_COLOURS]
    return look | {"scale": {"domain": list(dict.fromkeys(titles)), "range": colours[:rows]}} if rows > 8 else look


def tell_apart(field: str, names: Sequence[str], **looks: object) -> Spec:
    """An encoding by names, in this order, with a legend."""
    legend: Spec = {"orient": "right", "symbolOpacity": 1, "labelLimit": 320, **looks}
    scale: Spec = {"domain": list(dict.fromkeys(names))}
    return {"field": field, "type": "nominal", "title": None, "legend": legend, "scale": scale}
