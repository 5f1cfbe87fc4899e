"""The samples of one client, as a node and `kinfed assign` read them: an .npz file, a table, images, or own code.

samples.npz                    arrays x, y, test_x, test_y
samples.csv, samples.parquet   a row a sample: columns of numbers, or one of images or lists; and a target
CLASS/image.png                images by class, maybe under train/ and test/
image.png                      images without labels
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kinfed.config import build
from kinfed.data.arrays import SampleKind, as_features
from kinfed.data.image_files import ImageForm, list_by_class, list_images, read_images
from kinfed.data.partitions.split import others
from kinfed.data.readers import TABLES, Table, hold_out, read_alike, read_own_table
from kinfed.engines.flower.node import ClientData
from kinfed.errors import ConfigError, DataError, FileError
from kinfed.files import Arrays, read_arrays, write_arrays
from kinfed.registry import explain_unknown, import_function
from kinfed.targets import as_classes, as_numbers

FILE, OLD_FILE = "samples.npz", "rows.npz"
NodeConfig = Mapping[str, bool | bytes | float | int | str]
KEYS = ("name", "data", "home", "holdout", "device", "report_errors", "loader")  # of a node's config
TABLE_KEYS = ("target", "features", "test", "seed", "scale", "gaps", "tokens")
REMEDY = "set resize = true in the node's config, or scale them beforehand"


@dataclass(frozen=True)
class FileForm:
    """How the files of a client are read."""

    kind: SampleKind | None = None  # what samples are to be; None: as the file has them
    class_names: tuple[str, ...] = ()
    table: Table = Table()
    resize: bool = False  # images, to the size of `kind`
    remedy: str = "scale them beforehand"  # for images of another size

    def parse_table(self) -> tuple[Table, ImageForm]:
        """How a table is read, and the images in it; their pixels are not scaled as columns are."""
        kind = self.kind
        if kind is None or kind.dtype != "uint8" or len(kind.shape) != 3:
            is_numbers = kind is not None and kind.dtype == "float32"
            return replace(self.table, tokens=self.table.tokens and not is_numbers), ImageForm()
        return replace(self.table, scale=False), ImageForm.of_shape(kind.shape, self.resize, self.remedy)


ANY = FileForm()


def load_node_data(
    node: NodeConfig, kind: SampleKind | None = None, class_names: Sequence[str] = (), feature_names: Sequence[str] = ()
) -> ClientData:
    """The samples of a node, by its config: `loader` names code of its own, else `data` a file or a folder.

    A table has columns of these names, in any order, unless the config names others.
    """
    if "loader" in node:
        return call_loader(str(node["loader"]), node)
    if "data" not in node:
        raise ConfigError('the node\'s config has no data: start it with --node-config \'name="…" data="FOLDER"\'')
    form = read_form(node, kind, class_names)
    if not form.table.features:
        form = replace(form, table=replace(form.table, features=tuple(feature_names)))
    return load_samples(Path(str(node["data"])).expanduser(), form)


def read_form(node: NodeConfig, kind: SampleKind | None, class_names: Sequence[str]) -> FileForm:
    """How a node's config says that its files are read."""
    known = (*KEYS, *TABLE_KEYS, "resize")
    if unknown := [key for key in node if key not in known and not key.startswith(("partition-", "num-"))]:
        raise ConfigError(f"the node's config: {explain_unknown(unknown[0], known, 'key')}")
    options: dict[str, object] = {key: node[key] for key in TABLE_KEYS if key in node}
    for key in options.keys() & {"features", "target"}:
        names = [name.strip() for name in str(options[key]).split(",")]
        options[key] = names[0] if key == "target" and len(names) == 1 else names
    return FileForm(kind, tuple(class_names), build(Table, options, "node"), node.get("resize") is True, REMEDY)


def call_loader(name: str, node: NodeConfig) -> ClientData:
    """What a function of the node's own gives: ClientData, or arrays x, y, or x, y, test_x, test_y."""
    made = cast("Callable[[NodeConfig], object]", import_function(name, "loader"))(node)
    if not isinstance(made, tuple | list) or len(made) not in (2, 4):
        raise DataError(f"loader '{name}' must give (x, y) or (x, y, test_x, test_y), got a {type(made).__name__}")
    x, y = torch.from_numpy(as_features(made[0])), as_targets(np.asarray(made[1]))
    if len(made) == 2:
        return ClientData(x, y, x[:0], y[:0])
    return ClientData(x, y, torch.from_numpy(as_features(made[2])), as_targets(np.asarray(made[3])))


def load_samples(path: Path, form: FileForm = ANY) -> ClientData:
    """The samples in a file, or in a folder: those of its samples.npz, or table, else its images."""
    if path.is_file():
        return load_file(path, form)
    if not path.is_dir():
        raise DataError(f"{path}: no such file or folder")
    files = [path / FILE, *(path / f"samples{suffix}" for suffix in TABLES)]
    if (found := next((file for file in files if file.exists()), None)) is not None:
        return load_file(found, form)
    if (path / OLD_FILE).exists():
        raise DataError(f"{OLD_FILE} was renamed {FILE}: rename {path / OLD_FILE}")
    return load_images(path, form)


def load_alike(path: Path, own: Path, form: FileForm) -> Tensor:
    """The samples to predict; of a table all of them, scaled as the client's own table is."""
    table, mine = find_table(path), find_table(own)
    if table is None or mine is None:
        return load_samples(path, form).x
    return torch.from_numpy(shape_features(read_alike(table, mine, *form.parse_table()), form.kind, table))


def find_table(path: Path) -> Path | None:
    """The table at this path, or in the folder there that has no .npz file."""
    if path.is_dir() and not (path / FILE).exists():
        return next((file for suffix in TABLES if (file := path / f"samples{suffix}").exists()), None)
    return path if path.is_file() and path.suffix.lower() in TABLES else None


def load_folder(folder: Path, class_names: Sequence[str] = ()) -> ClientData:
    """The samples in the folder's `samples.npz`, or in its table `samples.csv` or `samples.parquet`."""
    names = (FILE, OLD_FILE, *(f"samples{suffix}" for suffix in TABLES))
    if any((folder / name).exists() for name in names):
        return load_samples(folder, FileForm(class_names=tuple(class_names)))
    return load_file(folder / FILE)


def load_file(path: Path, form: FileForm = ANY) -> ClientData:
    """The samples in an .npz file: x and test_x, and y and test_y where there are labels; or in a table.

    Images are uint8 [n, h, w], [n, h, w, 3] or [n, 3, h, w], other samples are taken as float32. Without `y` a client
    wants a model and does not train; without `test_x` it is not evaluated.
    """
    if path.suffix.lower() in TABLES:
        return load_table(path, form)
    arrays = read_samples(path)
    x = torch.from_numpy(as_features(arrays["x"]))
    y = as_targets(arrays["y"]) if "y" in arrays else torch.full((len(x),), -1)
    if len(alone := {"test_x", "test_y"} & set(arrays)) == 1:
        raise DataError(f"{path} has {alone.pop()} alone; wanted test_x and test_y, or neither")
    if "test_x" not in arrays:
        return ClientData(x, y, x[:0], y[:0])
    return ClientData(x, y, torch.from_numpy(as_features(arrays["test_x"])), as_targets(arrays["test_y"]))


def load_table(path: Path, form: FileForm) -> ClientData:
    """The samples in a table of one client; a class that is not among those known is refused."""
    features, targets, test = read_own_table(path, form.class_names, *form.parse_table())
    x = torch.from_numpy(shape_features(features, form.kind, path))
    y = torch.full((len(x),), -1) if targets is None else as_targets(targets)
    train = torch.from_numpy(others(len(x), test))
    return ClientData(x[train], y[train], x[test], y[test])


def shape_features(x: npt.NDArray[np.generic], kind: SampleKind | None, path: Path) -> npt.NDArray[np.generic]:
    """Columns as samples of another shape with as many numbers: pixels of an image, values of a series."""
    if kind is None or x.shape[1:] == kind.shape or prod(x.shape[1:]) != prod(kind.shape):
        return x
    if kind.dtype != "uint8":
        return x.reshape(len(x), *kind.shape)
    numbers = x.astype(np.float32)
    if not ((numbers >= 0) & (numbers <= 255) & (numbers % 1 == 0)).all():
        raise DataError(f"{path}: samples are images of uint8, wanted whole numbers 0 to 255 in their columns")
    return numbers.astype(np.uint8).reshape(len(x), *kind.shape)


def load_images(folder: Path, form: FileForm) -> ClientData:
    """The images of a folder: by class, maybe under train/ and test/, or without labels."""
    kind = form.kind
    if kind is None or not has_images(folder):
        raise DataError(
            f"neither {FILE} nor images in {folder}; of its arrays x is needed, y, test_x and test_y are optional"
        )
    images = ImageForm.of_shape(kind.shape, form.resize, form.remedy)
    if bare := list_images(folder):
        x = torch.from_numpy(read_images(bare, images))
        return ClientData(x, torch.full((len(x),), -1), x[:0], torch.empty(0).long())
    if "train" not in form.class_names and (folder / "train").is_dir():
        train, test = (read_classes(folder / part, kind, form, images) for part in ("train", "test"))
        return ClientData(*train, *test)
    x, y = read_classes(folder, kind, form, images)
    labels = y.numpy()
    held = hold_out(np.zeros_like(labels), labels, form.table.test, form.table.seed)
    kept = torch.from_numpy(others(len(y), held))
    return ClientData(x[kept], y[kept], x[held], y[held])


def has_images(folder: Path) -> bool:
    """Whether there are images in a folder, or in folders of it."""
    inside = [path for pattern in ("*/", "*/*/") for path in folder.glob(pattern) if path.is_dir()]
    return any(list_images(path) for path in (folder, *inside))


def read_classes(folder: Path, kind: SampleKind, form: FileForm, images: ImageForm) -> tuple[Tensor, Tensor]:
    """All images of FOLDER/class/image.png with their labels; none where there is no such folder."""
    files, labels = list_by_class(folder, form.class_names, kind.classes)
    x = torch.from_numpy(read_images(files, images)) if files else kind.nothing()
    return x, torch.from_numpy(labels)


def as_targets(y: npt.NDArray[np.generic]) -> Tensor:
    """Labels, tokens, and 0 and 1 for each label as int64, numbers as float32."""
    return torch.from_numpy(as_numbers(y, "y") if y.dtype.kind == "f" else as_classes(y, "y", most_dims=2))


def read_samples(path: Path) -> Arrays:
    """The arrays of an .npz file, among them x."""
    try:
        arrays = read_arrays(path)
    except (OSError, FileError) as error:
        raise DataError(f"{path} cannot be read: {error}; wanted an .npz of arrays x, y, test_x, test_y") from error
    if "x" not in arrays:
        raise DataError(f"{path} has no array x, only {', '.join(arrays) or 'nothing'}")
    return arrays


def save_folder(folder: Path, arrays: dict[str, Tensor]) -> None:
    """Writes samples as `load_folder` reads them; they are their owner's alone."""
    folder.mkdir(parents=True, exist_ok=True)
    write_arrays(folder / FILE, {name: t.numpy() for name, t in arrays.items()})
