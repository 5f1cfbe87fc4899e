"""Charts of methods side by side: curves, cost, accuracies of clients."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from kinfed.quality import Metric
from kinfed.report.series import (
    Curve,
    OnDisk,
    Place,
    Series,
    Spread,
    change_rounds,
    curves,
    gather,
    main_metric,
    metric_named,
    spreads,
)
from kinfed.report.vega import BESIDE, DASHES, FAINT, Chart, Rows, Spec, digits, mark_line, number, show
from kinfed.runs.run_tables import Numbers

FEW_ROUNDS = 10  # of which an axis names each
HEIGHT, LINE = 340, 15  # pixels: of curves, and of a name beside them
Runs = Iterable[Place] | Sequence[Series] | Place


def plot_convergence(runs: Runs, metric: str = "") -> Chart:
    """A metric, else the main one, over rounds, a band of one standard deviation over seeds around each mean."""
    series = as_series(runs)
    of = metric_named(metric, series)
    found = curves(series, of)
    rounds = [int(round) for curve in found for round in curve.rounds] or [1]
    x = number("x", title="round", axis=round_axis(min(rounds), max(rounds)), scale=from_first(found))
    over: Spec = {"type": "point", "fields": ["x"], "on": "pointerover", "clear": "pointerout"}
    chosen: Spec = {"condition": {"param": "round", "empty": False, "value": 0.15}, "value": 0}
    tips = show(x="round", **{f"m{at}": curve.name for at, curve in enumerate(found)})
    pointer: Spec = {
        "data": {"name": "rounds"}, "mark": {"type": "rect", "color": FAINT},
        "params": [{"name": "round", "select": over}],
        "encoding": {"x": x | {"field": "from"}, "x2": {"field": "to"}, "opacity": chosen, "tooltip": tips},
    }  # fmt: skip
    single = {curve.name for curve in found if len(curve.rounds) == 1}
    rows = [row | {"x": row["round"], "still": row["method"] in single} for row in curve_rows(found, of)]
    panel = curve_panel(series, found, of, x, "round", has_points=bool(single))
    for round in sorted({round for one in series for run in one.runs for round in change_rounds(run)}):
        panel = add_layer(panel, mark_line({"x": {"datum": round}}, [3, 3]))
    tables = {"curves": rows, "rounds": round_rows(found, of), "ends": end_rows(found, [c.rounds[-1] for c in found])}
    return Chart((name_ends(add_layer(panel, pointer), series, found, x),), tables, found)


def plot_cost(runs: Runs, metric: str = "") -> Chart:
    """A metric, else the main one, over the megabytes moved both ways."""
    series = as_series(runs)
    of = metric_named(metric, series)
    found = curves(series, of)
    x = number("x", title="MB moved both ways", axis={"grid": False}, scale={"domainMin": 0, "nice": False})
    tips = show(method="method", round="round", x="MB", value=of.title)
    points: Spec = {
        "mark": {"type": "point", "filled": True, "size": 80},
        "encoding": {"x": x, "y": number("y"), "opacity": {"value": 0}, "tooltip": tips},
    }
    still = any(curve.megabytes[0] == curve.megabytes[-1] for curve in found)
    panel = add_layer(curve_panel(series, found, of, x, "megabytes", has_points=still), points)
    tables = {"curves": curve_rows(found, of), "ends": end_rows(found, [curve.megabytes[-1] for curve in found])}
    return Chart((name_ends(panel, series, found, x),), tables, found)


def plot_accuracies(runs: Runs) -> Chart:
    """A histogram of the clients' accuracies for each method, with their mean and their worst decile."""
    series = as_series(runs)
    found = spreads(series)
    top = max((float(one.counts.max() / one.counts.sum()) for one in found), default=1.0)
    panels = [spread_panel(series, one, f"bins{at}", top, one is found[-1]) for at, one in enumerate(found)]
    return Chart(tuple(panels), {f"bins{at}": bin_rows(one) for at, one in enumerate(found)}, found, stacked=True)


def curve_panel(
    series: Sequence[Series], found: Sequence[Curve], metric: Metric, x: Spec, along: str, *, has_points: bool
) -> Spec:
    """Curves with bands; a click on the legend singles out a method."""
    title = f"{metric.title}, {metric.unit}" if metric.unit else metric.title
    y, low = number("y", title=title, scale={"zero": False}), number("low", title=title)
    color, opacity = series_color(series), highlight(1.0)
    ends = ", ".join(f"{curve.name} ends at {curve.mean[-1]:.2f}" for curve in found)
    legend: Spec = {"name": "method", "select": {"type": "point", "fields": ["method"]}, "bind": "legend"}
    wheel, drag = "wheel![event.shiftKey]", "[pointerdown[event.shiftKey], window:pointerup] > window:pointermove!"
    zoom: Spec = {"name": "zoom", "bind": "scales",
                  "select": {"type": "interval", "zoom": wheel, "translate": drag, "clear": "dblclick"}}  # fmt: skip
    band: Spec = {"x": x, "y": low, "y2": {"field": "high"}, "color": color, "opacity": highlight(0.16)}
    curve: Spec = {"x": x, "y": y, "color": color, "opacity": opacity}
    layers: list[Spec] = [
        {"mark": {"type": "area", "clip": True}, "transform": [{"filter": "datum.low < datum.high"}], "encoding": band},
        {"mark": {"type": "line", "strokeWidth": 2, "clip": True}, "params": [legend, zoom],
         "encoding": curve | series_dash(series)},
        {"mark": {"type": "point", "filled": True, "size": 70, "clip": True}, "transform": [{"filter": "datum.still"}],
         "encoding": curve},
    ]  # fmt: skip
    has_band = any(one.seeds > 1 for one in found)
    kept = [layer for layer, wanted in zip(layers, (has_band, True, has_points), strict=True) if wanted]
    size: Spec = {
        "width": 640,
        "height": HEIGHT,
        "data": {"name": "curves"},
        "usermeta": {"zoom": find_closer(found, metric, along)},
    }
    return size | {"description": f"{metric.title} by {along}: {ends}", "layer": kept}


def add_layer(panel: Spec, layer: Spec) -> Spec:
    """The panel with one more layer on top."""
    layers = panel["layer"]
    return panel | {"layer": [*(layers if isinstance(layers, list) else []), layer]}


def name_ends(panel: Spec, series: Sequence[Series], found: Sequence[Curve], x: Spec) -> Spec:
    """The panel with the name of each curve at its end, on top; as it is where there are too many curves."""
    if len(found) > HEIGHT // LINE:
        return panel
    outside: Spec = {"test": "!inrange(datum.y, domain('y'))", "value": 0}  # zoomed away
    words: Spec = {"type": "text", "align": "left", "dx": 7, "baseline": "middle", "fontSize": 12, "limit": BESIDE,
                   "clip": False}  # fmt: skip
    singled: Spec = {"param": "method", "value": 1}
    encoding: Spec = {
        "x": x, "y": number("y"), "text": {"field": "method"}, "color": series_color(series),
        "opacity": {"condition": [outside, singled], "value": 0.12},
    }  # fmt: skip
    layer: Spec = {"name": "ends", "data": {"name": "ends"}, "mark": words, "encoding": encoding}
    return add_layer(panel, layer)


def end_rows(found: Sequence[Curve], ends: Sequence[float]) -> Rows:
    """Where each curve's name stands: at its end, moved up or down where names would lie on each other."""
    places = spread_apart(np.array([curve.mean[-1] for curve in found]), *span_of(found))
    rows = zip(found, ends, places.tolist(), strict=True)
    return [{"method": one.name, "x": digits(x), "y": digits(y)} for one, x, y in rows]


def span_of(found: Sequence[Curve]) -> tuple[float, float]:
    """The least and the greatest value of all curves and bands."""
    low = min((float(curve.low.min()) for curve in found), default=0.0)
    return low, max(max((float(curve.high.max()) for curve in found), default=1.0), low + 1e-9)


def spread_apart(values: Numbers, low: float, high: float) -> Numbers:
    """The values moved as little as it takes to lie a line of text apart from each other, inside low to high."""
    gap, order = (high - low) * LINE / HEIGHT, np.argsort(values, kind="stable")
    steps = gap * np.arange(len(values))
    raised = np.maximum.accumulate(values[order] - steps) + steps  # each above the one before
    top = high - gap * np.arange(len(values))[::-1]
    placed = np.empty_like(values, dtype=float)
    placed[order] = np.minimum(raised, top)
    return placed


def find_closer(found: Sequence[Curve], metric: Metric, along: str) -> Spec:
    """The part of the chart where the better half of the methods ends: the last two thirds of their curves."""
    if not found:
        return {}
    best = sorted(found, key=lambda curve: -metric.gain(float(curve.mean[-1])))[: max(2, -(-len(found) // 2))]
    late = [keep_rounds(curve, len(curve.rounds) // 3) for curve in best]
    along_x = [curve.rounds if along == "round" else curve.megabytes for curve in late]
    low, high = span_of(late)
    room = 0.05 * (high - low)
    x = [digits(min(float(one[0]) for one in along_x)), digits(max(float(one[-1]) for one in along_x))]
    return {"x": x, "y": [digits(low - room), digits(high + room)]} if x[0] < x[1] else {}


def keep_rounds(curve: Curve, first: int) -> Curve:
    """The curve from this evaluation on."""
    names = ("rounds", "megabytes", "mean", "low", "high")
    return replace(curve, **{name: getattr(curve, name)[first:] for name in names})


def curve_rows(found: Sequence[Curve], metric: Metric) -> list[dict[str, object]]:
    """One row a point of a curve, along megabytes; a curve that does not move there is a point."""
    return [
        {"method": one.name, "x": digits(x), "y": digits(y), "low": digits(low), "high": digits(high), "round": int(at),
         "still": bool(one.megabytes[0] == one.megabytes[-1]), "value": value_text(y, high - y, one, metric)}
        for one in found
        for x, y, low, high, at in zip(one.megabytes, one.mean, one.low, one.high, one.rounds, strict=True)
    ]  # fmt: skip


def round_rows(found: Sequence[Curve], metric: Metric) -> Rows:
    """One row a round: where the pointer is near it, and the value of each method in words."""
    rows: dict[int, dict[str, object]] = {}
    for at, curve in enumerate(found):
        for x, y, high in zip(curve.rounds.tolist(), curve.mean, curve.high, strict=True):
            rows.setdefault(int(x), {"x": int(x)})[f"m{at}"] = value_text(y, high - y, curve, metric)
    rounds = sorted(rows)
    middles = [
        *rounds[:1],
        *((a + b) / 2 for a, b in pairwise(rounds)),
        *rounds[-1:],
    ]  # each round up to the next one's
    return [rows[x] | {"from": low, "to": high} for x, (low, high) in zip(rounds, pairwise(middles), strict=True)]


def value_text(mean: float, spread: float, curve: Curve, metric: Metric) -> str:
    """A value of a curve in words."""
    band = f" ± {spread:.2f}" if curve.seeds > 1 else ""
    return f"{mean:.2f}{band} {metric.unit}".strip()


def round_axis(first: int, last: int) -> Spec:
    """An axis of rounds: of few each is named, for else a tick between two is named as one of them."""
    values: Spec = {"values": list(range(first, last + 1))} if last - first < FEW_ROUNDS else {}
    return {"tickMinStep": 1, "grid": False, "format": "d", **values}


def from_first(found: Sequence[Curve]) -> Spec:
    """A scale of rounds from the first one."""
    return {"domainMin": min((int(curve.rounds[0]) for curve in found), default=1), "nice": False}


def highlight(opacity: float) -> Spec:
    """The opacity of methods; others than the one singled out are faint."""
    return {"condition": {"param": "method", "value": opacity}, "value": 0.12 * opacity}


def series_color(series: Sequence[Series]) -> Spec:
    """A method's colour; the legend stands above."""
    names = [one.name for one in series]
    columns = max(1, min(6, 45 // (3 + max(map(len, names), default=0))))  # as a phone has room for
    legend: Spec = {"title": None, "orient": "top", "columns": columns, "symbolOpacity": 1, "symbolType": "circle"}
    return {"field": "method", "type": "nominal", "scale": {"domain": names}, "legend": legend}


def series_dash(series: Sequence[Series]) -> Spec:
    """Dashes where there are more methods than colours."""
    color = series_color(series)
    scale: Spec = {"domain": [one.name for one in series], "range": [DASHES[at // 8 % 4] for at in range(len(series))]}
    return {"strokeDash": color | {"scale": scale}} if len(series) > 8 else {}


def spread_panel(series: Sequence[Series], one: Spread, table: str, top: float, is_last: bool) -> Spec:
    """The histogram of one method; the last one has the axis of all."""
    metric = main_metric(series)
    unit, after = (" %", 1) if metric.unit == "%" else ("", 3)
    axis: Spec | None = (
        {"title": f"{metric.title} of a client{',' * bool(unit)}{unit}", "grid": False} if is_last else None
    )
    most = 100.0 if unit else float(one.edges[-1])
    lines = ((one.mean, [1, 0]), (one.worst_decile, [3, 3]))
    bars: Spec = {
        "x": number("from", scale={"domain": [float(one.edges[0]), most], "nice": False}, axis=axis),
        "x2": {"field": "to"}, "y": number("share", scale={"domain": [0, top]}, axis=None), "y2": {"datum": 0},
        "color": {"datum": one.name, "scale": {"domain": [other.name for other in series]}, "legend": None},
        "tooltip": show(**{"from": f"from{unit}", "to": f"to{unit}", "clients": "clients"}),
    }  # fmt: skip
    ends = f"worst decile {one.worst_decile:.{after}f}{unit}, mean {one.mean:.{after}f}{unit}"
    said = f"{metric.title} of {one.counts.sum()} clients with {one.name}"
    return {
        "title": {"text": one.name, "subtitle": ends},
        "description": said, "width": 640, "height": 60,
        "layer": [
            {"data": {"name": table}, "mark": "rect", "encoding": bars},
            *(mark_line({"x": {"datum": value}}, dash) for value, dash in lines),
        ],
    }  # fmt: skip


def bin_rows(one: Spread) -> Rows:
    """One row a bin that has clients."""
    bins = zip(one.edges[:-1].tolist(), one.edges[1:].tolist(), one.counts.tolist(), strict=True)
    whole = int(one.counts.sum())
    return [{"from": low, "to": high, "clients": n, "share": digits(n / whole)} for low, high, n in bins if n]


def as_series(runs: Runs) -> list[Series]:
    """The runs, folders or series as series."""
    given = [runs] if isinstance(runs, OnDisk | Path | str) else list(runs)
    found = [one for one in given if isinstance(one, Series)]
    return found or gather(one for one in given if not isinstance(one, Series))
