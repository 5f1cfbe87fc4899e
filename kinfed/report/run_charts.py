"""Charts of one run: what its method found out about the clients."""

import json
from typing import TypeVar

import numpy as np

from kinfed.errors import ConfigError
from kinfed.report.cluster_order import BANDS, Coloring, Membership, color_clusters, membership_of
from kinfed.report.run_views import Tree, labels_of, map_of, matrix_of, tree_of
from kinfed.report.series import Place, change_rounds, folder_of
from kinfed.report.vega import FAINT, SHAPES, Chart, Rows, Spec, digits, mark_line, number, show
from kinfed.runs.reader import Numbers, Run, Whole

T = TypeVar("T")
NONE = "none"
LEGEND = 24  # clusters in a legend
SINGLE = 600  # clients that a dendrogram shows one by one
FRAME: Spec = {"stroke": FAINT, "strokeOpacity": 0.4}


def plot_signatures(run: Place) -> Chart:
    """The signature map, by found and by ground-truth cluster."""
    run = as_run(run)
    seen = require(map_of(run), run, "signatures.npz: it has no signatures; see evaluation.signatures")
    coloring = color_clusters(run)
    rows = [
        client_row(run, int(client)) | {"x": round(float(x), 4), "y": round(float(y), 4)}
        for client, (x, y) in zip(seen.clients, seen.points, strict=True)
    ]
    views = [("found", "found cluster", coloring.found, run.found)]
    views += [("true", "ground-truth cluster", coloring.true, run.true_clusters)]
    shown = [view for view in views if view[2] is not None] or views[:1]
    panels = [map_panel(run, seen.projection, seen.points, *view) for view in shown]
    return Chart(tuple(panels), {"clients": rows}, seen)


def map_panel(
    run: Run, projection: str, points: Numbers, field: str, title: str, colours: Whole | None, names: Whole | None
) -> Spec:
    """One view of the signature map."""
    domain = color_domain(colours, names)
    legend = cluster_legend(domain, title)
    shapes: Spec = {"domain": domain, "range": [SHAPES[at // 8 % 6] for at in range(len(domain))]}
    x: Spec = {"scale": {"domain": [-0.04, 1.04], "nice": False}, "axis": None}
    tall = float(np.ptp(points[:, 1])) / 2 + 0.04  # both axes by the same factor, nearly
    y: Spec = {"scale": {"domain": [0.5 - tall, 0.5 + tall], "nice": False}, "axis": None}
    count, height = len(points), round(max(160, 420 * min(1.0, 2 * tall)))
    size = 18 if count > 1500 else 36 if count > 300 else 80
    return {
        "title": f"by {title}", "description": f"Signature map of {count} clients ({projection}) by {title}",
        "data": {"name": "clients"}, "width": 420, "height": height, "view": FRAME,
        "mark": {"type": "point", "filled": True, "opacity": 0.85, "size": size},
        "encoding": {
            "x": number("x", **x), "y": number("y", **y), "tooltip": client_tips(run),
            "shape": {"field": field, "type": "nominal", "legend": legend, "scale": shapes},
            "color": cluster_color(domain, field, legend),
        },
    }  # fmt: skip


def plot_relatedness(run: Place) -> Chart:
    """Which clients are related, in the clients' own order and by cluster."""
    run = as_run(run)
    coloring = color_clusters(run)
    related = require(matrix_of(run, coloring.order), run, "relatedness.npz: its method relates no clients")
    orders = {
        "in the clients' own order": (related.before, np.arange(run.count)),
        "by cluster": (related.after, related.order),
    }
    tables: dict[str, Rows] = {}
    panels = []
    for at, (title, (shares, order)) in enumerate(orders.items()):
        tables[f"cells{at}"], tables[f"strip{at}"] = cell_rows(shares), strip_rows(run, coloring, order, related.edges)
        tables[f"cells{at}_places"] = place_rows(order, related.edges)
        panel = heat_panel(f"cells{at}", len(shares), f"strip{at}")
        words: Spec = {"title": title, "description": f"Related-clients matrix {title}"}
        panels.append(panel | words | {"usermeta": {"square": True}, "width": 400, "height": 400})
    return Chart(tuple(panels), tables, related)


def plot_labels(run: Place) -> Chart:
    """Which labels clients hold, clients by cluster."""
    run = as_run(run)
    coloring = color_clusters(run)
    labels = require(labels_of(run, coloring.order), run, "labels.csv")
    count = len(labels.shares)
    panel = heat_panel("cells", len(labels.shares[0]), "strip", count)
    tables = {"cells_places": place_rows(labels.order, labels.edges)}
    tables |= {"cells": cell_rows(labels.shares), "strip": strip_rows(run, coloring, labels.order, labels.edges)}
    size: Spec = {"width": 640, "height": round(count * max(6, min(22, 360 / count)))}
    words: Spec = {"description": f"Shares of {count} labels among the samples of clients"}
    return Chart((panel | size | words,), tables, labels)


def plot_dendrogram(run: Place) -> Chart:
    """The merges by which clients became clusters, and the cut."""
    run = as_run(run)
    coloring = color_clusters(run)
    found = None if coloring.found is None else tree_of(run, coloring.found)
    tree = require(found, run, "tree.npz: its method does not merge clients")
    domain = color_domain(coloring.found, run.found)
    tables = {"merges": merge_rows(tree, domain), "members": member_rows(run, tree)}
    return Chart((tree_panel(run, tree, domain),), tables, tree)


def plot_membership(run: Place) -> Chart:
    """How many clients are in which cluster, round by round."""
    run = as_run(run)
    bands = require(membership_of(run), run, "several assignments in clusters.csv: clusters were found once, or never")
    domain = [str(name) for name in color_clusters(run).names[:BANDS]]
    last = int(bands.clusters[bands.clusters < BANDS].max(initial=-1))
    domain += [f"ended {at}" for at in range(len(domain), last + 1)]
    rounds: Spec = {"tickMinStep": 1, "grid": False, "format": "d"}
    panel: Spec = {
        "description": f"Clusters over rounds: {bands.changes} changes", "width": 640, "height": 280,
    }  # fmt: skip
    layer: Spec = {
        "data": {"name": "bands"}, "mark": {"type": "rect", "stroke": "white", "strokeWidth": 0.3},
        "encoding": {
            "x": number("from", title="round", axis=rounds, scale={"zero": False, "nice": False}),
            "x2": {"field": "to"},
            "y": number("low", title="clients", scale={"nice": False}), "y2": {"field": "high"},
            "color": cluster_color(domain, "cluster", cluster_legend(domain, "cluster")),
            "tooltip": show(rounds="rounds", cluster="cluster", clients="clients", moved="moved here"),
        },
    }  # fmt: skip
    lines = [mark_line({"x": {"datum": round}}, [3, 3]) for round in change_rounds(run)]
    return Chart(
        (panel | ({"layer": [layer, *lines]} if lines else layer),), {"bands": band_rows(bands, domain)}, bands
    )


def heat_panel(cells: str, columns: int, strip: str, labels: int | None = None) -> Spec:
    """A table of shares as colours, with the clusters' colours in a strip above; rows are labels, or clients."""
    prepare: list[Spec] = [
        {"flatten": ["share"]},
        {"window": [{"op": "row_number", "as": "column"}], "groupby": ["row"]},
        {"filter": "datum.share > 0"},
        {"calculate": "datum.column - 1", "as": "from"},
        {"calculate": "datum.row + 1", "as": "low"},
        *([] if labels else [name_place(cells, "row", "row_name")]),
        name_place(cells, "from", "clients"),
    ]
    shade = number("share", scale={"domain": [0, 100]}, legend=None)
    side: Spec = {"scale": {"domain": [0, columns], "nice": False}, "axis": None}
    down: Spec = {"scale": {"domain": [labels or columns, 0], "nice": False}, "axis": label_axis(labels)}
    encoding: Spec = {
        "x": number("from", **side), "x2": {"field": "column"}, "y": number("row", **down), "y2": {"field": "low"},
        "fill": shade, "stroke": shade,  # the stroke closes seams between cells
        "tooltip": show(**{"row": "label"} if labels else {"row_name": "of"}, clients="clients", share="share %"),
    }  # fmt: skip
    mark: Spec = {"type": "rect", "strokeWidth": 0.7}
    shares: Spec = {"data": {"name": cells}, "transform": prepare, "mark": mark, "encoding": encoding}
    return {"view": FRAME, "layer": [shares, strip_layer(strip, side)]}


def name_place(cells: str, field: str, name: str) -> Spec:
    """Looks up which clients a row or a column stands for."""
    table: Spec = {"data": {"name": f"{cells}_places"}, "key": "at", "fields": ["name"]}
    return {"lookup": field, "from": table, "as": [name]}


def label_axis(labels: int | None) -> Spec | None:
    """A tick in the middle of each label's row, as far as there is room; none where rows are clients."""
    if not labels:
        return None
    ticks = [at + 0.5 for at in range(0, labels, -(-labels // 30))]
    plain: Spec = {"grid": False, "ticks": False, "domain": False}
    return plain | {"values": ticks, "labelExpr": "floor(datum.value)", "title": "label"}


def strip_layer(table: str, side: Spec) -> Spec:
    """The clusters' colours above a table."""
    color: Spec = {"condition": {"test": "datum.colour < 0", "value": FAINT}, "field": "colour", "type": "nominal",
                   "scale": {"domain": list(range(8))}, "legend": None}  # fmt: skip
    return {
        "data": {"name": table}, "mark": {"type": "rect", "clip": False},
        "encoding": {"x": number("from", **side), "x2": {"field": "to"}, "y": {"value": -9}, "y2": {"value": -3},
                     "color": color, "tooltip": [{"field": "cluster"}]},
    }  # fmt: skip


def cell_rows(shares: Numbers) -> Rows:
    """One row a row of the table, its shares in percent."""
    return [{"row": at, "share": np.round(100 * row).astype(int).tolist()} for at, row in enumerate(shares)]


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


def tree_panel(run: Run, tree: Tree, domain: list[str]) -> Spec:
    """Merges as brackets in their cluster's colour, clusters in a strip below, and the cut."""
    x: Spec = {"scale": {"domain": [-0.5, len(tree.members) - 0.5], "nice": False}, "axis": None}
    color, title = cluster_color(domain, "cluster", None), "height of the merge"
    brackets: list[Spec] = [
        {"x": number("left", **x), "y": number("low_left", title=title), "y2": {"field": "height"}, "color": color},
        {"x": number("right", **x), "y": number("low_right", title=title), "y2": {"field": "height"}, "color": color},
        {"x": number("left", **x), "x2": {"field": "right"}, "y": number("height", title=title), "color": color},
    ]
    many = len(tree.members) > SINGLE
    tips = show(found="found cluster", clients="clients") if many else client_tips(run)
    rule: Spec = {"type": "rule", "strokeWidth": 0.7 if many else 1.4}
    members: Spec = {
        "x": number("from", **x), "x2": {"field": "to"}, "y": {"value": 303}, "y2": {"value": 310},
        "color": cluster_color(domain, "found", None), "tooltip": tips,
    }  # fmt: skip
    layers: list[Spec] = [{"data": {"name": "merges"}, "mark": rule, "encoding": each} for each in brackets]
    layers.append({"data": {"name": "members"}, "mark": {"type": "rect", "clip": False}, "encoding": members})
    cut = [] if tree.cut is None else [mark_line({"y": {"datum": cut_height(tree)}}, [6, 4])]
    count = len(set(tree.clusters.tolist()))
    words = "no cut: one cluster" if tree.cut is None else f"cut at {tree.cut:.4g}: {count} clusters"
    return {
        "title": {"text": words, "fontWeight": "normal", "fontSize": 12}, "layer": [*layers, *cut],
        "description": f"Dendrogram of {len(tree.members)} clients, {words}", "width": 640, "height": 300,
    }  # fmt: skip


def cut_height(tree: Tree) -> float:
    """Where the line is drawn: a merge at the cut is not made, so there it is below it."""
    cut = tree.cut or 0.0
    below = max((float(height) for height in tree.heights if height < cut), default=0.0)
    return (below + cut) / 2 if cut in tree.heights.tolist() else cut


def merge_rows(tree: Tree, domain: list[str]) -> Rows:
    """One row a merge."""
    columns = zip(tree.left, tree.right, tree.low_left, tree.low_right, tree.heights, tree.colours, strict=True)
    return [
        {"left": digits(a), "right": digits(b), "low_left": digits(c), "low_right": digits(d), "height": digits(h),
         "cluster": NONE if colour < 0 else domain[colour]}
        for a, b, c, d, h, colour in columns
    ]  # fmt: skip


def member_rows(run: Run, tree: Tree) -> Rows:
    """One row a leaf of the dendrogram; of many, one for neighbouring leaves of one cluster."""
    if len(tree.members) <= SINGLE:
        return [client_row(run, int(c)) | {"from": at - 0.5, "to": at + 0.5} for at, c in enumerate(tree.members)]
    starts = np.flatnonzero(np.diff(tree.clusters, prepend=-2))
    ends = np.append(starts[1:], len(tree.clusters))
    return [
        {"found": name_of(run.found, int(tree.members[a])), "clients": int(b - a), "from": a - 0.5, "to": b - 0.5}
        for a, b in zip(starts.tolist(), ends.tolist(), strict=True)
    ]


def band_rows(bands: Membership, domain: list[str]) -> Rows:
    """One row a cluster and change: the clients it has until the next change, on top of the clusters before it."""
    ends = np.append(bands.rounds[1:], max(bands.last, int(bands.rounds[-1])) + 1)
    rows: list[dict[str, object]] = []
    for at, (first, end) in enumerate(zip(bands.rounds.tolist(), ends.tolist(), strict=True)):
        now, before = bands.clusters[at], bands.clusters[max(0, at - 1)]
        low, when = 0, str(first) if end == first + 1 else f"{first} to {end - 1}"
        for colour in sorted(np.unique(now).tolist(), key=lambda one: (one < 0, one)):
            size, name = (
                int((now == colour).sum()),
                NONE if colour < 0 else "small ones" if colour == BANDS else domain[colour],
            )
            moved = int(((now == colour) & (before != colour)).sum())
            rows.append({"from": first, "to": end, "low": low, "high": low + size, "cluster": name, "clients": size,
                         "moved": moved, "rounds": when})  # fmt: skip
            low += size
    return rows


def client_row(run: Run, client: int) -> dict[str, object]:
    """What a chart tells about a client."""
    row: dict[str, object] = {"client": client, "role": run.roles[client]}
    row |= {} if run.found is None else {"found": name_of(run.found, client)}
    row |= {} if run.true_clusters is None else {"true": name_of(run.true_clusters, client)}
    score = run.metric.scale * float(run.scores[client])
    row |= {} if np.isnan(score) else {"score": round(score, 2 if run.metric.unit == "%" else 4)}
    return row if run.labels is None else row | {"samples": int(run.labels[client].sum())}


def client_tips(run: Run) -> list[Spec]:
    """The fields of a client that pointing at it shows."""
    titles = {"client": "client", "found": "found cluster", "true": "ground-truth cluster", "score": run.metric.column,
              "samples": "training samples", "role": "role"}  # fmt: skip
    missing = {"found": run.found is None, "true": run.true_clusters is None, "samples": run.labels is None}
    return [{"field": name, "title": title} for name, title in titles.items() if not missing.get(name)]


def name_of(clusters: Whole | None, client: int) -> str:
    """The name of a client's cluster."""
    return NONE if clusters is None or clusters[client] < 0 else str(int(clusters[client]))


def color_domain(colours: Whole | None, names: Whole | None) -> list[str]:
    """The names of clusters by colour; colours that no cluster has are named by blanks."""
    if colours is None or names is None:
        return [NONE]
    by_colour = {int(c): str(int(n)) for c, n in zip(colours, names, strict=True) if c >= 0}
    return [by_colour.get(at, " " * (at + 1)) for at in range(max(by_colour, default=-1) + 1)]


def cluster_color(domain: list[str], field: str, legend: Spec | None) -> Spec:
    """The colour of a cluster, grey for none."""
    grey: Spec = {"test": f"indexof({json.dumps(domain)}, datum['{field}']) < 0", "value": FAINT}
    return {"condition": grey, "field": field, "type": "nominal", "scale": {"domain": domain}, "legend": legend}


def cluster_legend(domain: list[str], title: str) -> Spec:
    """The largest clusters, below the chart."""
    values = [name for name in domain if name.strip()][:LEGEND]
    more = len([name for name in domain if name.strip()]) - len(values)
    return {
        "title": f"{title} (and {more} more)" if more else title,
        "values": values,
        "orient": "bottom",
        "columns": 8,
    }


def as_run(run: Place) -> Run:
    """The run at a folder."""
    return run if isinstance(run, Run) else Run(folder_of(run))


def require(found: T | None, run: Run, what: str) -> T:
    """What was found, or an error that says what the run lacks."""
    if found is None:
        raise ConfigError(f"{run.path} has no {what}")
    return found
