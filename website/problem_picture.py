"""The problem in one picture: every client's accuracy with one averaged model, and with one model for each cluster.

python -m website.problem_picture  # runs the demo's FedAvg and FLT, and draws docs/problem.svg
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.sax.saxutils import escape

import numpy as np
from sklearn.datasets import load_digits

import kinfed

PICTURE = Path(__file__).parents[1] / "docs" / "problem.svg"
COLOURS = ("#332288", "#44aa99", "#cc6677", "#999933", "#4a90c2", "#882255", "#117733", "#b8860b")
INK, FAINT, GREY = "#1d2125", "#5c646d", "#8b929a"
WIDTH, HEIGHT, PANEL = 640, 632, 296  # of the picture; from one panel to the one below: a phone shows it at 60 %
BASE, TALL = 244, 112  # where bars stand, and how high 100 % is
BAR, GAP, ROOM = 20, 3, 105  # of a bar, between bars, of a cluster of clients
MODELS = 88  # where models stand


@dataclass(frozen=True)
class Served:
    """What a method gave to its clients: accuracies, and the model that each uses."""

    title: str
    accuracy: Sequence[float]
    model: Sequence[int]

    @property
    def mean(self) -> float:
        return 100 * float(np.mean(self.accuracy))


def run_demo() -> tuple[tuple[Served, Served], list[int], list[list[int]]]:
    """FedAvg's and FLT's outcome on the demo's clients, the ground-truth clusters, and the labels of each cluster."""
    with TemporaryDirectory() as folder:
        runs = [kinfed.run(name, "digits", rounds=30, out=f"{folder}/{name}", quiet=True) for name in ("fedavg", "flt")]
        population = kinfed.make_population(runs[0].config)
        one = Served("One averaged model", runs[0].accuracy, [0] * len(runs[0].accuracy))
        several = Served("One model for each cluster found", runs[1].accuracy, runs[1].clusters or [])
    assert population.true_clusters is not None  # the demo plants them
    truth: list[int] = population.true_clusters.tolist()
    firsts = [truth.index(cluster) for cluster in sorted(set(truth))]  # clients of a cluster have the same labels
    return (one, several), truth, [population.y[population.train[client]].unique().tolist() for client in firsts]


def draw(panels: Sequence[Served], truth: Sequence[int], labels: Sequence[Sequence[int]]) -> str:
    """The picture as SVG."""
    title = " against ".join(f"{panel.title.lower()}: {panel.mean:.0f} % on average" for panel in panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="Helvetica, Arial, sans-serif" font-size="19">',
        f"<title>Accuracy of {len(truth)} clients, {escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
        *draw_symbols({label for own in labels for label in own}),
    ]
    for place, panel in enumerate(panels):
        parts += [f'<g transform="translate(20 {PANEL * place})">', *draw_panel(panel, truth, labels), "</g>"]
    caption = "a bar: one client's accuracy; below: the digits that it has"
    return "\n".join([*parts, write(20, HEIGHT - 14, caption, colour=FAINT), "</svg>\n"])


def draw_panel(panel: Served, truth: Sequence[int], labels: Sequence[Sequence[int]]) -> Iterator[str]:
    """One method: its models, lines to its clients, a bar for each client, and the digits that they have."""
    models = sorted(set(panel.model))
    colours = {model: GREY if len(models) == 1 else COLOURS[model % len(COLOURS)] for model in models}
    yield write(0, 30, panel.title, size=24, weight="bold")
    yield write(0, 58, f"{panel.mean:.0f} % on average, worst client {100 * min(panel.accuracy):.0f} %", colour=FAINT)
    places = place_clients(truth)
    homes = {m: float(np.mean([places[c] for c, used in enumerate(panel.model) if used == m])) for m in models}
    for client, (accuracy, model) in enumerate(zip(panel.accuracy, panel.model, strict=True)):
        top = BASE - TALL * accuracy
        yield line(homes[model], MODELS, places[client], BASE - TALL - 8, colours[model])
        yield box(places[client] - BAR / 2, BASE - TALL, BAR, TALL, "#eef0f1")
        yield box(places[client] - BAR / 2, top, BAR, TALL * accuracy, colours[model])
    for model, x in homes.items():
        yield box(x - 31, MODELS - 14, 62, 28, colours[model], rounded=5)
        yield write(x, MODELS + 6, "model", size=18, colour="#ffffff", middle=True)
    for share in (0, 50, 100):
        yield write(
            middle_of(len(labels)) - ROOM / 2 + 2, BASE - TALL * share / 100 + 6, f"{share} %", size=18, colour=FAINT
        )
    for cluster, own in enumerate(labels):
        yield from draw_labels(own, middle_of(cluster))


def place_clients(truth: Sequence[int]) -> list[float]:
    """The middle of each client's bar: those of a ground-truth cluster stand together."""
    seen: dict[int, int] = {}
    places = []
    for cluster in truth:
        seen[cluster] = seen.get(cluster, -1) + 1
        places.append(middle_of(cluster) + (seen[cluster] - (truth.count(cluster) - 1) / 2) * (BAR + GAP))
    return places


def middle_of(cluster: int) -> float:
    return ROOM / 2 + cluster * (ROOM + 3)


def draw_symbols(labels: set[int]) -> Iterator[str]:
    """One sample of each digit, eight by eight pixels, to be used by name."""
    digits = load_digits()
    yield "<defs>"
    for label in sorted(labels):
        image = digits.images[int(np.flatnonzero(digits.target == label)[0])]
        shades = (range(3, 8), range(8, 13), range(13, 17))
        paths = [
            f'<path fill="{INK}" fill-opacity="{0.3 + 0.35 * depth:.2f}" d="{trace(np.isin(image, list(shade)))}"/>'
            for depth, shade in enumerate(shades)
        ]
        yield f'<symbol id="digit{label}" viewBox="0 0 8 8">{"".join(paths)}</symbol>'
    yield "</defs>"


def trace(mask: np.ndarray) -> str:
    """The pixels of a mask as squares of a path."""
    return "".join(f"M{x} {y}h1v1h-1z" for y, x in np.argwhere(mask).tolist())


def draw_labels(labels: Sequence[int], middle: float) -> Iterator[str]:
    """The digits of a cluster side by side."""
    for place, label in enumerate(labels):
        x = middle + (place - (len(labels) - 1) / 2) * 36
        yield f'<rect x="{x - 16:g}" y="{BASE + 6}" width="32" height="32" fill="#f6f7f7"/>'
        yield f'<use href="#digit{label}" x="{x - 15:g}" y="{BASE + 7}" width="30" height="30"/>'


def write(
    x: float, y: float, text: str, *, size: int = 19, colour: str = INK, weight: str = "normal", middle: bool = False
) -> str:
    anchor = ' text-anchor="middle"' if middle else ""
    font = f'font-size="{size}" font-weight="{weight}" fill="{colour}"'
    return f'<text x="{x:g}" y="{y:g}" {font}{anchor}>{escape(text)}</text>'


def box(x: float, y: float, width: float, height: float, colour: str, rounded: float = 2) -> str:
    return f'<rect x="{x:g}" y="{y:.1f}" width="{width:g}" height="{height:.1f}" rx="{rounded:g}" fill="{colour}"/>'


def line(x: float, y: float, to_x: float, to_y: float, colour: str) -> str:
    return f'<path d="M{x:g} {y:g}L{to_x:g} {to_y:g}" stroke="{colour}" stroke-opacity="0.45" stroke-width="1.2"/>'


if __name__ == "__main__":
    PICTURE.write_text(draw(*run_demo()))
