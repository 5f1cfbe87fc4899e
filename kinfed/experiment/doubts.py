"""What an experiment warns of: too few rounds, long evaluations, clusters too small to outvote a liar, divergence."""

import logging
import warnings
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from kinfed.capabilities import ClustersLater, StepsBySGD
from kinfed.clustering.kmeans import rename
from kinfed.federation import Federation
from kinfed.method import Method
from kinfed.metrics import is_stuck

State = TypeVar("State")
log = logging.getLogger("kinfed")
OFTEN = 4  # times as many test samples as there are different ones, or samples to train on, from which on it is said
MANY = 100_000  # test samples; fewer take no time to speak of
SETTLED = 3  # rounds without a change
FEW = 0.05  # share of the clients that may change their cluster
PART = 0.5  # share of the clients that train below which it is said that clusters are those of a few alone
OUTVOTED = 4  # replies of a model in a round from which on robust aggregation outvotes one liar


def warn_if_short(method: Method[State], fed: Federation, rounds: int) -> None:
    """Warns where too few rounds are planned, or another optimiser, than the method or the clients' changes need."""
    late = sorted({change.round for change in fed.population.changes if change.round >= rounds})
    if late:
        warnings.warn(
            f"samples of clients change before round {late[0]} (they count from 0), and there are only "
            f"{rounds}: use more rounds or earlier changes",
            stacklevel=3,
        )
    if isinstance(method, StepsBySGD) and (kind := method.local.optimiser) != "sgd":
        warnings.warn(f"training.optimiser is {kind}, but {method.sgd_reason}", stacklevel=3)
    if not isinstance(method, ClustersLater):
        return
    name, setting = type(method).__name__, method.clusters_after
    first = getattr(method, setting)
    if first >= rounds:
        warnings.warn(
            f"{name} looks for clusters after {first} rounds ({setting}), and there are only {rounds}: "
            f"it will find none; use more rounds or a smaller {setting}",
            stacklevel=3,
        )


def say_if_tests_are_many(fed: Federation) -> None:
    """Logs where clients share so many test samples that evaluation may take longer than training."""
    if fed.evaluates_once:
        return
    clients = fed.population
    sets = {part.numpy().tobytes(): part for part in clients.test if len(part)}  # equal sets are gone through once
    tested, trained = sum(map(len, sets.values())), sum(map(len, clients.train))
    different = len(torch.cat(list(sets.values())).unique()) if sets else 0
    if tested >= max(MANY, OFTEN * different, OFTEN * trained):
        log.info(
            "each evaluation goes through %d test samples of all clients, %d of them different, which may take longer "
            "than training: data.test_samples=100 takes 100 of each client", tested, different,
        )  # fmt: skip


def warn_if_outvoted(fed: Federation, clusters: Tensor) -> None:
    """Logs where a robust rule meets clusters ([clients], -1: none) of too few replies to outvote a liar."""
    members = clusters[fed.clients.cpu()]
    sizes = members[members >= 0].bincount()
    few = int(((sizes > 1) & (sizes * fed.fraction < OUTVOTED)).sum())
    if few and fed.aggregation.is_robust:
        log.warning(
            "%d of %d clusters have fewer than %d replies in a round: there no aggregation tells who lies; larger "
            "clusters or a larger fraction do", few, int((sizes > 0).sum()), OUTVOTED,
        )  # fmt: skip


def warn_if_unsettled(recent: Sequence[Tensor]) -> None:
    """Logs where clients have other clusters ([clients], -1: none) at the end than so many rounds before."""
    if len(recent) <= SETTLED:
        return
    before, now = (clusters.cpu() for clusters in (recent[-1 - SETTLED], recent[-1]))
    both = (before >= 0) & (now >= 0)
    moved, clients = count_moved(before[both], now[both]), int(both.sum())
    if moved > FEW * clients:
        log.warning(
            "%d of %d clients changed their cluster in the last %d rounds: the clusters are not settled, and more "
            "rounds may find others", moved, clients, SETTLED,
        )  # fmt: skip


def warn_if_partial(fed: Federation, clusters: Tensor) -> None:
    """Logs where few of the clients that train have a cluster ([clients], -1: none), so that scores are of these."""
    has = clusters[fed.clients.cpu()] >= 0
    known, clients = int(has.sum()), len(has)
    if 0 < known < PART * clients:
        log.warning(
            "the clusters are those of %d of %d clients, the participants of a round: ARI and the number of clusters "
            "say nothing of the others; a larger fraction takes in more", known, clients,
        )  # fmt: skip


def count_moved(before: Tensor, now: Tensor) -> int:
    """How many clients have another cluster, once clusters are renamed so that they are as few as can be."""
    if torch.equal(before, now):
        return 0
    return int((rename(now, before, int(torch.maximum(before, now).max()) + 1) != before).sum())


def warn_if_stuck(method: Method[State], means: Sequence[tuple[int, float]]) -> None:
    """Warns once weights have diverged, by the mean accuracy of each evaluated round."""
    if not method.model.task.has_classes() or method.model.task.metric().unit != "%":
        return
    chance = 1 / method.model.classes
    if is_stuck(means, chance) and not is_stuck(means[:-1], chance):
        best, (done, now) = max(mean for _, mean in means), means[-1]
        warnings.warn(
            f"round {done}: accuracy fell from {100 * best:.1f} to {100 * now:.1f} % and does not move any more; "
            "weights have diverged, and a smaller training.lr is the usual remedy",
            stacklevel=2,
        )
