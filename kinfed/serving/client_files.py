"""What `kinfed assign` does: a client's samples as a file or a folder of images in, its model and predictions out.

Pillow, which reads images, comes with the extra `hub`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from torch import Tensor

from kinfed.data.arrays import Pixels, SampleKind
from kinfed.data.readers import TABLES
from kinfed.deployment.plan import FILE, OLD_FILE, has_samples, load_file, load_folder
from kinfed.engines.flower.node import ClientData
from kinfed.errors import DataError
from kinfed.learning_tasks import LearningTask
from kinfed.runs.logs import as_csv, write_text
from kinfed.serving.assignment import ASSIGNMENT, MODEL, Assignment, OutputFolder
from kinfed.serving.bundle import Bundle, load

PREDICTIONS = "predictions.csv"
HEADER = ("sample", "class", "probability")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def assign_client(
    bundle_folder: Path, data: Path, target: OutputFolder, trust: bool, predict: Path | None, strict: bool = False
) -> Iterator[str]:
    """Assigns the client with these samples, writes its model and predictions; says what was written.

    With `strict`, raises DataError for a client that fits no cluster, and writes nothing.
    """
    target.check(ASSIGNMENT)
    bundle = load(bundle_folder, trust)
    names = tuple(map(str, cast("list[str]", bundle.about.get("class_names", []))))
    samples = load_samples(data, bundle.kind, names)
    asked = (
        bundle.kind.check(load_samples(predict, bundle.kind, names).x, None, "the samples to predict")[0]
        if predict
        else None
    )
    test = (samples.test_x, samples.test_y) if len(samples.test_y) else None
    assignment = bundle.assign(samples.x, samples.y, test)
    if strict and assignment.fits is False:
        raise DataError(f"{summarise(assignment, bundle)} without --strict")
    assignment.save(target.folder, {"bundle": bundle.about})
    yield summarise(assignment, bundle)
    if asked is not None:
        write_text(
            target.folder / PREDICTIONS, list_predictions(assignment.predict(asked), assignment.model.task, names)
        )
        yield f"{len(asked)} predictions written to {target.folder / PREDICTIONS}"
    yield f"model written to {target.folder / MODEL}, the assignment to {target.folder / ASSIGNMENT}"


def list_predictions(predicted: Tensor, task: LearningTask, names: Sequence[str]) -> str:
    """Predictions as CSV: the likeliest class and its probability, or all numbers."""
    if not task.has_classes() or predicted.dim() != 2:
        columns = ("sample", *(f"value_{i}" for i in range(predicted.flatten(1).shape[1])))
        return as_csv([columns]) + as_csv((i, *row) for i, row in enumerate(predicted.flatten(1).tolist()))
    best = predicted.max(1)
    classes = [names[c] if names else c for c in best.indices.tolist()]
    return as_csv([HEADER]) + as_csv(zip(range(len(predicted)), classes, best.values.tolist(), strict=True))


def summarise(assignment: Assignment, bundle: Bundle) -> str:
    """To which cluster a client was assigned, in one line."""
    cluster, line = assignment.cluster, f"assigned by {assignment.samples} samples"
    if cluster is None:
        return f"{line}: {bundle.about['assignment_rule']}"
    if assignment.fits is False:
        number = len(assignment.distances)
        why = f"(p = {assignment.p_value:.2g}): no client that trained is like it"
        return f"{line}: fits none of the {number} clusters {why}; the likeliest, cluster {cluster}, is served"
    line += f" to cluster {cluster}"
    if cluster in assignment.distances:
        margin = "" if assignment.margin is None else f", margin {assignment.margin:.2f} to the next cluster"
        p_value = "" if assignment.p_value is None else f", p = {assignment.p_value:.2g}"
        line += f" (distance {assignment.distances[cluster]:.3g}{margin}{p_value})"
    return line


def load_samples(path: Path, kind: SampleKind, class_names: Sequence[str] = ()) -> ClientData:
    """The samples in an .npz file or a table, or in a folder: those of its samples.npz, else its images."""
    if path.is_file():
        return load_file(path, class_names)
    if not path.is_dir():
        raise DataError(f"{path}: no such file or folder")
    if has_samples(path) or (path / OLD_FILE).exists() or any((path / f"samples{end}").exists() for end in TABLES):
        return load_folder(path, class_names)
    images = list_images(path)
    if not images:
        raise DataError(
            f"neither {FILE} nor images in {path}; of its arrays x is needed, y, test_x and test_y are optional"
        )
    x, y = kind.check(read_images(images, kind.shape), None, f"the images in {path}")
    return ClientData(x, y, x[:0], y[:0])


def list_images(folder: Path) -> list[Path]:
    """The image files of a folder, by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)


def read_images(paths: list[Path], shape: tuple[int, ...]) -> Pixels:
    """Images as samples of this shape, grey or in colour as it wants; none is resized: [n, channels, height, width]."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise DataError(f"images need Pillow: pip install 'kinfed[hub]', or give a {FILE}") from error
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(f"samples are of shape {list(shape)}, which images cannot be; give a {FILE}")
    return np.stack([read_image(path, shape) for path in paths])


def read_image(path: Path, shape: tuple[int, ...]) -> Pixels:
    """One image: [channels, height, width]."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("L" if shape[0] == 1 else "RGB"), np.uint8)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as an image: {error}") from error
    if pixels.shape[:2] != shape[1:]:
        raise DataError(f"{path} has {pixels.shape[0]}x{pixels.shape[1]} pixels, wanted {shape[1]}x{shape[2]}")
    return pixels.reshape(*shape[1:], shape[0]).transpose(2, 0, 1)
