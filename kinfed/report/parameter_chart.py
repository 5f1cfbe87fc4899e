"""The chart of parameters: the main metric against each setting that some runs of one method differ in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kinfed.comparison import mean_and_spread
from kinfed.comparison.outcomes import columns_for
from kinfed.config.toml import shorten_keys
from kinfed.errors import ConfigError
from kinfed.methods import title_of
from kinfed.report.method_charts import Runs, as_series
from kinfed.report.series import Series, is_scored_on_training, settings_of
from kinfed.report.vega import Chart, Spec, digits, number, show

DECADE = 10  # from this ratio of the largest to the smallest on, an axis is logarithmic
MOST = 6  # parameters
OTHERS = ("method", "rounds", "data.selection")  # settings that are no parameters of a method


@dataclass(frozen=True)
class ParameterPoint:
    """What came of one choice of parameters."""

    name: str
    method: str
    settings: Mapping[str, object]  # dotted key -> value
    mean: float | None  # over seeds
    spread: float | None
    seeds: int
    is_selected: bool = False

    @property
    def is_measured(self) -> bool:
        return self.mean is not None and self.mean == self.mean


def plot_parameters(runs: Runs) -> Chart:
    """The main metric against each parameter that runs of one method differ in: means over seeds ± one sd."""
    series = as_series(runs)
    keys = find_parameters(series)
    if not keys:
        raise ConfigError("no two runs of one method differ in their settings: there is no parameter to plot against")
    column = columns_for([outcome for one in series for outcome in one.outcomes])[0]
    points = [
        ParameterPoint(one.name, one.runs[0].method, {key: settings_of(one.runs[0]).get(key) for key in keys},
                       *mean_and_spread(column, one.outcomes), len(one.runs))
        for one in series
    ]  # fmt: skip
    return plot_points(points, f"{'validation ' * is_scored_on_training(series)}{column.title}")


def find_parameters(series: Sequence[Series]) -> list[str]:
    """The settings that differ between series of one method, a few at most."""
    found: dict[str, None] = {}
    for method in dict.fromkeys(one.runs[0].method for one in series):
        settings = [settings_of(one.runs[0]) for one in series if one.runs[0].method == method]
        keys = dict.fromkeys(key for some in settings for key in some if key not in OTHERS)
        found |= {key: None for key in keys if len({repr(some.get(key)) for some in settings}) > 1}
    return list(found)[:MOST]


def plot_points(points: Sequence[ParameterPoint], metric: str, *, joined: bool = True) -> Chart:
    """One panel a parameter: means over seeds ± one standard deviation; points that were selected stand out."""
    keys = list(dict.fromkeys(key for point in points for key in point.settings))
    numeric = [key for key in keys if key != "method"] or keys
    rows = [row_of(point, keys) for point in points if point.is_measured]
    return Chart(tuple(make_panel(points, metric, key, joined) for key in numeric), {"points": rows}, points)


def row_of(point: ParameterPoint, keys: Sequence[str]) -> dict[str, object]:
    """A point of the chart."""
    mean, spread = point.mean or 0.0, point.spread or 0.0
    settings = {field_of(keys, key): point.settings.get(key) for key in keys}
    return {
        "name": point.name, "method": title_of(point.method), "mean": digits(mean), "low": digits(mean - spread),
        "high": digits(mean + spread), "seeds": point.seeds, "selected": "selected" if point.is_selected else "other",
        **settings,
    }  # fmt: skip


def field_of(keys: Sequence[str], key: str) -> str:
    """The name of a parameter in the chart's table: dots would be paths there."""
    return f"p{keys.index(key)}"


def make_panel(points: Sequence[ParameterPoint], metric: str, key: str, joined: bool) -> Spec:
    """The metric against one parameter; colours are the other one's values, or methods."""
    keys = list(dict.fromkeys(each for point in points for each in point.settings))
    short, x, color = shorten_keys(keys), make_axis(points, keys, key), make_colour(points, keys, key)
    y = number("mean", title=metric, scale={"zero": False})
    tips = show(name="settings", mean=metric, low="- 1 sd", high="+ 1 sd", seeds="seeds")
    line: Spec = {"mark": {"type": "line", "strokeWidth": 1.6}, "encoding": {"x": x, "y": y, **color}}
    ends: Spec = {"y": number("low", title=metric, scale={"zero": False}), "y2": {"field": "high"}}
    bars: Spec = {"mark": "rule", "encoding": {"x": x, **ends, **color}}
    size: Spec = {"condition": {"test": "datum.selected === 'selected'", "value": 180}, "value": 40}
    marks: Spec = {
        "mark": {"type": "point", "filled": True, "opacity": 1},
        "encoding": {"x": x, "y": y, "size": size, "tooltip": tips, **color},
    }
    chosen = "; the large mark was selected" if any(point.is_selected for point in points) else ""
    layers = [*([line] if joined and len(keys) <= 2 else []), bars, marks]
    return {"title": short[key], "description": f"{metric} against {key}{chosen}", "width": 360, "height": 240,
            "data": {"name": "points"}, "layer": layers}  # fmt: skip


def make_axis(points: Sequence[ParameterPoint], keys: Sequence[str], key: str) -> Spec:
    """The axis of a parameter: numbers, logarithmic over a decade and more, or the values in their order."""
    values = [point.settings[key] for point in points if point.settings.get(key) is not None]
    numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values) or not numbers:
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


def make_colour(points: Sequence[ParameterPoint], keys: Sequence[str], key: str) -> Spec:
    """What colours stand for: methods where there are several, else the values of the one other parameter."""
    if key != "method" and len({point.method for point in points}) > 1:
        return {"color": {"field": "method", "type": "nominal"}}
    others = [other for other in keys if other != key]
    if len(others) != 1:
        return {}
    title = shorten_keys(keys)[others[0]]
    return {
        "color": {"field": field_of(keys, others[0]), "type": "ordinal", "title": title, "scale": {"scheme": "viridis"}}
    }
