"""All that a page draws, as JSON: small numbers as whole ones, pictures as base64."""

import base64
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kinfed.report.data.accuracies import spreads
from kinfed.report.data.curves import Curve, curves, shown_metrics
from kinfed.report.data.kinship import Kinship, kinship
from kinfed.report.data.labels import labels_of
from kinfed.report.data.map import map_of
from kinfed.report.data.matrix import matrix_of
from kinfed.report.data.membership import BANDS, flows, membership
from kinfed.report.data.tree import tree_of
from kinfed.report.series import Series
from kinfed.runs.reader import Run

Json = dict[str, object]
ENOUGH = 60_000  # clients of all runs that are shown one by one; of more only each method's first seed is


def payload(series: Sequence[Series]) -> Json:
    """The data of a page."""
    return {
        "series": [{"name": one.name, "seeds": one.seeds} for one in series],
        "metrics": [
            {"name": m.name, "title": m.title, "unit": m.unit, "curves": [curve_json(c, series) for c in found]}
            for m in shown_metrics(series)
            if (found := curves(series, m))
        ],
        "spreads": spread_json(series),
        "runs": [run_json(run, at) for at, one in enumerate(series) for run in shown_runs(one, series)],
    }


def shown_runs(one: Series, series: Sequence[Series]) -> Sequence[Run]:
    """The runs of a series that are shown client by client."""
    clients = sum(run.count for other in series for run in other.runs)
    return one.runs if clients <= ENOUGH else one.runs[:1]


def curve_json(curve: Curve, series: Sequence[Series]) -> Json:
    """A curve; without a band if there is one seed."""
    at = [one.name for one in series].index(curve.name)
    parts = {"x": curve.rounds, "mb": curve.megabytes, "y": curve.mean}
    band = {"low": curve.low, "high": curve.high} if curve.seeds > 1 else {}
    return {"series": at, **{name: short(values) for name, values in (parts | band).items()}}


def spread_json(series: Sequence[Series]) -> Json:
    """The histograms of all series."""
    found, names = spreads(series), [one.name for one in series]
    rows = [
        {"series": names.index(s.name), "counts": s.counts.tolist(), "mean": s.mean, "worst": s.worst_decile}
        for s in found
    ]
    return {"edges": found[0].edges.tolist() if found else [], "rows": rows}


def run_json(run: Run, at: int) -> Json:
    """One run, client by client."""
    kin = kinship(run)
    trains = run.labels.sum(1) if run.labels is not None else np.zeros(0, dtype=np.int64)
    return {
        "series": at,
        "seed": run.seed,
        "ended": run.has_ended,
        "roles": roles_json(run),
        "accuracy": [None if np.isnan(a) else round(10_000 * a) for a in run.accuracy],
        "rows": trains.tolist(),
        "names": kin.names,
        "found": None if kin.found is None else kin.found.tolist(),
        "planted": None if kin.planted is None else kin.planted.tolist(),
        "plantedNames": None if run.true_clusters is None else run.true_clusters.tolist(),
        **pictures(run, kin),
    }


def pictures(run: Run, kin: Kinship) -> Json:
    """What was found out about the clients; None for pictures that there are none of."""
    seen, related = map_of(run), matrix_of(run, kin.order)
    labels, bands = labels_of(run, kin.order), membership(run)
    tree = None if kin.found is None else tree_of(run, kin.found)
    return {
        "map": seen and {"clients": seen.clients.tolist(), "xy": short(seen.points.ravel()), "way": seen.way},
        "matrix": related and {
            "before": image(related.before), "after": image(related.after), "edges": related.edges.tolist(),
            "order": related.order.tolist(),
        },
        "tree": tree and {
            "members": tree.members.tolist(), "cut": tree.cut, "colours": tree.colours.tolist(),
            **{name: short(getattr(tree, name)) for name in ("left", "right", "low_left", "low_right", "heights")},
        },
        "labels": labels and {
            "image": image(labels.shares), "count": len(labels.shares), "edges": labels.edges.tolist(),
            "order": labels.order.tolist(),
        },
        "bands": bands and {
            "rounds": bands.rounds.tolist(), "last": bands.last, "flows": flows(bands.clusters),
            "changes": bands.changes,
            "small": BANDS,
        },
    }  # fmt: skip


def roles_json(run: Run) -> Json:
    """Roles as a list of words and each client's place in it."""
    words = sorted(set(run.roles))
    return {"words": words, "of": [words.index(role) for role in run.roles]}


def short(values: npt.NDArray[np.float64]) -> list[float]:
    """Numbers with five significant digits, which is more than a screen shows."""
    return [float(f"{value:.5g}") for value in values]


def image(shares: npt.NDArray[np.float64]) -> str:
    """Shares from 0 to 1 as bytes in base64."""
    return base64.b64encode(np.round(255 * shares.clip(0, 1)).astype(np.uint8).tobytes()).decode()
