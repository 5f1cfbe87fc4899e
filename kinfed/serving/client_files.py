"""What `kinfed assign` does: a client's samples as a file or a folder of images in, its model and predictions out."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from torch import Tensor

from kinfed.config import build
from kinfed.data.readers import Table
from kinfed.deployment.node_data import FileForm, load_alike, load_samples
from kinfed.errors import DataError
from kinfed.learning_tasks import LearningTask
from kinfed.runs.logs import as_csv, write_text
from kinfed.serving.assignment import ASSIGNMENT, ASSIGNMENT_BEGINS, MODEL, Assignment, OutputFolder
from kinfed.serving.bundle import Bundle, load
from kinfed.serving.model_formats import CARD, SUFFIXES, require_format, write_card, write_model

PREDICTIONS = "predictions.csv"
HEADER = ("sample", "class", "probability")
SURE = 0.9  # probability of a cluster below which another one is named as possible


def assign_client(
    bundle_folder: Path, data: Path, target: OutputFolder, trust: bool, predict: Path | None, strict: bool = False,
    form: str = "",
) -> Iterator[str]:  # fmt: skip
    """Assigns the client with these samples, writes its model and predictions; says what was written.

    With `strict`, raises DataError for a client that fits no cluster, and writes nothing. `form` is another format to
    write the model in.
    """
    if form:
        require_format(form)
    others = (PREDICTIONS,) * bool(predict) + ((f"model{SUFFIXES[form]}", CARD) if form else ())
    target.check(ASSIGNMENT, ASSIGNMENT_BEGINS, (MODEL, *others), "the model")
    bundle = load(bundle_folder, trust)
    names = tuple(map(str, cast("list[str]", bundle.about.get("class_names", []))))
    table = build(Table, cast("dict[str, object]", bundle.about.get("table", {})), "table")
    files = FileForm(bundle.kind, names, table)
    samples = load_samples(data, files)
    asked = None
    if predict:
        asked = bundle.kind.check(load_alike(predict, data, files), None, "the samples to predict", bundle.config.task)[
            0
        ]
    test = (samples.test_x, samples.test_y) if len(samples.test_y) else None
    assignment = bundle.assign(samples.x, samples.y, test)
    if strict and assignment.fits is False:
        raise DataError(f"{summarise(assignment, bundle)} without --strict")
    assignment.save(target.folder, {"bundle": bundle.about})
    yield summarise(assignment, bundle)
    if asked is not None:
        columns = table.targets if "table" in bundle.about else ()
        found = list_predictions(assignment.predict(asked), assignment.model.task, names, columns)
        write_text(target.folder / PREDICTIONS, found)
        yield f"{len(asked)} predictions written to {target.folder / PREDICTIONS}"
    if form:
        path = target.folder / f"model{SUFFIXES[form]}"
        write_model(path, assignment.model, assignment.params, assignment.kind, form)
        write_card(target.folder, assignment.model, assignment.kind, {"format": form, "class_names": list(names)})
        yield f"model as {form} written to {path}"
    yield f"model written to {target.folder / MODEL}, the assignment to {target.folder / ASSIGNMENT}"


def list_predictions(predicted: Tensor, task: LearningTask, names: Sequence[str], columns: Sequence[str] = ()) -> str:
    """Predictions as CSV: the likeliest class and its probability, or all numbers, under these columns if they fit."""
    if not task.has_classes() or predicted.dim() != 2:
        values = [f"value_{i}" for i in range(predicted.flatten(1).shape[1])]
        header = ("sample", *(columns if len(columns) == len(values) else values))
        return as_csv([header]) + as_csv((i, *row) for i, row in enumerate(predicted.flatten(1).tolist()))
    best = predicted.max(1)
    classes = [names[c] if names else c for c in best.indices.tolist()]
    return as_csv([HEADER]) + as_csv(zip(range(len(predicted)), classes, best.values.tolist(), strict=True))


def summarise(assignment: Assignment, bundle: Bundle) -> str:
    """To which cluster a client was assigned, in one line."""
    cluster, line = assignment.cluster, f"assigned by {assignment.samples} sample{'s' * (assignment.samples != 1)}"
    if cluster is None:
        return f"{line}: {bundle.about['assignment_rule']}"
    if assignment.fits is False:
        why = f"(p = {assignment.p_value:.2g}): no client that trained is like it"
        if len(assignment.distances) == 1:
            return f"{line}: does not fit the only cluster {why}; it is served nevertheless"
        number = len(assignment.distances)
        return f"{line}: fits none of the {number} clusters {why}; the likeliest, cluster {cluster}, is served"
    line += f" to cluster {cluster}"
    if cluster in assignment.distances:
        margin = "" if assignment.margin is None else f", margin {assignment.margin:.2f} to the next cluster"
        p_value = "" if assignment.p_value is None else f", p = {assignment.p_value:.2g}"
        line += f" (distance {assignment.distances[cluster]:.3g}{margin}{p_value})"
    if assignment.probability is not None and assignment.probability < SURE:
        line += f", with a probability of {100 * assignment.probability:.0f} %: it may belong to another one"
    return line
