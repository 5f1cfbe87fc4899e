"""Charts of one run whose cells are pairs: related clients, their distances, labels of clients, confused classes."""

from collections.abc import Sequence

import numpy as np

from kinfed.report.cluster_order import Coloring, color_clusters
from kinfed.report.run_charts import FRAME, as_run, name_of, require
from kinfed.report.run_views import Confusion, Distances, confusion_of, distances_of, labels_of, matrix_of
from kinfed.report.series import Place
from kinfed.report.vega import CLUSTERS, DISTANCES, FAINT, Chart, Rows, Spec, digits, mark_line, number, show
from kinfed.runs.reader import Run
from kinfed.runs.run_tables import Numbers, Whole

RELATED = "#3b8fc4"
ABOVE = 50  # the tones of related pairs are above it, those of others below


def plot_relatedness(run: Place) -> Chart:
    """How far clients are apart and which are related, in the order in which clients came and by cluster."""
    run = as_run(run)
    coloring = color_clusters(run)
    related = require(matrix_of(run, coloring.order), run, "relatedness.npz: its method relates no clients")
    orders = {
        "in the order clients came": (related.before, related.apart_before, np.arange(run.count)),
        "by cluster": (related.after, related.apart_after, related.order),
    }
    tables: dict[str, Rows] = {}
    panels = []
    for at, (title, (shares, apart, order)) in enumerate(orders.items()):
        cells = f"cells{at}"
        tables[cells], tables[f"strip{at}"] = pair_rows(shares, apart), strip_rows(run, coloring, order, related.edges)
        tables[f"{cells}_places"] = place_rows(order, related.edges)
        tips = {"row_name": "of", "clients": "clients", "share": "related %"}
        tips |= {} if apart is None else {"apart": related.measure}
        panel = heat_panel(cells, (len(shares), len(shares)), tips, strip=f"strip{at}", has_tones=apart is not None)
        words: Spec = {"title": title, "description": f"Related-clients matrix {title}"}
        panels.append(panel | words | {"usermeta": {"square": True}, "width": 400, "height": 400})
    return Chart(tuple(panels), tables, related)


def plot_distances(run: Place) -> Chart:
    """How far pairs of clients are apart, those that are related beside the others, and the cut."""
    run = as_run(run)
    found = require(distances_of(run), run, "distances: neither tree.npz nor signatures.npz")
    counts = f"{found.related.sum():,} of {found.related.sum() + found.others.sum():,} pairs are related"
    words = "no single threshold" if found.cut is None else f"cut at {found.cut:.4g}"
    legend: Spec = {"title": None, "orient": "top", "symbolType": "square"}
    color: Spec = {"field": "pairs", "type": "nominal", "legend": legend,
                   "scale": {"domain": ["related", "not related"], "range": [RELATED, FAINT]}}  # fmt: skip
    bars: Spec = {
        "x": number("from", title=found.measure, scale={"nice": False}, axis={"grid": False}), "x2": {"field": "to"},
        "y": number("low", title="pairs of clients"), "y2": {"field": "high"}, "color": color,
        "tooltip": show(**{"pairs": "pairs", "from": "from", "to": "to", "count": "count"}),
    }  # fmt: skip
    layers: list[Spec] = [{"data": {"name": "bins"}, "mark": "rect", "encoding": bars}]
    layers += [] if found.cut is None else [mark_line({"x": {"datum": found.cut}}, [6, 4])]
    panel: Spec = {
        "title": {"text": f"{counts}; {words}", "fontWeight": "normal", "fontSize": 12}, "layer": layers,
        "description": f"Distances between clients: {counts}, {words}", "width": 640, "height": 200,
    }  # fmt: skip
    return Chart((panel,), {"bins": distance_rows(found)}, found)


def plot_labels(run: Place) -> Chart:
    """Which labels clients hold, clients by cluster."""
    run = as_run(run)
    coloring = color_clusters(run)
    labels = require(labels_of(run, coloring.order), run, "labels.csv")
    names = name_classes(run, len(labels.shares))
    tips = {"row_name": "label", "clients": "clients", "share": "share %"}
    panel = heat_panel("cells", (len(names), len(labels.shares[0])), tips, strip="strip", rows=names, title="label")
    tables = {"cells_places": place_rows(labels.order, labels.edges), "cells_rows": name_rows(names)}
    tables |= {"cells": cell_rows(labels.shares), "strip": strip_rows(run, coloring, labels.order, labels.edges)}
    size: Spec = {"width": 640, "height": round(len(names) * max(6, min(22, 360 / len(names))))}
    words: Spec = {"description": f"Shares of {len(names)} labels among the samples of clients"}
    return Chart((panel | size | words,), tables, labels)


def plot_confusion(run: Place) -> Chart:
    """Which classes are taken for which, on the test samples of all training clients, and of the worst cluster."""
    run = as_run(run)
    found = require(confusion_of(run), run, "confusion.npz: its task has no classes, or too many")
    names = name_classes(run, found.counts.shape[1])
    columns = [*names[: found.counts.shape[1]], "no class"][: found.counts.shape[2]]
    tables: dict[str, Rows] = {}
    panels = []
    for at, (title, counts) in enumerate(views_of(found).items()):
        cells, tips = (
            f"cells{at}",
            {"row_name": "class", "clients": "predicted", "share": "share %", "count": "samples"},
        )
        held = counts.sum(1, keepdims=True)
        tables[cells] = confusion_rows(counts / np.maximum(held, 1), counts)
        tables[f"{cells}_places"], tables[f"{cells}_rows"] = name_rows(columns), name_rows(names)
        panel = heat_panel(cells, counts.shape, tips, rows=names, title="class", columns=columns)
        said = f"{title}: {np.trace(counts) / max(1, counts.sum()):.1%} right"
        words: Spec = {"title": said, "description": f"Confusion matrix, {said}"}
        panels.append(panel | words | {"usermeta": {"square": True}, "width": 400, "height": 400})
    return Chart(tuple(panels), tables, found)


def views_of(found: Confusion) -> dict[str, Whole]:
    """The confusion matrix of all clients and that of the cluster with the least right, by title."""
    views = {"all clients": found.counts.sum(0)}
    if len(found.counts) > 1:
        right = np.trace(found.counts, axis1=1, axis2=2) / np.maximum(1, found.counts.sum((1, 2)))
        at = int(right.argmin())
        views[f"cluster {found.clusters[at]}, the worst"] = found.counts[at]
    return views


def name_classes(run: Run, classes: int) -> list[str]:
    """The names of the classes, else their numbers."""
    return list(run.class_names) if len(run.class_names) >= classes else [str(at) for at in range(classes)]


def heat_panel(
    cells: str, size: Sequence[int], tips: dict[str, str], *, strip: str = "", has_tones: bool = False,
    rows: Sequence[str] = (), columns: Sequence[str] = (), title: str = "",
) -> Spec:  # fmt: skip
    """A table as colours, on demand with the clusters' colours in a strip above, and the names of rows and columns."""
    fields = ["share", *(name for name in ("apart", "count") if name in tips), *(["tone"] if has_tones else [])]
    prepare: list[Spec] = [
        {"flatten": fields},
        {"window": [{"op": "row_number", "as": "column"}], "groupby": ["row"]},
        {"filter": "datum.tone >= 0" if has_tones else "datum.share > 0"},
        {"calculate": "datum.column - 1", "as": "from"},
        {"calculate": "datum.row + 1", "as": "low"},
        name_place(f"{cells}_rows" if rows else f"{cells}_places", "row", "row_name"),
        name_place(f"{cells}_places", "from", "clients"),
    ]
    tones: Spec = {"domain": [0, ABOVE - 1, ABOVE + 1, 100], "range": DISTANCES}
    shade = (
        number("tone", scale=tones, legend=None)
        if has_tones
        else number("share", scale={"domain": [0, 100]}, legend=None)
    )
    side: Spec = {"scale": {"domain": [0, size[1]], "nice": False}, "axis": name_axis(columns, f"predicted {title}")}
    down: Spec = {"scale": {"domain": [size[0], 0], "nice": False}, "axis": name_axis(rows, title)}
    encoding: Spec = {
        "x": number("from", **side), "x2": {"field": "column"}, "y": number("row", **down), "y2": {"field": "low"},
        "fill": shade, "stroke": shade, "tooltip": show(**tips),  # the stroke closes seams between cells
    }  # fmt: skip
    mark: Spec = {"type": "rect", "strokeWidth": 0.7}
    table: Spec = {"data": {"name": cells}, "transform": prepare, "mark": mark, "encoding": encoding}
    return {"view": FRAME, "layer": [table, *([strip_layer(strip, side)] if strip else [])]}


def name_place(table: str, field: str, name: str) -> Spec:
    """Looks up what a row or a column stands for."""
    names: Spec = {"data": {"name": table}, "key": "at", "fields": ["name"]}
    return {"lookup": field, "from": names, "as": [name]}


def name_axis(names: Sequence[str], title: str) -> Spec | None:
    """A tick in the middle of each row or column, as far as there is room; none where they have no names."""
    if not names:
        return None
    ticks = [at + 0.5 for at in range(0, len(names), -(-len(names) // 30))]
    plain: Spec = {"grid": False, "ticks": False, "domain": False, "labelLimit": 110, "labelOverlap": True}
    said = "[" + ",".join(f"'{escape_expression(name)}'" for name in names) + "][floor(datum.value)]"
    return plain | {"values": ticks, "labelExpr": said, "title": title}


def escape_expression(name: str) -> str:
    """A name inside quotes of a Vega expression."""
    return "".join(c if c.isprintable() else " " for c in name).replace("\\", "\\\\").replace("'", "\\'")


def strip_layer(table: str, side: Spec) -> Spec:
    """The clusters' colours above a table."""
    color: Spec = {"condition": {"test": "datum.colour < 0", "value": FAINT}, "field": "colour", "type": "nominal",
                   "scale": {"domain": list(range(8)), "range": CLUSTERS}, "legend": None}  # fmt: skip
    return {
        "data": {"name": table}, "mark": {"type": "rect", "clip": False},
        "encoding": {"x": number("from", **side), "x2": {"field": "to"}, "y": {"value": -9}, "y2": {"value": -3},
                     "color": color, "tooltip": [{"field": "cluster"}]},
    }  # fmt: skip


def cell_rows(shares: Numbers) -> list[dict[str, object]]:
    """One row a row of the table, its shares in percent."""
    return [{"row": at, "share": np.round(100 * row).astype(int).tolist()} for at, row in enumerate(shares)]


def confusion_rows(shares: Numbers, counts: Whole) -> Rows:
    """The shares of a class's samples, and how many samples they are."""
    return [row | {"count": own.tolist()} for row, own in zip(cell_rows(shares), counts, strict=True)]


def pair_rows(shares: Numbers, apart: Numbers | None) -> Rows:
    """The shares of related pairs; where distances are known these too, and a tone: high for related pairs."""
    rows = cell_rows(shares)
    if apart is None:
        return rows
    far, tones = np.nan_to_num(apart, nan=0.0), find_tones(shares >= 0.5, apart)
    return [
        row | {"apart": [digits(d) for d in own.tolist()], "tone": tone.tolist()}
        for row, own, tone in zip(rows, far, tones, strict=True)
    ]


def find_tones(related: "np.typing.NDArray[np.bool_]", apart: Numbers) -> Whole:
    """The tone of each cell, 0 to 100: the nearer the higher, and related ones above the others; -1: not known."""
    tones = np.full(apart.shape, -1, dtype=np.int64)
    for kind, base in ((related, ABOVE + 1), (~related, 0)):
        some = kind & ~np.isnan(apart)
        if some.any():
            near, far = float(apart[some].min()), float(apart[some].max())
            tones[some] = np.round(base + 49 * (far - apart[some]) / max(far - near, 1e-12))
    return tones


def strip_rows(run: Run, coloring: Coloring, order: Whole, edges: Whole) -> Rows:
    """Runs of columns whose first clients are of one cluster; nothing where there are no clusters."""
    if coloring.best is None:
        return []
    names = run.true_clusters if run.found is None else run.found
    colours, first = coloring.best[order[edges[:-1]]], order[edges[:-1]]
    starts = np.flatnonzero(np.diff(colours, prepend=-2))
    ends = np.append(starts[1:], len(colours))
    return [
        {"from": int(a), "to": int(b), "colour": int(colours[a]) % 8 if colours[a] >= 0 else -1,
         "cluster": name_of(names, int(first[a]))}
        for a, b in zip(starts, ends, strict=True)
    ]  # fmt: skip


def place_rows(order: Whole, edges: Whole) -> Rows:
    """What each column stands for: a client, or how many."""
    firsts, lasts = order[edges[:-1]], order[edges[1:] - 1]
    places = enumerate(zip(firsts, lasts, np.diff(edges), strict=True))
    return [{"at": at, "name": f"client {a}" if n == 1 else f"{n} clients, {a} … {b}"} for at, (a, b, n) in places]


def name_rows(names: Sequence[str]) -> Rows:
    """What each row or column stands for."""
    return [{"at": at, "name": name} for at, name in enumerate(names)]


def distance_rows(found: Distances) -> Rows:
    """One row a bin and kind of pairs, the others on top of the related ones."""
    rows: list[dict[str, object]] = []
    for low, high, near, far in zip(found.edges[:-1], found.edges[1:], found.related, found.others, strict=True):
        place = {"from": digits(low), "to": digits(high)}
        near, far = int(near), int(far)
        rows += [place | {"pairs": "related", "low": 0, "high": near, "count": near}] if near else []
        rows += [place | {"pairs": "not related", "low": near, "high": near + far, "count": far}] if far else []
    return rows
