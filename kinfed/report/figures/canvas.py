"""What all figures share: the one file that imports matplotlib, its colours, its plain axes."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kinfed.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which people with colour-blindness tell apart; black and yellow are toned down.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b8568f", "#c98500", "#3a9bd9", "#4d4d4d", "#a89a00")
MARKS, DASHES = ("o", "s", "^", "D", "v", "h"), ("-", "--", ":", "-.")
FAINT, INK = "#8b929a", "#1d2125"
RAMP = ("#f1f3f4", "#0b4f7d")


def blank(width: float, height: float, columns: int = 1, rows: int = 1) -> "tuple[Figure, list[Axes]]":
    """A figure of this size in inches and its axes, which belong to no window."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "figures need the package matplotlib: install it with pip install 'kinfed[report]'; the page does without"
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = [axis for row in figure.subplots(rows, columns, squeeze=False) for axis in row]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=9)
    return figure, axes


def colour(index: int) -> str:
    """The colour of the n-th series or group; grey for none (-1)."""
    return FAINT if index < 0 else COLOURS[index % len(COLOURS)]


def mark(index: int) -> str:
    """The shape of the n-th group: other ones once all colours are taken."""
    return "o" if index < 0 else MARKS[index // len(COLOURS) % len(MARKS)]


def dash(index: int) -> str:
    return DASHES[index // len(COLOURS) % len(DASHES)]


def sequential() -> "Colormap":
    """From the paper's colour to dark blue."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("kinfed", RAMP)


def in_whole_numbers(axis: "Axes") -> None:
    """Both axes count something: no half clients, no half rounds."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axis.yaxis.set_major_locator(MaxNLocator("auto", integer=True))


def strip(axis: "Axes", clusters: Iterable[int], at: float, thick: float) -> None:
    """A strip of the groups' colours along x, one for each place."""
    clusters = list(clusters)
    axis.bar(
        range(len(clusters)),
        thick,
        1.0,
        at,
        color=[colour(cluster) for cluster in clusters],
        linewidth=0,
        clip_on=False,
    )


def save(figure: "Figure", path: Path) -> None:
    """Writes a figure; the kind of file is in the name."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "kinfed"}):
        figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)
