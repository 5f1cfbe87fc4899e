"""Figures of several methods side by side: curves, cost, accuracies of clients."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kinfed.report.data.accuracies import Spread, spreads
from kinfed.report.data.curves import Curve, Metric, curves, metric_named
from kinfed.report.figures.canvas import INK, blank, colour, dash
from kinfed.report.series import Series, gather
from kinfed.runs.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Runs = Iterable[Run | Path | str] | Sequence[Series]


def plot_convergence(runs: Runs, metric: str = "accuracy") -> "tuple[Figure, list[Curve]]":
    """A metric over rounds, a band of one standard deviation over seeds around each mean."""
    return drawn(runs, metric_named(metric), "round")


def plot_cost(runs: Runs, metric: str = "accuracy") -> "tuple[Figure, list[Curve]]":
    """A metric over the megabytes moved both ways."""
    return drawn(runs, metric_named(metric), "MB moved both ways")


def plot_accuracies(runs: Runs) -> "tuple[Figure, list[Spread]]":
    """A histogram of the clients' accuracies for each method, with their mean and their worst decile."""
    series = as_series(runs)
    found = spreads(series)
    figure, axes = blank(6.4, 0.6 + 1.1 * len(found), rows=len(found))
    for axis, one in zip(axes, found, strict=True):
        place = [other.name for other in series].index(one.name)
        axis.bar(one.edges[:-1], one.counts / one.counts.sum(), one.edges[1] - one.edges[0], align="edge",
                 color=colour(place), edgecolor="white")  # fmt: skip
        axis.axvline(one.mean, color=INK, linewidth=1.2)
        axis.axvline(one.worst_decile, color=INK, linewidth=1.2, linestyle="--")
        axis.set_title(one.name, loc="left", fontsize=10)
        axis.set_title(f"worst decile {one.worst_decile:.1f} · mean {one.mean:.1f} %", loc="right", fontsize=9)
        axis.set_yticks([])
        axis.sharex(axes[0])
        axis.tick_params(labelbottom=axis is axes[-1])
    axes[-1].set_xlabel("accuracy of a client, %")
    return figure, found


def as_series(runs: Runs) -> list[Series]:
    """The runs, folders or series as series."""
    given = list(runs)
    return [one for one in given if isinstance(one, Series)] or gather(
        one for one in given if not isinstance(one, Series)
    )


def drawn(runs: Runs, metric: Metric, along: str) -> "tuple[Figure, list[Curve]]":
    series = as_series(runs)
    found = curves(series, metric)
    figure, (axis,) = blank(6.4, 3.8)
    for curve in found:
        draw_curve(axis, curve, [one.name for one in series].index(curve.name), along)
    axis.set_xlabel(along)
    axis.set_ylabel(f"{metric.title}, {metric.unit}" if metric.unit else metric.title)
    axis.grid(axis="y", color="#ecede8")
    axis.set_axisbelow(True)
    if found:
        axis.legend(frameon=False, fontsize=9)
    return figure, found


def draw_curve(axis: "Axes", curve: Curve, place: int, along: str) -> None:
    """A curve and its band; a point for a method that moves nothing."""
    x = curve.rounds if along == "round" else curve.megabytes
    if x[0] == x[-1]:
        axis.plot(x[-1:], curve.mean[-1:], "o", color=colour(place), label=curve.name)
        return
    axis.plot(x, curve.mean, dash(place), color=colour(place), label=curve.name, linewidth=1.8)
    if curve.seeds > 1:
        axis.fill_between(x, curve.low, curve.high, color=colour(place), alpha=0.16, linewidth=0)
