"""From a dataset and a partition to a population: public samples, clients, change, shift, drift, roles, look-alikes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kinfed.checks import at_least, fraction
from kinfed.copies import find_originals
from kinfed.data.changes import ChangeSettings, Redraw, choose_changed, plan_change
from kinfed.data.dataset import Dataset, are_classes, labels_of
from kinfed.data.drift import Drift
from kinfed.data.partitions import PARTITIONS, Natural, Writers
from kinfed.data.partitions.split import (
    ANY_SPLIT,
    HasPromise,
    IgnoresLabels,
    Index,
    Labels,
    Partition,
    Split,
    check,
    draw_stratified,
    generator,
    hold_out_once,
    need_samples,
    others,
)
from kinfed.data.population import LATER, Change, Population
from kinfed.data.roles import RoleSettings, add_look_alikes, add_unlabelled_twins, assign_roles
from kinfed.data.shifts import LabelSwap, Shift
from kinfed.errors import ConfigError, DataError


def build_population(
    dataset: Dataset,
    partition: Partition,
    seed: int,
    *,
    public_fraction: float = 0.0,
    public_test: bool = False,
    public_train: bool = True,
    train_samples: int | None = None,
    test_samples: int | None = None,
    global_test: bool = False,
    validation: float = 0.0,
    shift: Shift | None = None,
    roles: RoleSettings | None = None,
    change: ChangeSettings | None = None,
    drift: Drift | None = None,
) -> Population:
    """The population that this partition makes of the dataset; the same seed gives the same bits.

    public_fraction of the training samples goes to the server, with public_test also of the test samples, without
    public_train of these alone.
    train_samples and test_samples cap a client's samples: shared test sets are large, and a shift copies them.
    Clients are tested on the samples the partition gives them, with `global_test` on all test samples (NIID-Bench),
    with `validation` on that share of their own training samples, which they then do not train on (REPA).
    """
    tests = Tests(Most(train_samples, test_samples), validation, global_test)
    supply = Supply.of(dataset, PublicShare(public_fraction, public_test, public_train), seed)
    change = change or ChangeSettings(round=0)
    draws = ["partition", "change"] if change.round else ["partition"]
    rngs = [generator(seed, draw) for draw in draws]
    splits = [supply.deal(partition, tests, rng) for rng in rngs]
    changed = choose_changed(change, len(splits[0].train), generator(seed, "changed clients"))
    if change.round:
        given = Redraw(splits[0], splits[1], changed)
        splits = list(given.part(dataset.labels_train, supply.train, generator(seed, "parted samples")))
    if tests.own:
        splits = tests.split_off(splits, rngs, (torch.from_numpy(dataset.x_train), torch.from_numpy(dataset.y_train)))
    split, *later = splits
    changes = tuple(plan_change(change, changed, other) for other in later)
    population = plain = supply.pool(dataset, split, changes)
    if split.swaps:
        population = LabelSwap(split.swaps)(population, generator(seed, "swaps"))
    if shift is not None:
        population = shift(population, generator(seed, "shift"))
        if not isinstance(population, Population):
            raise DataError(f"a shift must return a kinfed.data.Population, got a {type(population).__name__}")
    roles = roles or RoleSettings()
    if drift is not None:
        population = apply_drift(drift, population, roles, seed)
    population = assign_roles(population, roles, generator(seed, "roles"))
    if roles.unlabelled_twins:
        population = add_unlabelled_twins(population)
    if roles.look_alikes:
        population = add_look_alikes(population, plain, roles, generator(seed, "look-alikes"))
    return population


def score_on_training(population: Population, share: float, seed: int) -> Population:
    """The population whose clients are scored on this share of their training samples, which they do not train on.

    Their test samples are left out: for model selection. Clients without labels are not scored; look-alikes stay. A
    sample that several clients have, or one client before and after a change, is held out for all of them, or for none.
    """
    held = torch.from_numpy(hold_out_labelled(population, share, seed))

    def split(client: int, train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
        role = population.role(client)
        if role.look_alike_of is not None:
            return train, test
        return (train[~held[train]], train[held[train]]) if role.labelled else (train, test[:0])

    train, test = zip(*map(split, range(population.clients), population.train, population.test), strict=True)
    changes = []
    for change in population.changes:
        parts = list(map(split, change.clients.tolist(), change.train, change.test))
        changes.append(replace(change, train=tuple(part[0] for part in parts), test=tuple(part[1] for part in parts)))
    return replace(population, train=train, test=test, changes=tuple(changes))


def hold_out_labelled(population: Population, share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Which samples of the pool are held out of training: this share of each labelled client's, stratified."""
    roles, labels = list(map(population.role, range(population.clients))), labels_of(population.y.numpy())
    lists = [(0, client, train) for client, train in enumerate(population.train)]
    for change in population.changes:
        lists += zip([change.round] * len(change.train), change.clients.tolist(), change.train, strict=True)
    owners = [own for own in lists if roles[own[1]].labelled and roles[own[1]].look_alike_of is None]

    def draw(owner: int, samples: Index, count: int) -> Index:
        round, client, _ = owners[owner]
        return samples[draw_stratified(labels[samples], count, generator(seed, "selection", client, round))]

    origins = population.origins
    originals = find_originals(population.x, population.y, [origins[train] for *_, train in owners])
    return hold_out_once([train.numpy() for *_, train in owners], share, draw, originals[origins].numpy())


def apply_drift(drift: Drift, population: Population, roles: RoleSettings, seed: int) -> Population:
    """The population after a drift; look-alikes cannot be made of clients that change."""
    if roles.look_alikes:
        raise ConfigError("look-alikes resemble clients that stay as they are: set roles.look_alikes = 0, or no drift")
    found = drift(population, generator(seed, "drift"))
    if not isinstance(found, Population):
        raise DataError(f"a drift must return a kinfed.data.Population, got a {type(found).__name__}")
    return found


@dataclass(frozen=True)
class PublicShare:
    """Which part of the samples the server owns."""

    fraction: float = 0.0
    test: bool = False  # also of the test samples
    train: bool = True  # of the training samples

    def draw(self, labels: Index, wanted: bool, rng: np.random.Generator) -> Index:
        """The public ones of these samples, stratified by label; none where none are wanted of them."""
        return draw_stratified(labels, round(self.fraction * len(labels)) if wanted else 0, rng, low_first=True)


@dataclass(frozen=True)
class Most:
    """How many samples a client may have."""

    train_samples: int | None = None
    test_samples: int | None = None

    def __post_init__(self) -> None:
        at_least(1, **{name: most for name, most in vars(self).items() if most is not None})


@dataclass(frozen=True)
class Tests:
    """Which samples a client is tested on."""

    most: Most = Most()
    own: float = 0.0  # share of its training samples; 0: the partition's test samples
    whole: bool = False  # all test samples

    def __post_init__(self) -> None:
        if not 0 <= self.own < 1:
            raise ConfigError(f"validation must be a share from 0 to below 1, got {self.own}")
        if self.own and self.whole:
            raise ConfigError(
                "clients are tested on their own samples (validation) or on all (global_test), not on both: set "
                "one of the two"
            )

    def split_off(
        self, splits: Sequence[Split], rngs: Sequence[np.random.Generator], known: tuple[Tensor, Tensor]
    ) -> list[Split]:
        """The splits whose clients are tested on some of their training samples, which nobody trains on then.

        Nor on copies of these; known: all training samples, which come first in the pool, and their targets.
        """
        rng_of = [rng for split, rng in zip(splits, rngs, strict=True) for _ in split.train]

        def draw(owner: int, samples: Index, count: int) -> Index:
            return samples[rng_of[owner].permutation(len(samples))[:count]]

        owned = [samples for split in splits for samples in split.train]
        originals = find_originals(*known, [torch.from_numpy(samples) for samples in owned])
        held = hold_out_once(owned, self.own, draw, originals.numpy())
        return [
            replace(
                split,
                train=[own[~held[own]] for own in split.train],
                test=[some(own[held[own]], self.most.test_samples, rng) for own in split.train],
            )
            for split, rng in zip(splits, rngs, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class Supply:
    """The samples left for clients once the public ones are set apart; the pool is all train, then all test samples."""

    labels: Labels  # of the samples left
    train: Index  # place in the pool of each train sample left
    test: Index
    public: Index

    @classmethod
    def of(cls, dataset: Dataset, public: PublicShare, seed: int) -> "Supply":
        """The samples of a dataset without the public ones."""
        fraction(public_fraction=public.fraction)
        count, known, unseen = len(dataset.y_train), dataset.labels_train, dataset.labels_test
        public_train = public.draw(known, public.train, generator(seed, "public"))
        public_test = public.draw(unseen, public.test, generator(seed, "public test"))
        train, test = others(count, public_train), others(len(unseen), public_test)
        writers = (pick(dataset.writer_train, train), pick(dataset.writer_test, test))
        has_classes = are_classes(dataset.y_train)
        classes = dataset.classes if has_classes else 1
        labels = Labels(known[train], unseen[test], classes, *writers, dataset.client_clusters, has_classes)
        return cls(labels, train, count + test, np.concatenate([public_train, count + public_test]))

    def deal(self, partition: Partition, tests: Tests, rng: np.random.Generator) -> Split:
        """A checked split of these samples, in places of the pool, before clients part what they have."""
        check_clients(partition, len(self.train))
        if not self.labels.has_classes:
            refuse_labels(partition)
        split = self.split(partition, rng)
        check(split, self.labels, partition.promise if isinstance(partition, HasPromise) else ANY_SPLIT)
        train = [self.train[some(samples, tests.most.train_samples, rng)] for samples in split.train]
        if tests.own:
            return replace(split, train=train)
        given = [np.arange(len(self.test))] * len(train) if tests.whole else split.test
        return replace(
            split, train=train, test=[self.test[some(samples, tests.most.test_samples, rng)] for samples in given]
        )

    def split(self, partition: Partition, rng: np.random.Generator) -> Split:
        """What the partition makes of them; where it cannot, clients of the data's own may have been meant."""
        try:
            return partition(self.labels, rng)
        except (ConfigError, DataError) as error:
            name = next((name for name, kind in PARTITIONS.items() if type(partition) is kind), "")
            if self.labels.writer_train is None or not name or isinstance(partition, Natural | Writers):
                raise
            raise type(error)(
                f"partition '{name}': {error}; the data say whose each sample is: partition = natural takes these "
                "clients, with partition.max_clients in place of partition.clients at most so many"
            ) from error

    def pool(self, dataset: Dataset, split: Split, changes: tuple[Change, ...]) -> Population:
        """The population of a split."""
        return Population(
            torch.from_numpy(np.concatenate([dataset.x_train, dataset.x_test])),
            torch.from_numpy(np.concatenate([dataset.y_train, dataset.y_test])),
            tuple(torch.from_numpy(samples) for samples in split.train),
            tuple(torch.from_numpy(samples) for samples in split.test),
            dataset.classes,
            None if split.true_clusters is None else torch.from_numpy(split.true_clusters),
            public=torch.from_numpy(self.public),
            changes=changes,
            held_out=torch.from_numpy(self.test),
            class_names=dataset.class_names,
            feature_names=dataset.feature_names,
            client_names=tuple(dataset.client_names[writer] for writer in split.writers if dataset.client_names),
        )


def refuse_labels(partition: Partition) -> None:
    """Raise DataError for a partition of the registry that is by label: there are none."""
    name = next((name for name, kind in PARTITIONS.items() if type(partition) is kind), "")
    if name and not isinstance(partition, IgnoresLabels):
        wanted = " or ".join(known for known, kind in PARTITIONS.items() if issubclass(kind, IgnoresLabels))
        raise DataError(
            f"partition '{name}' is by label, and the targets are no classes: use {wanted}, or one of your own"
        )


def check_clients(partition: Partition, samples: int) -> None:
    """Raise DataError where clients are more than can be counted; partitions say themselves how many are too many."""
    clients = getattr(partition, "clients", 1)
    if clients > LATER:
        need_samples(clients, samples, f"a partition into {clients} clients")


def pick(values: Index | None, samples: Index) -> Index | None:
    """These samples of an array that may be missing."""
    return None if values is None else values[samples]


def some(samples: Index, limit: int | None, rng: np.random.Generator) -> Index:
    """At most `limit` of the samples, at random, in their order."""
    if limit is None or len(samples) <= limit:
        return samples
    return np.sort(rng.choice(samples, limit, replace=False))
