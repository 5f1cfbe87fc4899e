"""Shape: several models, and for each client the one it is served.

`hears[g, m]` says that client m's updates enter model g. A partition into clusters is a block matrix, FLT's case I the
distinct rows of its related-clients matrix: clients with the same relatives share one model instead of holding copies.
"""

from abc import ABC
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor

from kinfed.aggregation import mix, mix_heard, one_hot
from kinfed.algorithm import Algorithm, score
from kinfed.client import Client, Reply, base_key
from kinfed.errors import RoleError
from kinfed.federation import Federation, Offer, Replies
from kinfed.models import Model
from kinfed.params import Params, Stack, count, each_leaf, join, put, repeat, rows, stack, subtract

Stale = Literal["aggregated", "last_local", "exclude"]
SelectOn = Literal["train_loss", "test_accuracy"]  # the second looks at test rows: only to compare with such papers


@dataclass(frozen=True)
class ServedState:
    models: Stack  # [G]
    labels: Tensor  # [clients] the model each is served; -1: not placed yet


@dataclass(frozen=True)
class GroupState(ServedState):
    hears: Tensor  # [G, clients] bool
    slots: Stack  # [clients] what each trained last; empty unless stale="last_local"


V = TypeVar("V", bound=ServedState)
S = TypeVar("S", bound=GroupState)


class Served(Algorithm[V], ABC):
    """Every client is served one of several models; a method says which, and how they are made."""

    def offer(self, state: V, cohort: Tensor, fed: Federation) -> Offer:
        labels = state.labels[cohort]
        if bool((labels < 0).any()):
            raise RoleError(f"clients {cohort[labels < 0].tolist()} have no model yet: admit them first")
        return Offer(each={"params": state.models}, pick=labels)

    def personalise(self, client: Client, params: Params) -> Params:  # type: ignore[override]
        return params

    def groups(self, state: V) -> Tensor:
        return state.labels

    def differ(self, client: Client, params: Params) -> Reply:
        """Client task: Δw, what local training changes in the model it is sent; some methods place clients by it."""
        trained, _ = self.local(client, params, self.model.gradient)
        return Reply({"update": subtract(trained, params)})


class Groups(Served[S], ABC):
    """Averaging among relatives; a method says who they are.

    `stale` is what a client that was not asked this round contributes (FLT's code averages all slots every round):
    the model it is served ("aggregated"), what it trained last ("last_local"), or nothing ("exclude").
    """

    stale: Stale

    def blend(self, state: S, replies: Replies, fed: Federation) -> S:
        """The state after averaging each model over the clients it hears, weighted by their rows."""
        weights, fresh = state.hears * fed.sizes.float(), replies.stack("params")
        if state.slots:  # "last_local"
            slots = put(state.slots, replies.cohort, fresh)
            return replace(state, slots=slots, models=mix_heard(state.models, weights, slots))
        if self.stale == "aggregated":
            rest = ~torch.isin(torch.arange(fed.count, device=fed.device), replies.cohort)
            old = weights[:, rest] @ one_hot(state.labels[rest], len(weights)).T  # they hold what they were served
            heard = torch.cat([weights[:, replies.cohort], old], 1)
            return replace(state, models=mix_heard(state.models, heard, join(fresh, state.models)))
        return replace(state, models=mix_heard(state.models, weights[:, replies.cohort], fresh))


def first_state(model: Model, stale: Stale, fed: Federation) -> GroupState:
    """One model that everybody is served and hears."""
    first = inits(model, 1, fed.device)
    return GroupState(
        models=first,
        labels=torch.zeros(fed.count, dtype=torch.long, device=fed.device),
        hears=torch.ones(1, fed.count, dtype=torch.bool, device=fed.device),
        slots=repeat(rows(first, 0), fed.count) if stale == "last_local" else {},
    )


def inits(model: Model, number: int, device: torch.device, attempt: int = 0) -> Stack:
    """Independent first models, others at each attempt; the very first is the one that every method starts from."""
    seeds = [base_key("init", model.seed, i, attempt) % 2**32 for i in range(number)]
    first = [model.seed, *seeds[1:]] if attempt == 0 else seeds
    return each_leaf(lambda w: w.to(device), stack([model.init(seed) for seed in first]))


def taken(models: Stack, choice: Tensor) -> Params:
    """One model of a stack; the choice may be a client task's."""
    return each_leaf(lambda w: w.index_select(0, choice[None])[0], models)


def best_for(client: Client, model: Model, models: Stack, select_on: SelectOn) -> Tensor:
    """Client: the model with the least loss on its training rows, or by name with the most hits on its test rows."""
    own = client.test if select_on == "test_accuracy" else client.train
    scores = [score(model, rows(models, m), own).send for m in range(count(models))]
    if select_on == "test_accuracy":
        return torch.stack([s["correct"] for s in scores]).argmax()  # type: ignore[misc]
    return torch.stack([s["loss"] for s in scores]).argmin()  # type: ignore[misc]


def need_labels(clients: Tensor, fed: Federation, why: str) -> None:
    """Raises RoleError unless all these clients have labelled training rows."""
    without = [i for i in clients.tolist() if not fed.roles[i].labelled or not len(fed.train[i])]
    if without:
        raise RoleError(
            f"clients {without} have no labelled training rows, but {why}; use a method that needs none, such as flt"
        )


def seat(state: S, who: Tensor, related: Tensor, fed: Federation) -> S:
    """The state in which `who` are related like this; other training clients stay by themselves."""
    alone = fed.clients[torch.isin(fed.clients, who, invert=True)]
    everyone = torch.eye(fed.count, dtype=torch.bool, device=fed.device)
    everyone[who[:, None], who] = related.to(fed.device)
    everyone &= torch.isin(fed.everyone, fed.clients)  # nobody hears a client that does not train
    return reseat(state, everyone, torch.cat([who, alone]), fed.sizes)


def placed(state: S, newcomers: Tensor, answered: Tensor, labels: Tensor, fed: Federation) -> S:
    """The state in which those who answered have these labels, and the other newcomers that of the largest group."""
    largest = one_hot(state.labels, len(state.hears)).sum(1).argmax()
    joined = state.labels.index_copy(0, newcomers, largest.repeat(len(newcomers))).index_copy(0, answered, labels)
    trains = torch.isin(newcomers, fed.clients)
    hears = state.hears.index_copy(1, newcomers, one_hot(joined[newcomers], len(state.hears)).bool() & trains)
    return holding(replace(state, labels=joined, hears=hears), newcomers)


def holding(state: S, newcomers: Tensor) -> S:
    """The state in which newcomers hold, until they train, the model they are served."""
    if not state.slots:
        return state
    return replace(state, slots=put(state.slots, newcomers, rows(state.models, state.labels[newcomers])))


def reseat(state: S, related: Tensor, placed: Tensor, sizes: Tensor) -> S:
    """The state with one model per distinct row of `related` ([clients, clients]), for the placed clients.

    A model starts as the mean of what its clients were served before; where all are new, of what their relatives are
    served, and without relatives of what everybody is.
    """
    hears, served = torch.unique(related[placed], dim=0, return_inverse=True)
    labels = torch.full_like(state.labels, -1).index_copy(0, placed, served)
    before = one_hot(state.labels, len(state.hears)).T * sizes[:, None]  # [clients, G before]
    weights = before.sum(0).expand(len(hears), -1)
    for nearer in (hears.float() @ before, one_hot(labels, len(hears)) @ before):
        weights = torch.where(nearer.sum(1, keepdim=True) > 0, nearer, weights)
    models = mix(weights / weights.sum(1, keepdim=True), state.models)
    newcomers = placed[state.labels[placed] < 0]
    return holding(replace(state, models=models, labels=labels, hears=hears), newcomers)
