"""The chart of a sweep: the main metric on validation samples against each parameter."""

from collections.abc import Sequence

from kinfed.comparison import mean_and_spread
from kinfed.methods import title_of
from kinfed.report.vega import Chart, Spec, digits, number, show
from kinfed.sweeps.space import shorten_keys
from kinfed.sweeps.sweep_folder import Sweep, Tried

DECADE = 10  # from this ratio of the largest to the smallest on, an axis is logarithmic


def plot_parameters(sweep: Sweep) -> Chart:
    """One panel a parameter: mean over seeds ± one standard deviation; the points that were selected stand out."""
    keys = list(dict.fromkeys(key for tried in sweep.tried for key in tried.point))
    numeric = [key for key in keys if key != "method"] or keys
    rows = [row for tried in sweep.tried if (row := row_of(sweep, tried, keys))]
    panels = [make_panel(sweep, keys, key) for key in numeric]
    return Chart(tuple(panels), {"points": rows}, sweep.tried)


def row_of(sweep: Sweep, tried: Tried, keys: Sequence[str]) -> dict[str, object]:
    """A point of the chart; empty where no run of it has ended."""
    mean, spread = mean_and_spread(sweep.column, tried.outcomes)
    if mean is None or mean != mean:
        return {}
    low, high = mean - (spread or 0), mean + (spread or 0)
    chosen = tried.name in {each.name for each in sweep.selected}
    settings = {field_of(keys, key): tried.point.get(key) for key in keys}
    return {
        "name": tried.name, "method": title_of(tried.config.method), "mean": digits(mean), "low": digits(low),
        "high": digits(high), "seeds": len(tried.runs), "selected": "selected" if chosen else "other", **settings,
    }  # fmt: skip


def field_of(keys: Sequence[str], key: str) -> str:
    """The name of a parameter in the chart's table: dots would be paths there."""
    return f"p{keys.index(key)}"


def make_panel(sweep: Sweep, keys: Sequence[str], key: str) -> Spec:
    """The metric against one parameter; colours are the other one's values, or methods."""
    short, x = shorten_keys(keys), make_axis(sweep, keys, key)
    y = number("mean", title=f"validation {sweep.column.title}", scale={"zero": False})
    color = make_colour(keys, key)
    joined = len(keys) <= 2 and not sweep.definition.draws
    tips = show(name="settings", mean=sweep.column.title, low="- 1 sd", high="+ 1 sd", seeds="seeds")
    line: Spec = {"mark": {"type": "line", "strokeWidth": 1.6}, "encoding": {"x": x, "y": y, **color}}
    bars: Spec = {
        "mark": "rule",
        "encoding": {
            "x": x,
            "y": number("low", title=y["title"], scale={"zero": False}),
            "y2": {"field": "high"},
            **color,
        },
    }
    size: Spec = {"field": "selected", "scale": {"domain": ["other", "selected"], "range": [40, 180]}, "legend": None}
    marks: Spec = {
        "mark": {"type": "point", "filled": True, "opacity": 1},
        "encoding": {"x": x, "y": y, "size": size, "tooltip": tips, **color},
    }
    said = f"{sweep.column.title} on validation samples against {key}; the large mark was selected"
    layers = [*([line] if joined else []), bars, marks]
    return {"title": short[key], "description": said, "width": 360, "height": 240, "data": {"name": "points"},
            "layer": layers}  # fmt: skip


def make_axis(sweep: Sweep, keys: Sequence[str], key: str) -> Spec:
    """The axis of a parameter: numbers, logarithmic over a decade and more, or the values in their order."""
    values = [tried.point[key] for tried in sweep.tried if key in tried.point]
    numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values):
        order = list(dict.fromkeys(str(value) for value in values))
        return {"field": field_of(keys, key), "type": "nominal", "title": key, "sort": order}
    is_log = min(numbers) > 0 and max(numbers) >= DECADE * min(numbers)
    scale: Spec = {"type": "log"} if is_log else {"zero": False}
    scale |= {"padding": 16, "nice": False}  # a nice logarithmic axis would begin and end at powers of ten
    whole = "d" if all(number == round(number) for number in numbers) else "~g"
    ticks: Spec = {"grid": False, "format": whole} | (
        {"values": sorted(set(numbers))} if len(set(numbers)) <= 8 else {}
    )
    return number(field_of(keys, key), title=key, scale=scale, axis=ticks)


def make_colour(keys: Sequence[str], key: str) -> Spec:
    """What colours stand for: methods where they are swept, else the values of the one other parameter."""
    if "method" in keys and key != "method":
        return {"color": {"field": "method", "type": "nominal"}}
    others = [other for other in keys if other != key]
    if len(others) != 1:
        return {}
    title = shorten_keys(keys)[others[0]]
    return {
        "color": {"field": field_of(keys, others[0]), "type": "ordinal", "title": title, "scale": {"scheme": "viridis"}}
    }
