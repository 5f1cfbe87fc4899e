"""Whether the arrays in a run's folder fit its clients: neighbours, the tree, signatures, confusion."""

import numpy as np
import numpy.typing as npt

from kinfed.files import Arrays


def fits_neighbours(arrays: Arrays, clients: int) -> bool:
    """Whether arrays are those of relatedness.npz."""
    sets = arrays["sets"] if "sets" in arrays else arrays["related"]
    set_of = arrays["set_of"] if "sets" in arrays else np.arange(len(sets))
    return sets.ndim == 2 and sets.shape[1] == len(set_of) == clients and are_within(set_of, len(sets))


def fits_tree(arrays: Arrays, clients: int) -> bool:
    """Whether arrays are those of tree.npz."""
    members, merges = arrays["members"], arrays["merges"]
    if not are_within(members, clients) or len(np.unique(members)) < len(members) or arrays["height"].ndim:
        return False
    if merges.shape != (len(members) - 1, 4) or not np.isfinite(merges).all():
        return False
    from scipy.cluster.hierarchy import is_valid_linkage  # seconds: not for every command

    return not len(merges) or bool(is_valid_linkage(merges.astype(np.float64)))


def fits_points(arrays: Arrays, clients: int) -> bool:
    """Whether arrays are those of signatures.npz."""
    points = arrays["points"]
    return points.ndim == 2 and points.shape[1] > 0 and bool(np.isfinite(points).all()) and (
        len(points) == len(arrays["clients"]) and are_within(arrays["clients"], clients)
    )  # fmt: skip


def are_within(numbers: npt.NDArray[np.generic], count: int) -> bool:
    """Whether these are whole numbers 0..count - 1, one after the other."""
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        return False
    return not len(numbers) or 0 <= int(numbers.astype(np.int64).min()) <= int(numbers.astype(np.int64).max()) < count


def fits_confusion(arrays: Arrays, clients: int) -> bool:
    """Whether arrays are those of confusion.npz."""
    clusters, counts = arrays["clusters"], arrays["counts"]
    has_kinds = clusters.dtype.kind in "iu" and counts.dtype.kind in "iu" and clusters.ndim == 1 and counts.ndim == 3
    are_paired = has_kinds and len(clusters) == len(counts) > 0 and counts.shape[2] - counts.shape[1] in (0, 1)
    return are_paired and counts.min() >= 0


FITS = {
    "relatedness": fits_neighbours, "tree": fits_tree, "signatures": fits_points, "confusion": fits_confusion,
}  # fmt: skip
