"""A user's own data -> population: arrays, torch datasets, or a loaded Hugging Face table; for any task."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from kinfed.checks import fraction
from kinfed.data.arrays import (
    NUMBERS,
    Array,
    Plain,
    array_of,
    as_features,
    as_owners,
    check_alike,
    check_finite,
    labels_array,
    stack_arrays,
)
from kinfed.data.dataset import count_vocabulary, labels_of
from kinfed.data.partitions.split import Index, count_tests, draw_stratified, generator, others, samples_of_each
from kinfed.data.population import Population
from kinfed.errors import ConfigError, DataError
from kinfed.learning_tasks import TASKS, LearningTask, MultiLabel, NextToken, Regression, check_task
from kinfed.registry import look_up, suggest

Given = TypeVar("Given")
Clusters = Sequence[int] | Mapping[str, int] | Mapping[int, int]  # of clients in their order, or by their names


class Items(Protocol):
    """What we use of a torch dataset: pairs of (features, target)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Array, Array]: ...


class Columns(Protocol):
    """What we use of a Hugging Face `datasets.Dataset`."""

    @property
    def column_names(self) -> list[str]: ...

    def __getitem__(self, column: str, /) -> Iterable[Array]: ...


@dataclass(frozen=True)
class OwnSettings:
    """How a user's samples become a population."""

    test: float = 0.2  # share of every client's samples that is kept for testing, stratified by label
    public: float = 0.0  # share of every client's training samples that the server is given instead
    seed: int = 0
    classes: int | None = None  # None: largest label or token + 1
    clusters: Clusters | None = None  # planted: {client: cluster}, or of the clients as they sort, c10 before c2
    task: LearningTask | str = "classification"  # what is learnt: a name of `task.name`, or a task
    tokens: bool | None = None  # whether x are token ids; None: where the next token is learnt
    class_names: Sequence[str] = ()  # of the labels; labels that are text name themselves

    def __post_init__(self) -> None:
        fraction(test=self.test, public=self.public)
        if isinstance(self.task, str):
            look_up(self.task, TASKS, "task")
        else:
            check_task(self.task)
        if self.classes is not None and (not isinstance(self.classes, Integral) or self.classes < 1):
            raise ConfigError(f"classes must be a whole number from 1 on, got {self.classes!r}")
        if not isinstance(self.class_names, Iterable) or not all(isinstance(name, str) for name in self.class_names):
            raise ConfigError(f"class_names must be text, one for each class, got {self.class_names!r:.60}")
        if repeated := [name for name, times in Counter(self.class_names).items() if times > 1]:
            raise ConfigError(f"class_names has {repeated[0]!r} more than once; give each class a name of its own")
        if self.clusters is not None and not is_whole(planted := list_clusters(self.clusters)):
            raise ConfigError(f"clusters must be whole numbers, one a client, got {shorten(planted)}")

    @property
    def learning_task(self) -> LearningTask:
        """The task itself."""
        return TASKS[self.task]() if isinstance(self.task, str) else self.task

    @property
    def has_tokens(self) -> bool:
        """Whether samples are token ids."""
        return isinstance(self.learning_task, NextToken) if self.tokens is None else self.tokens

    def count_classes(self, x: Plain, y: Plain) -> int:
        """How many classes, tokens or numbers a model predicts for these samples."""
        if self.classes is not None:
            return self.classes
        outputs = self.learning_task.count_outputs(y)
        return max(outputs, count_vocabulary(x)) if isinstance(self.learning_task, NextToken) else outputs


DEFAULT = OwnSettings()


def from_arrays(x: Array, y: Array, client: Array, settings: OwnSettings = DEFAULT) -> Population:
    """The population of samples x with targets y, where client[i] says whose sample i is; clients are sorted by that.

    x: uint8 images [n, h, w], [n, h, w, 3] or [n, 3, h, w], token ids, or features of any other type [n, ...], taken
    as float32. y: labels [n] as integers or text, next tokens [n] or [n, length], numbers [n] or [n, k], or 0 and 1 for
    each label [n, labels], as the task of the settings has them.
    """
    if not isinstance(settings, OwnSettings):
        raise ConfigError(f"settings: wanted OwnSettings(test=0.2, …), got a {type(settings).__name__}")
    given = labels_array(y, "y")
    check_labels(given, settings.learning_task, labels_array(client, "client"))
    given, settings = name_labels(unbox_numbers(given), settings)
    features, owner = as_features(x, settings.has_tokens), as_owners(client)
    targets = settings.learning_task.targets(given)
    if not len(features) == len(targets) == len(owner) or len(targets) == 0:
        raise DataError(
            f"x has {len(features)} samples, y {len(targets)}, client {len(owner)}; wanted as many of each, and some"
        )
    if features.ndim == 1:
        raise DataError(f"x has shape [{len(features)}], wanted [n, ...]: of one number a sample x[:, None]")
    check_finite(features)
    labels = labels_of(targets)
    train, test = set_apart(samples_of_each(owner), labels, settings.test, settings.seed, "own")
    train, public = set_apart(train, labels, settings.public, settings.seed, "own public")
    if settings.test and not any(map(len, test)):
        raise DataError("every client has a single sample, so that none can be tested: wanted two or more, or test=0")
    return Population(
        torch.from_numpy(features),
        torch.from_numpy(targets),
        tuple(map(torch.from_numpy, train)),
        tuple(map(torch.from_numpy, test)),
        settings.count_classes(features, targets),
        None if settings.clusters is None else order_clusters(settings.clusters, labels_array(client, "client")),
        public=torch.from_numpy(np.sort(np.concatenate(public))),
        class_names=tuple(settings.class_names),
        client_names=tuple(names)
        if isinstance((names := np.unique(labels_array(client, "client")).tolist())[0], str)
        else (),
    )


def set_apart(owned: list[Index], labels: Index, share: float, seed: int, name: str) -> tuple[list[Index], list[Index]]:
    """The samples of each client that stay, one at least, and this share of them, stratified by label."""
    drawn = [
        draw_stratified(labels[own], count_tests(len(own), share), generator(seed, name, i))
        for i, own in enumerate(owned)
    ]
    kept = [own[others(len(own), picked)] for own, picked in zip(owned, drawn, strict=True)]
    return kept, [own[picked] for own, picked in zip(owned, drawn, strict=True)]


def check_labels(y: Plain, task: LearningTask, client: Plain) -> None:
    """Raise DataError for the first label that is none, as a NaN among text, where client[i] says whose sample i is."""
    is_mixed = y.dtype == object or (y.dtype.kind == "f" and task.has_classes() and bool(np.isnan(y).any()))
    if not is_mixed or y.ndim != 1 or client.shape != y.shape:
        return
    words = [one for one in y if isinstance(one, str)]
    if words and not task.has_classes():
        return  # text is refused as such
    kinds, wanted = ((str,), f"text, as {words[0]!r}") if words else (NUMBERS, "a number")
    for sample, (owner, one) in enumerate(zip(client.tolist(), y.tolist(), strict=True)):
        if not isinstance(one, kinds) or one != one:
            raise DataError(
                f"client {owner!r}: the label of sample {sample} is {one!r:.40}, wanted {wanted}: fill it, or leave "
                "such samples out"
            )


def unbox_numbers(y: Plain) -> Plain:
    """Objects that are all numbers as these: whole ones where all are."""
    is_boxed = y.dtype == object and y.size > 0 and all(isinstance(one, NUMBERS) for one in y.flat)
    return np.array(y.tolist()) if is_boxed else y


def name_labels(y: Plain, settings: OwnSettings) -> tuple[Plain, OwnSettings]:
    """Text as the numbers of classes, in the order of their names, which the settings then have; others as they are."""
    if y.ndim != 1 or not (y.dtype.kind == "U" or (y.dtype == object and all(isinstance(one, str) for one in y))):
        return y, settings
    if isinstance(settings.learning_task, Regression | MultiLabel):
        raise DataError(f"y is text, as in '{y[0]}', and the task wants numbers: set another task")
    names = tuple(settings.class_names) or tuple(sorted(set(y.tolist())))
    if unknown := sorted(set(y.tolist()) - set(names)):
        raise DataError(f"y has the class '{unknown[0]}', which is none of class_names: {', '.join(names)}")
    place = {name: at for at, name in enumerate(names)}
    classes = len(names) if settings.classes is None else settings.classes
    return np.array([place[name] for name in y], np.int64), replace(settings, class_names=names, classes=classes)


def from_clients(clients: Iterable[tuple[Array, Array]], settings: OwnSettings = DEFAULT) -> Population:
    """The population of one (x, y) for each client."""
    pairs = list_clients(clients)
    x, y = zip(*(own_samples(client, pair) for client, pair in enumerate(pairs)), strict=True)
    for number, labels in enumerate(y):
        check_labels(labels, settings.learning_task, np.full(len(labels), number))
    check_alike([part[0] for part in x], "samples of all clients")
    owner = np.repeat(np.arange(len(pairs)), [len(part) for part in y])
    return from_arrays(np.concatenate(x), np.concatenate(y), owner, settings)


def list_clients(clients: Iterable[Given]) -> list[Given]:
    """What is given for each client; it must be given for one at least."""
    if not isinstance(clients, Iterable) and not hasattr(clients, "__getitem__"):
        raise DataError(f"wanted one entry for each client, got a {type(clients).__name__}")
    if not (listed := list(clients)):
        raise DataError("a population needs at least one client, got none")
    return listed


def from_torch(
    datasets: Items | Iterable[Items], client: Array | None = None, settings: OwnSettings = DEFAULT
) -> Population:
    """The population of torch datasets of (features, label): one for each client, or one and whose each sample is."""
    if client is not None:
        return from_arrays(*in_arrays(cast(Items, datasets)), client, settings)
    return from_clients([in_arrays(items) for items in list_clients(cast(Iterable[Items], datasets))], settings)


def from_hub(
    table: Columns,
    client_column: str,
    image_column: str | Sequence[str] = "image",
    label_column: str = "label",
    settings: OwnSettings = DEFAULT,
) -> Population:
    """The population of a loaded Hugging Face table with a column that says whose sample it is.

    image_column: one of images, lists of numbers or of token ids; or several columns, of a number each.
    """
    if not hasattr(table, "column_names"):
        raise DataError(
            f"wanted a loaded table, as datasets.load_dataset(name, split='train') gives, got {table!r:.80}"
        )
    if isinstance(table.column_names, Mapping):
        raise DataError(f"wanted a table, got several: choose one, as in tables['{next(iter(table.column_names))}']")
    columns = [image_column] if isinstance(image_column, str) else list(image_column)
    missing = [name for name in (client_column, *columns, label_column) if name not in table.column_names]
    if missing:
        raise DataError(
            f"the table has no column {', '.join(missing)}{suggest(missing[0], table.column_names)}; it has "
            f"{', '.join(table.column_names)}"
        )
    parts = [stack_arrays(table[name], f"samples of {name}") for name in columns]
    x = parts[0] if isinstance(image_column, str) else stack_columns(dict(zip(columns, parts, strict=True)))
    labels, owner = (stack_arrays(table[name], f"samples of {name}") for name in (label_column, client_column))
    names = getattr(getattr(table, "features", {}).get(label_column), "names", None)  # of a ClassLabel
    if names and not settings.class_names and settings.learning_task.has_classes():
        settings = replace(settings, class_names=names)
    return from_arrays(x, labels, owner, settings)


def stack_columns(columns: Mapping[str, Plain]) -> Plain:
    """Columns of a number each as features [n, columns]."""
    for name, column in columns.items():
        if column.ndim != 1 or column.dtype.kind not in "iufb":
            raise DataError(f"column {name} is {column.dtype} {list(column.shape)}, wanted a number for each sample")
    return np.stack([column.astype(np.float64) for column in columns.values()], 1)


def own_samples(client: int, pair: tuple[Array, Array]) -> tuple[Plain, Plain]:
    """The samples and targets of one client; it must have some, and as many of each."""
    given, labels = as_pair(pair, f"client {client}")
    x, y = array_of(given, f"client {client}"), labels_array(labels, f"client {client}")
    if x.ndim == 0 or y.ndim not in (1, 2) or len(x) != len(y):
        raise DataError(f"client {client}: x is {list(x.shape)} and y {list(y.shape)}, wanted [n, ...] and [n]")
    if len(y) == 0:
        raise DataError(f"client {client} has no samples; leave such clients out")
    return x, y


def in_arrays(items: Items) -> tuple[Plain, Plain]:
    """All samples of a torch dataset."""
    if not hasattr(items, "__len__"):
        raise DataError(f"a {type(items).__name__} has no length: wanted a dataset with items by number (map-style)")
    if not hasattr(items, "__getitem__"):
        raise DataError(
            f"a {type(items).__name__} has no items by number: wanted a dataset, of a DataLoader its .dataset"
        )
    if len(items) == 0:
        raise DataError("a client's dataset is empty; leave such clients out")
    name = "a dataset's item (one dataset for all clients needs `client`: whose each sample is)"
    pairs = [as_pair(items[i], name) for i in range(len(items))]
    given = [y for _, y in pairs]
    is_text = any(isinstance(label, str) for label in given)
    labels = labels_array(given, "labels") if is_text else stack_arrays(given, "labels")
    return stack_arrays([x for x, _ in pairs], "samples"), labels.reshape(-1) if labels.size == len(pairs) else labels


def as_pair(item: object, name: str) -> tuple[Array, Array]:
    """Features and label, or features and labels; raises DataError where it is anything else."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        got = f"{len(item)} parts" if isinstance(item, tuple | list) else f"a {type(item).__name__}"
        raise DataError(f"{name}: wanted a pair of features and label, got {got}")
    return item[0], item[1]


def is_whole(numbers: Array) -> bool:
    """Whether these are whole numbers, one after the other."""
    array = array_of(numbers, "clusters")
    return array.ndim == 1 and np.issubdtype(array.dtype, np.integer)


def list_clusters(clusters: Clusters) -> Array:
    """The clusters alone, where clients are named, too."""
    return list(clusters.values()) if isinstance(clusters, Mapping) else clusters


def order_clusters(clusters: Clusters, client: Plain) -> Tensor:
    """The planted cluster of each client, clients in their order, where client[i] says whose sample i is."""
    names = np.unique(client).tolist()
    if isinstance(clusters, Mapping):
        if lost := [name for name in names if name not in clusters] or [one for one in clusters if one not in names]:
            raise ConfigError(f"clusters: wanted one for each client and for no other, got {lost[0]!r} in one alone")
        clusters = [dict(clusters)[name] for name in names]
    return torch.from_numpy(array_of(clusters, "clusters").astype(np.int64))


def shorten(values: Array) -> str:
    """The first few of them, as a message shows them."""
    shown = array_of(values, "clusters").reshape(-1).tolist()
    return f"[{', '.join(map(repr, shown[:3]))}{', …' if len(shown) > 3 else ''}]"
