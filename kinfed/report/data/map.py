"""The signature map: how a method sees its clients, in the plane (UMAP)."""

import logging
from dataclasses import dataclass

import numpy as np
import torch

from kinfed.runs.reader import Numbers, Run, Whole

log = logging.getLogger("kinfed")
NEIGHBOURS, MIN_DIST, SEED = 15, 0.3, 42
FEW = NEIGHBOURS  # below this all are UMAP's neighbours of each other, and it knows no more than distances say
MOST = 5000  # clients that are shown


@dataclass(frozen=True)
class Map:
    clients: Whole  # [n]
    points: Numbers  # [n, 2] in 0..1, mostly wider than high
    way: str  # how it was projected


def map_of(run: Run) -> Map | None:
    """The map of a run's signatures; None where it wrote none."""
    arrays = run.arrays("signatures")
    if arrays is None or not len(arrays["clients"]):
        return None
    clients, points = arrays["clients"].astype(np.int64), arrays["points"].astype(np.float32)
    if len(clients) > MOST:
        some = np.sort(np.random.default_rng(SEED).choice(len(clients), MOST, replace=False))
        clients, points = clients[some], points[some]
    flat, way = (points.astype(float), "principal directions") if len(points) < FEW else (umap(points), "UMAP")
    return Map(clients, scaled(flat), way)


def umap(points: "np.typing.NDArray[np.float32]") -> Numbers:
    """UMAP's picture of these points: [n, 2]."""
    from kinfed.relatedness.embeddings import project

    log.info("drawing the signature map of %d clients (UMAP)", len(points))
    neighbours = min(NEIGHBOURS, max(4, len(points) // 4))  # groups of few clients would be drawn into one
    return project(torch.from_numpy(points), 2, neighbours, MIN_DIST, SEED).double().numpy()


def first_two(points: Numbers) -> Numbers:
    """The points in their first two principal directions."""
    middle = points - points.mean(0)
    u, s, _ = np.linalg.svd(middle, full_matrices=False)
    both: Numbers = np.pad(u * s, ((0, 0), (0, 2)))[:, :2]
    return both


def scaled(points: Numbers) -> Numbers:
    """The points turned to spread from left to right, both axes by the same factor, in the middle of 0..1."""
    turned = first_two(points)
    low, high = turned.min(0), turned.max(0)
    width = max(float((high - low).max()), 1e-9)
    found: Numbers = (turned - (low + high) / 2) / width + 0.5
    return found
