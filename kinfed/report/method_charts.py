"""Charts of methods side by side: curves, cost, accuracies of clients."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

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
from kinfed.report.vega import DASHES, FAINT, Chart, Rows, Spec, digits, mark_line, number, show

Runs = Iterable[Place] | Sequence[Series] | Place


def plot_convergence(runs: Runs, metric: str = "") -> Chart:
    """A metric, else the main one, over rounds, a band of one standard deviation over seeds around each mean."""
    series = as_series(runs)
    of = metric_named(metric, series)
    found = curves(series, of)
    x = number("x", title="round", axis={"tickMinStep": 1, "grid": False, "format": "d"}, scale=from_first(found))
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
    return Chart((add_layer(panel, pointer),), {"curves": rows, "rounds": round_rows(found, of)}, found)


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
    panel = curve_panel(series, found, of, x, "megabytes", has_points=still)
    return Chart((add_layer(panel, points),), {"curves": curve_rows(found, of)}, found)


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
    band: Spec = {"x": x, "y": low, "y2": {"field": "high"}, "color": color, "opacity": highlight(0.16)}
    curve: Spec = {"x": x, "y": y, "color": color, "opacity": opacity}
    layers: list[Spec] = [
        {"mark": "area", "transform": [{"filter": "datum.low < datum.high"}], "encoding": band},
        {"mark": {"type": "line", "strokeWidth": 2}, "params": [legend], "encoding": curve | series_dash(series)},
        {"mark": {"type": "point", "filled": True, "size": 70}, "transform": [{"filter": "datum.still"}],
         "encoding": curve},
    ]  # fmt: skip
    has_band = any(one.seeds > 1 for one in found)
    kept = [layer for layer, wanted in zip(layers, (has_band, True, has_points), strict=True) if wanted]
    size: Spec = {"width": 640, "height": 340, "data": {"name": "curves"}}
    return size | {"description": f"{metric.title} by {along}: {ends}", "layer": kept}


def add_layer(panel: Spec, layer: Spec) -> Spec:
    """The panel with one more layer on top."""
    layers = panel["layer"]
    return panel | {"layer": [*(layers if isinstance(layers, list) else []), layer]}


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
