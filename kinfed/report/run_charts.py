"""Charts of one run: what its method found out about the clients."""

import json
from typing import TypeVar

import numpy as np

from kinfed.errors import ConfigError
from kinfed.report.cluster_order import BANDS, Membership, color_clusters, membership_of
from kinfed.report.method_charts import LINE, round_axis, spread_apart
from kinfed.report.run_views import ClusterCurves, Tree, curves_of, map_of, tree_of
from kinfed.report.series import Place, change_rounds, folder_of
from kinfed.report.vega import BESIDE, CLUSTERS, FAINT, SHAPES, Chart, Rows, Spec, digits, mark_line, number, show
from kinfed.runs.reader import Run
from kinfed.runs.run_tables import Numbers, Whole

T = TypeVar("T")
NONE = "none"
LEGEND = 24  # clusters in a legend
CURVES = 340  # pixels, the height of curves
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
    rounds = round_axis(int(bands.rounds[0]), max(bands.last, int(bands.rounds[-1])) + 1)
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


def plot_cluster_curves(run: Place) -> Chart:
    """The mean of the main metric over the clients of each found cluster, over rounds."""
    run = as_run(run)
    coloring = color_clusters(run)
    found = None if coloring.found is None else curves_of(run, coloring.found, LEGEND)
    curves = require(found, run, "clusters whose clients were scored")
    names = color_domain(coloring.found, run.found)
    metric = run.metric
    rounds = round_axis(int(curves.rounds[0]), int(curves.rounds[-1]))
    x = number("round", axis=rounds, scale={"zero": False, "nice": False})
    y = number("y", title=f"Mean {metric.column}", scale={"zero": False})
    color = cluster_color(names, "cluster", cluster_legend(names, "cluster"))
    tips = show(cluster="cluster", clients="clients", round="round", y=metric.column)
    line: Spec = {"x": x, "y": y, "color": color}
    layers: list[Spec] = [
        {"mark": {"type": "line", "strokeWidth": 2}, "encoding": line},
        {"mark": {"type": "point", "filled": True, "size": 45}, "encoding": line | {"tooltip": tips}},
        {"name": "ends", "data": {"name": "ends"}, "encoding": line | {"text": {"field": "said"}},
         "mark": {"type": "text", "align": "left", "dx": 8, "baseline": "middle", "limit": BESIDE}},
    ]  # fmt: skip
    panel: Spec = {
        "description": f"{metric.title} of {len(curves.colours)} clusters by round", "width": 640, "height": CURVES,
        "data": {"name": "curves"}, "layer": layers,
    }  # fmt: skip
    return Chart(
        (panel,),
        {"curves": cluster_rows(curves, names, metric.scale), "ends": name_clusters(curves, names, metric.scale)},
        curves,
    )


def cluster_rows(curves: ClusterCurves, names: list[str], scale: float) -> Rows:
    """One row a cluster and evaluated round."""
    return [
        {"cluster": names[colour], "clients": int(size), "round": int(round), "y": digits(scale * value)}
        for colour, size, values in zip(curves.colours, curves.sizes, curves.means, strict=True)
        for round, value in zip(curves.rounds, values, strict=True)
        if not np.isnan(value)
    ]


def name_clusters(curves: ClusterCurves, names: list[str], scale: float) -> Rows:
    """Where the name of each cluster stands, at the end of its curve."""
    if len(curves.colours) > CURVES // LINE:
        return []
    ends = scale * curves.means[:, -1]
    places = spread_apart(ends, scale * float(np.nanmin(curves.means)), scale * float(np.nanmax(curves.means)) + 1e-9)
    last = int(curves.rounds[-1])
    said = [
        f"{names[colour]}: {size} client{'s' * (size > 1)}"
        for colour, size in zip(curves.colours, curves.sizes, strict=True)
    ]
    rows = zip(curves.colours, said, places.tolist(), strict=True)
    return [
        {"cluster": names[colour], "said": words, "round": last, "y": digits(y)} for colour, words, y in rows if y == y
    ]


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
    cut = [] if tree.cut is None else [mark_line({"y": {"datum": tree.cut}}, [6, 4])]
    count = len(set(tree.clusters.tolist()))
    words = "no cut: one cluster" if tree.cut is None else f"cut at {tree.cut:.4g}: {count} clusters"
    return {
        "title": {"text": words, "fontWeight": "normal", "fontSize": 12}, "layer": [*layers, *cut],
        "description": f"Dendrogram of {len(tree.members)} clients, {words}", "width": 640, "height": 300,
    }  # fmt: skip


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
    row: dict[str, object] = {
        "client": run.name_client(client) if run.client_names else client,
        "role": run.roles[client],
    }
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
    return {
        "condition": grey,
        "field": field,
        "type": "nominal",
        "scale": {"domain": domain, "range": CLUSTERS},
        "legend": legend,
    }


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
