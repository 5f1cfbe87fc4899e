"""Figures of one run: what its method found out about the clients."""

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from kinfed.errors import ConfigError
from kinfed.report.data.kinship import kinship
from kinfed.report.data.labels import Labels, labels_of
from kinfed.report.data.map import Map, map_of
from kinfed.report.data.matrix import Matrix, matrix_of
from kinfed.report.data.membership import BANDS, Membership, membership
from kinfed.report.data.tree import Tree, tree_of
from kinfed.report.figures.canvas import INK, blank, colour, in_whole_numbers, mark, sequential, strip
from kinfed.runs.reader import Run, Whole

T = TypeVar("T")

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_signatures(run: Run | Path | str) -> "tuple[Figure, Map]":
    """How a method sees its clients in the plane, by found and by planted group."""
    run = as_run(run)
    seen, kin = (
        needed(map_of(run), run, "signatures.npz: it has no signatures; see evaluation.signatures"),
        kinship(run),
    )
    ways = {
        name: clusters for name, clusters in (("found", kin.found), ("planted", kin.planted)) if clusters is not None
    }
    figure, axes = blank(4.2 * max(1, len(ways)), 4.2, columns=max(1, len(ways)))
    for axis, (name, clusters) in zip(axes, ways.items() or [("no", np.full(run.count, -1))], strict=True):
        scatter(axis, seen, clusters)
        axis.set_title(f"by {name} group", fontsize=10)
    return figure, seen


def plot_relatedness(run: Run | Path | str) -> "tuple[Figure, Matrix]":
    """Who is related to whom, in the clients' own order and with kin put together."""
    run = as_run(run)
    related = needed(matrix_of(run, kinship(run).order), run, "relatedness.npz: its method relates no clients")
    figure, axes = blank(8.4, 4.4, columns=2)
    pictures = {"in the clients' own order": related.before, "with kin put together": related.after}
    for axis, (title, picture) in zip(axes, pictures.items(), strict=True):
        axis.imshow(
            picture, cmap=sequential(), vmin=0, vmax=1, extent=(0, run.count, run.count, 0), interpolation="none"
        )
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("clients")
        in_whole_numbers(axis)
    return figure, related


def plot_dendrogram(run: Run | Path | str) -> "tuple[Figure, Tree]":
    """The merges by which clients became groups, and the cut."""
    run = as_run(run)
    clusters = kinship(run).found
    found = None if clusters is None else tree_of(run, clusters)
    tree = needed(found, run, "tree.npz: its method does not merge clients")
    figure, (axis,) = blank(7.2, 3.6)
    draw_brackets(axis, tree)
    if tree.cut is not None:
        axis.axhline(tree.cut, color=colour(1), linestyle="--", linewidth=1.2, label=f"cut at {tree.cut:.4g}")
        axis.legend(frameon=False, fontsize=9)
    axis.set_xticks([])
    axis.set_xlabel("clients")
    axis.set_ylabel("height of the merge")
    return figure, tree


def draw_brackets(axis: "Axes", tree: Tree) -> None:
    """Every merge as a bracket in its group's colour, and the groups in a strip below."""
    width = 1.0 if len(tree.members) < 400 else 0.4
    for cluster in np.unique(tree.colours):
        some = tree.colours == cluster
        xs = np.stack([tree.left, tree.left, tree.right, tree.right])[:, some]
        ys = np.stack([tree.low_left, tree.heights, tree.heights, tree.low_right])[:, some]
        axis.plot(xs, ys, color=INK if cluster < 0 else colour(int(cluster)), linewidth=width)
    top = float(tree.heights.max())
    strip(axis, tree.clusters.tolist(), -0.02 * top, 0.015 * top)


def plot_labels(run: Run | Path | str) -> "tuple[Figure, Labels]":
    """Which labels clients hold, kin together."""
    run = as_run(run)
    kin = kinship(run)
    labels = needed(labels_of(run, kin.order), run, "labels.csv")
    figure, (axis,) = blank(7.2, 1.2 + 0.18 * len(labels.shares))
    axis.imshow(labels.shares, cmap=sequential(), vmin=0, aspect="auto", interpolation="none")
    clusters = kin.planted if kin.found is None else kin.found
    if clusters is not None:
        strip(axis, clusters[labels.order[labels.edges[:-1]]].tolist(), -0.75, -0.03 * len(labels.shares) - 0.2)
    axis.set_xticks([])
    axis.set_xlabel("clients, by group")
    axis.set_ylabel("label")
    return figure, labels


def plot_membership(run: Run | Path | str) -> "tuple[Figure, Membership]":
    """How many clients are in which group, round by round."""
    run = as_run(run)
    bands = needed(membership(run), run, "several groupings in groups.csv: its groups were found once, or never")
    rounds = np.append(bands.rounds, max(bands.last, bands.rounds[-1]) + 1)
    figure, (axis,) = blank(7.2, 3.2)
    names = [*range(BANDS + 1), -1]
    sizes = np.array([(bands.clusters == name).sum(1) for name in names])
    there = sizes.any(1)
    colours = [colour(-1 if names[at] == BANDS else names[at]) for at in np.flatnonzero(there)]
    axis.stackplot(
        rounds, np.hstack([sizes[there], sizes[there][:, -1:]]), colors=colours, step="post", edgecolor="white"
    )
    axis.set_xlim(rounds[0], rounds[-1])
    axis.set_xlabel("round")
    axis.set_ylabel("clients")
    in_whole_numbers(axis)
    return figure, bands


def scatter(axis: "Axes", seen: Map, clusters: Whole) -> None:
    """The clients of a map in their groups' colours and shapes."""
    for cluster in np.unique(clusters[seen.clients]):
        some = seen.points[clusters[seen.clients] == cluster]
        axis.scatter(
            some[:, 0],
            some[:, 1],
            s=26,
            color=colour(int(cluster)),
            marker=mark(int(cluster)),
            edgecolor="white",
            linewidth=0.5,
        )
    axis.set_xticks([])
    axis.set_yticks([])
    axis.set_aspect("equal")


def as_run(run: Run | Path | str) -> Run:
    return run if isinstance(run, Run) else Run(Path(run))


def needed(found: T | None, run: Run, what: str) -> T:
    """What was found, or an error that says what the run lacks."""
    if found is None:
        raise ConfigError(f"{run.path} has no {what}")
    return found
