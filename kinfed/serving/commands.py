"""What `kinfed export` and `kinfed assign` do: folders in, folders out."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kinfed.data.sample_kind import SampleKind
from kinfed.deployment.rows import FILE, from_file, from_folder
from kinfed.engines.flower.site import Holding
from kinfed.errors import ConfigError, DataError
from kinfed.runs.logs import as_csv, write_text
from kinfed.serving.assigned import ASSIGNMENT, MODEL, Assigned
from kinfed.serving.bundle import JSON, TENSORS, Bundle, load
from kinfed.serving.export import export
from kinfed.serving.pictures import pictures_in, read_pictures

PREDICTIONS = "predictions.csv"
HEADER = ("row", "class", "probability")


@dataclass(frozen=True)
class Target:
    """A folder to write."""

    folder: Path
    force: bool = False

    def check(self, name: str) -> None:
        """Raises if there is such a file already, and it must not be replaced."""
        if self.folder.exists() and not self.folder.is_dir():
            raise ConfigError(f"{self.folder} is a file; choose another folder")
        if (self.folder / name).exists() and not self.force:
            raise ConfigError(f"{self.folder / name} is there already: choose another folder, or use --force")


def export_run(run: Path, target: Target) -> Iterator[str]:
    """Writes the bundle of a run; says what is in it."""
    target.check(JSON)
    bundle = export(run)
    bundle.save(target.folder)
    clusters = bundle.about["clusters"]
    assert isinstance(clusters, list)
    size = sum((target.folder / name).stat().st_size for name in (JSON, TENSORS)) / 1e6
    yield f"{bundle.about['method']} of {len(bundle.sizes)} clients in {len(clusters)} groups, {size:.2f} MB"
    yield f"placement: {bundle.about['placement']}"
    yield f"written to {target.folder}"


def assign_client(bundle_folder: Path, data: Path, target: Target, trust: bool, predict: Path | None) -> Iterator[str]:
    """Places the client whose rows these are, writes its model and what was asked for; says where it belongs."""
    target.check(ASSIGNMENT)
    bundle = load(bundle_folder, trust)
    rows = rows_at(data, bundle.rows)
    asked = bundle.rows.checked(rows_at(predict, bundle.rows).x, None, "the rows to predict")[0] if predict else None
    test = (rows.test_x, rows.test_y) if len(rows.test_y) else None
    assigned = bundle.assign(rows.x, rows.y, test)
    assigned.save(target.folder, {"bundle": bundle.about})
    yield in_words(assigned, bundle)
    if asked is not None:
        best = assigned.predict(asked).max(1)
        lines = zip(range(len(asked)), best.indices.tolist(), best.values.tolist(), strict=True)
        write_text(target.folder / PREDICTIONS, as_csv([HEADER]) + as_csv(lines))
        yield f"{len(asked)} predictions written to {target.folder / PREDICTIONS}"
    yield f"model written to {target.folder / MODEL}, how it was chosen to {target.folder / ASSIGNMENT}"


def rows_at(path: Path, kind: SampleKind) -> Holding:
    """The rows in an .npz file, or in a folder: those of its rows.npz, else its pictures."""
    if path.is_file():
        return from_file(path)
    if not path.is_dir():
        raise DataError(f"{path}: no such folder, nor such a file")
    if (path / FILE).exists():
        return from_folder(path)
    pictures = pictures_in(path)
    if not pictures:
        raise DataError(
            f"neither {FILE} nor pictures in {path}; of its arrays x is needed, y, test_x and test_y are optional"
        )
    x, y = kind.checked(read_pictures(pictures, kind.shape), None, f"the pictures in {path}")
    return Holding(x, y, x[:0], y[:0])


def in_words(assigned: Assigned, bundle: Bundle) -> str:
    """Where a client was placed."""
    cluster, said = assigned.cluster, f"placed by {assigned.rows} rows"
    if cluster is None:
        return f"{said}: {bundle.about['placement']}"
    said += f" in group {cluster}"
    if cluster in assigned.distances:
        margin = "" if assigned.margin is None else f", margin {assigned.margin:.2f} to the next group"
        said += f" (distance {assigned.distances[cluster]:.3g}{margin})"
    return said
