"""The Hugging Face hub: where each named dataset lives there, and how it becomes NAME.npz."""

import logging
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np
import numpy.typing as npt

from kinfed.data.arrays import Pixels, store
from kinfed.data.partitions.split import Index, draw_stratified, generator, others
from kinfed.files import Arrays

log = logging.getLogger("kinfed")
NO_LIBRARY = "fetch it by `pip install 'kinfed[hub]'`"


class Unreachable(Exception):
    """What to do where a dataset cannot be fetched; internal, `datasets.fetch` makes a DataError of it."""

    @classmethod
    def at(cls, repository: str, error: Exception) -> "Unreachable":
        """Of a repository of the hub."""
        return cls(f"go online ({repository}: {shorten(f'{type(error).__name__}: {error}', 70, placeholder=' …')})")


class Image(Protocol):
    """What we use of a Pillow image."""

    def convert(self, mode: str) -> npt.ArrayLike: ...


class Table(Protocol):
    """What we use of a `datasets.Dataset`."""

    def __len__(self) -> int: ...

    def iter(self, batch_size: int) -> Iterator[dict[str, list[object]]]: ...


@dataclass(frozen=True)
class Source:
    """Where a dataset lives on the hub and how its columns are called."""

    repository: str
    revision: str | None = None  # the commit; None: whatever is there, which is logged
    image: str = "image"
    label: str = "label"
    config: str | None = None
    test: str | None = (
        "test"  # None: there is one split only, and a tenth of every writer's samples becomes the test set
    )
    writer: str | None = None
    mode: str = "L"  # of the images: L gray, RGB colour
    stands_up: bool = True  # False: may hold NIST's transposed originals


SOURCES = {
    "mnist": Source("ylecun/mnist", "77f3279092a1c1579b2250db8eafed0ad422088c"),
    "fashion_mnist": Source("zalando-datasets/fashion_mnist", "531be5e2ccc9dba0c201ad3ae567a4f3d16ecdd2"),
    "kmnist": Source("tanganke/kmnist"),
    "emnist_balanced": Source("claudiogsc/emnist_balanced", stands_up=False),
    "femnist": Source(
        "flwrlabs/femnist",
        "df739a2b09df2b5cc1ec93107659b9a9a8566487",
        label="character",
        writer="writer_id",
        test=None,
    ),
    "cifar10": Source("uoft-cs/cifar10", "0b2714987fa478483af9968de7c934580d0bb9a2", image="img", mode="RGB"),
    "cifar100": Source(
        "uoft-cs/cifar100", "aadb3af77e9048adbea6b47c21a81e47dd092ae5", image="img", label="fine_label", mode="RGB"
    ),
    "svhn": Source(
        "ufldl-stanford/svhn", "f9e1717d73324ebbc1ece84267ccd80d0aca0690", config="cropped_digits", mode="RGB"
    ),
}


def fetch(name: str, path: Path) -> None:
    """Fetch a dataset from the hub, convert it, and store it at this path."""
    source = SOURCES[name]
    train = download(source, "train")
    test = download(source, source.test) if source.test else None
    store(path, convert(source, train, test))


def download(source: Source, split: str) -> Table:
    """One split of a dataset on the hub."""
    try:
        import datasets
    except ImportError as error:
        raise Unreachable(NO_LIBRARY) from error
    save_time_when_offline()
    if source.revision is None:
        log.warning("%s is not pinned to a revision: what is there today is taken", source.repository)
    try:
        table: Table = datasets.load_dataset(source.repository, source.config, split=split, revision=source.revision)
    except (OSError, ValueError, RuntimeError) as error:
        raise Unreachable.at(source.repository, error) from error
    return table


def save_time_when_offline() -> None:
    """Where the hub cannot be reached, let the library look into its cache alone; it would try for half a minute."""
    import datasets
    from huggingface_hub import constants

    host = urlsplit(constants.ENDPOINT).hostname or ""
    try:
        socket.create_connection((host, 443), timeout=10).close()
    except OSError:
        if not getproxies():  # a proxy looks names up by itself
            constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True


def convert(source: Source, train: Table, test: Table | None) -> Arrays:
    """The arrays of NAME.npz from hub tables; without a test table it is cut off every writer's samples."""
    first = columns(source, train)
    x, y = first["x"], first["y"]
    flip = not source.stands_up and lies(x, y)
    if test is None:
        picked = tenth_of_each(first.get("writer", y))
        kept = others(len(y), picked)
        parts = {"train": {k: v[kept] for k, v in first.items()}, "test": {k: v[picked] for k, v in first.items()}}
    else:
        parts = {"train": first, "test": columns(source, test)}
    if flip:
        parts = {part: arrays | {"x": arrays["x"].swapaxes(1, 2)} for part, arrays in parts.items()}
    return {f"{name}_{part}": array for part, arrays in parts.items() for name, array in arrays.items()}


def columns(source: Source, table: Table) -> dict[str, npt.NDArray[np.integer]]:
    """Images x, labels y and, where there are writers, their numbers."""
    pixels: list[Pixels] = []
    labels: list[object] = []
    writers: list[str] = []
    for batch in table.iter(batch_size=1000):
        pixels.append(np.stack([as_array(image, source.mode) for image in batch[source.image]]))
        labels += batch[source.label]
        writers += [str(writer) for writer in batch[source.writer]] if source.writer else []
    found: dict[str, npt.NDArray[np.integer]] = {"x": np.concatenate(pixels), "y": np.asarray(labels, np.int64)}
    return found | ({"writer": np.unique(writers, return_inverse=True)[1].astype(np.int64)} if source.writer else {})


def as_array(image: object, mode: str) -> Pixels:
    """A decoded image as uint8 [h, w] or [h, w, 3]."""
    picture: Image = image  # type: ignore[assignment]  # the library decodes to PIL images, which it does not type
    return np.asarray(picture.convert(mode), dtype=np.uint8)


def tenth_of_each(writers: npt.NDArray[np.integer]) -> Index:
    """A fixed tenth of the samples of every writer (LEAF's 90:10 split by sample)."""
    return draw_stratified(writers.astype(np.int64), round(0.1 * len(writers)), generator(0, "hub"), low_first=True)


def lies(x: npt.NDArray[np.integer], y: npt.NDArray[np.integer]) -> bool:
    """Whether the digit 1 is on average wider than high: EMNIST's originals are transposed, hub copies differ."""
    ones = x[y == 1].astype(np.float64)
    ink = np.abs(ones - np.median(ones)).sum(0) if len(ones) else np.zeros((1, 1))  # the median is the paper
    return bool(ink.sum() > 0) and spread(ink.sum(0)) > spread(ink.sum(1))


def spread(profile: npt.NDArray[np.float64]) -> float:
    """Variance of the position under this profile of ink."""
    position = np.arange(len(profile))
    mean = np.average(position, weights=profile)
    return float(np.average((position - mean) ** 2, weights=profile))
