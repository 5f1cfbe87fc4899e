"""A user's own data -> population: arrays, torch datasets, or a loaded Hugging Face table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt
import torch

from kinfed.data.checks import fraction
from kinfed.data.images import channels_first
from kinfed.data.population import Population
from kinfed.data.sampling import Index, generator, others, rows_of_each, stratified
from kinfed.errors import DataError

Array = npt.ArrayLike | torch.Tensor


class Items(Protocol):
    """What we use of a torch dataset: pairs of (features, label)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Array, int]: ...


class Columns(Protocol):
    """What we use of a Hugging Face `datasets.Dataset`."""

    @property
    def column_names(self) -> list[str]: ...

    def __getitem__(self, column: str, /) -> Iterable[Array]: ...


@dataclass(frozen=True)
class OwnSettings:
    """How a user's rows become a population."""

    test: float = 0.2  # share of every client's rows that is kept for testing, stratified by label
    seed: int = 0
    classes: int | None = None  # None: largest label + 1
    groups: Sequence[int] | None = None  # planted group of each client, in the order of the clients

    def __post_init__(self) -> None:
        fraction(test=self.test)


DEFAULT = OwnSettings()


def from_arrays(x: Array, y: Array, client: Array, settings: OwnSettings = DEFAULT) -> Population:
    """The population of rows x with labels y, where client[i] says whose row i is; clients are sorted by that.

    x: uint8 images [n, h, w], [n, h, w, 3] or [n, 3, h, w], or features of any other type [n, ...], taken as float32.
    """
    features, labels, owner = as_features(x), as_labels(y), np.asarray(client)
    if not len(features) == len(labels) == len(owner) or len(labels) == 0:
        raise DataError(
            f"x has {len(features)} rows, y {len(labels)}, client {len(owner)}; wanted as many of each, and some"
        )
    rows = rows_of_each(np.unique(owner, return_inverse=True)[1].astype(np.int64).reshape(-1))
    test = [
        rows_for_testing(labels, own, settings.test, generator(settings.seed, "own", i)) for i, own in enumerate(rows)
    ]
    return Population(
        torch.from_numpy(features),
        torch.from_numpy(labels),
        tuple(torch.from_numpy(own[others(len(own), picked)]) for own, picked in zip(rows, test, strict=True)),
        tuple(torch.from_numpy(own[picked]) for own, picked in zip(rows, test, strict=True)),
        int(labels.max()) + 1 if settings.classes is None else settings.classes,
        None if settings.groups is None else torch.as_tensor(settings.groups, dtype=torch.int64),
    )


def from_clients(clients: Sequence[tuple[Array, Array]], settings: OwnSettings = DEFAULT) -> Population:
    """The population of one (x, y) for each client."""
    if not clients:
        raise DataError("a population needs at least one client, got none")
    x, y = [np.asarray(pair[0]) for pair in clients], [np.asarray(pair[1]) for pair in clients]
    if len({part.shape[1:] for part in x}) > 1:
        raise DataError(f"rows of all clients must have one shape, got {sorted({part.shape[1:] for part in x})}")
    owner = np.repeat(np.arange(len(clients)), [len(part) for part in y])
    return from_arrays(np.concatenate(x), np.concatenate(y), owner, settings)


def from_torch(
    datasets: Items | Sequence[Items], client: Array | None = None, settings: OwnSettings = DEFAULT
) -> Population:
    """The population of torch datasets of (features, label): one for each client, or one and whose each row is."""
    if client is not None:
        return from_arrays(*in_arrays(cast(Items, datasets)), client, settings)
    return from_clients([in_arrays(items) for items in cast(Sequence[Items], datasets)], settings)


def from_hub(
    table: Columns,
    client_column: str,
    image_column: str = "image",
    label_column: str = "label",
    settings: OwnSettings = DEFAULT,
) -> Population:
    """The population of a loaded Hugging Face table with a column that says whose row it is."""
    wanted = (client_column, image_column, label_column)
    missing = [name for name in wanted if name not in table.column_names]
    if missing:
        raise DataError(f"the table has no column {', '.join(missing)}; it has {', '.join(table.column_names)}")
    images = np.stack([np.asarray(image) for image in table[image_column]])
    return from_arrays(images, np.asarray(list(table[label_column])), np.asarray(list(table[client_column])), settings)


def in_arrays(items: Items) -> tuple[npt.NDArray[np.generic], Index]:
    """All rows of a torch dataset."""
    if len(items) == 0:
        raise DataError("a client's dataset is empty; leave such clients out")
    pairs = [items[i] for i in range(len(items))]
    return np.stack([np.asarray(x) for x, _ in pairs]), np.array([int(y) for _, y in pairs])


def as_features(x: Array) -> npt.NDArray[np.generic]:
    """uint8 images with channels first; anything else as float32."""
    array = np.asarray(x)
    if array.dtype == np.uint8 and array.ndim in (3, 4):
        return channels_first(array).copy()  # the user may go on changing theirs
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
        raise DataError(f"x is {array.dtype} {list(array.shape)}, wanted numbers of one shape a row")
    return array.astype(np.float32)


def as_labels(y: Array) -> Index:
    """Labels as int64; other types are refused, since rounding them would hide a mistake."""
    array = np.asarray(y)
    if not np.issubdtype(array.dtype, np.integer) or array.ndim != 1:
        raise DataError(f"y is {array.dtype} {list(array.shape)}, wanted integers [n]")
    return array.astype(np.int64)


def rows_for_testing(labels: Index, own: Index, share: float, rng: np.random.Generator) -> Index:
    """Positions among a client's own rows that are for testing; at least one row is left to train on."""
    wanted = min(max(round(share * len(own)), int(share > 0)), len(own) - 1)
    return stratified(labels[own], wanted, rng)
