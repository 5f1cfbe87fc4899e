"""From a dataset and a partition to a population: public rows, clients, change, shift, roles, look-alikes in turn."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from kinfed.checks import at_least, fraction
from kinfed.data.changes import ChangeSettings, plan_change
from kinfed.data.datasets import Dataset
from kinfed.data.look_alikes import with_look_alikes
from kinfed.data.partitions.split import ANY_SPLIT, HasPromise, Labels, Partition, Split, check, enough
from kinfed.data.population import LATER, Change, Population
from kinfed.data.roles import RoleSettings, assign_roles
from kinfed.data.sampling import Index, generator, others, stratified
from kinfed.data.shifts import LabelSwap, Shift
from kinfed.errors import ConfigError, DataError


def build_population(
    dataset: Dataset,
    partition: Partition,
    seed: int,
    *,
    public_fraction: float = 0.0,
    public_test: bool = False,
    train_samples: int | None = None,
    test_samples: int | None = None,
    global_test: bool = False,
    validation: float = 0.0,
    shift: Shift | None = None,
    roles: RoleSettings | None = None,
    change: ChangeSettings | None = None,
) -> Population:
    """The population that this partition makes of the dataset; the same seed gives the same bits.

    public_fraction of the training rows (with public_test also of the test rows) goes to the server; train_samples and
    test_samples cap the rows of a client (shared test sets are large, and a shift for each client copies them). Clients
    are tested on the rows the partition gives them, with `global_test` on all test rows (NIID-Bench), with
    `validation` on that share of their own training rows, which they then do not train on (REPA).
    """
    tests = Tests(Most(train_samples, test_samples), validation, global_test)
    supply = Supply.of(dataset, PublicShare(public_fraction, public_test), seed)
    split = supply.draw(partition, tests, generator(seed, "partition"))
    changes: list[Change] = []
    if change is not None and change.round:
        other = supply.draw(partition, tests, generator(seed, "change"))
        changes.append(plan_change(change, split, other, dataset.y_train, generator(seed, "changed clients")))
    population = plain = supply.pool(dataset, split, tuple(changes))
    if split.swaps:
        population = LabelSwap(split.swaps)(population, generator(seed, "swaps"))
    if shift is not None:
        population = shift(population, generator(seed, "shift"))
        if not isinstance(population, Population):
            raise DataError(f"a shift must return a kinfed.data.Population, got a {type(population).__name__}")
    roles = roles or RoleSettings()
    population = assign_roles(population, roles, generator(seed, "roles"))
    if roles.look_alikes:
        population = with_look_alikes(population, plain, roles, generator(seed, "look-alikes"))
    return population


@dataclass(frozen=True)
class PublicShare:
    """Which part of the rows the server owns."""

    fraction: float = 0.0
    test: bool = False  # also of the test rows

    def draw(self, labels: Index, rng: np.random.Generator) -> Index:
        """The public ones of these rows, stratified by label."""
        return stratified(labels, round(self.fraction * len(labels)), rng)


@dataclass(frozen=True)
class Most:
    """How many rows a client may have."""

    train_samples: int | None = None
    test_samples: int | None = None

    def __post_init__(self) -> None:
        at_least(1, **{name: most for name, most in vars(self).items() if most is not None})


@dataclass(frozen=True)
class Tests:
    """Which rows a client is tested on."""

    most: Most = Most()
    own: float = 0.0  # share of its training rows; 0: the partition's test rows
    whole: bool = False  # all test rows

    def __post_init__(self) -> None:
        if not 0 <= self.own < 1:
            raise ConfigError(f"validation must be a share from 0 to below 1, got {self.own}")
        if self.own and self.whole:
            raise ConfigError("clients are tested on their own rows (validation) or on all (global_test), not on both")

    def set_apart(self, rows: Index, rng: np.random.Generator) -> tuple[Index, Index]:
        """These training rows, parted into what is left of them and the client's test rows."""
        tested = np.zeros(len(rows), bool)
        tested[rng.permutation(len(rows))[: min(max(1, round(self.own * len(rows))), len(rows) - 1)]] = True
        return rows[~tested], rows[tested]


@dataclass(frozen=True, eq=False)
class Supply:
    """The rows left for clients once the public ones are set apart; the pool is all train, then all test rows."""

    labels: Labels  # of the rows left
    train: Index  # place in the pool of each train row left
    test: Index
    public: Index

    @classmethod
    def of(cls, dataset: Dataset, public: PublicShare, seed: int) -> "Supply":
        """The rows of a dataset without the public ones."""
        fraction(public_fraction=public.fraction)
        count, nobody = len(dataset.y_train), np.empty(0, np.int64)
        public_train = public.draw(dataset.y_train, generator(seed, "public"))
        public_test = public.draw(dataset.y_test, generator(seed, "public test")) if public.test else nobody
        train, test = others(count, public_train), others(len(dataset.y_test), public_test)
        writers = (pick(dataset.writer_train, train), pick(dataset.writer_test, test))
        labels = Labels(dataset.y_train[train], dataset.y_test[test], dataset.classes, *writers)
        return cls(labels, train, count + test, np.concatenate([public_train, count + public_test]))

    def draw(self, partition: Partition, tests: Tests, rng: np.random.Generator) -> Split:
        """A checked split of these rows, in places of the pool."""
        check_clients(partition, len(self.train))
        split = partition(self.labels, rng)
        check(split, self.labels, partition.promise if isinstance(partition, HasPromise) else ANY_SPLIT)
        train = [self.train[some(rows, tests.most.train_samples, rng)] for rows in split.train]
        if tests.own:
            train, test = (list(part) for part in zip(*(tests.set_apart(rows, rng) for rows in train), strict=True))
            return replace(split, train=train, test=[some(rows, tests.most.test_samples, rng) for rows in test])
        given = [np.arange(len(self.test))] * len(train) if tests.whole else split.test
        return replace(split, train=train, test=[self.test[some(rows, tests.most.test_samples, rng)] for rows in given])

    def pool(self, dataset: Dataset, split: Split, changes: tuple[Change, ...]) -> Population:
        """The population of a split."""
        return Population(
            torch.from_numpy(np.concatenate([dataset.x_train, dataset.x_test])),
            torch.from_numpy(np.concatenate([dataset.y_train, dataset.y_test])),
            tuple(torch.from_numpy(rows) for rows in split.train),
            tuple(torch.from_numpy(rows) for rows in split.test),
            dataset.classes,
            None if split.true_clusters is None else torch.from_numpy(split.true_clusters),
            public=torch.from_numpy(self.public),
            changes=changes,
            held_out=torch.from_numpy(self.test),
        )


def check_clients(partition: Partition, rows: int) -> None:
    """Raise DataError where clients are more than can be counted; partitions say themselves how many are too many."""
    clients = getattr(partition, "clients", 1)
    if clients > LATER:
        enough(clients, rows, f"a partition into {clients} clients")


def pick(values: Index | None, rows: Index) -> Index | None:
    """These rows of an array that may be missing."""
    return None if values is None else values[rows]


def some(rows: Index, limit: int | None, rng: np.random.Generator) -> Index:
    """At most `limit` of the rows, at random, in their order."""
    if limit is None or len(rows) <= limit:
        return rows
    return np.sort(rng.choice(rows, limit, replace=False))
