"""Test samples that several clients have, evaluated once for each model that several clients use.

Partitions that draw each client's test samples by its labels give one sample to many clients: a hundred clients of
`dirichlet` hold 364,000 test samples of CIFAR-10, of which 10,000 are different. Where all of a cohort use models that
they were served, these are evaluated on the different samples, and each client looks up the outputs of its own.
Whether that is done depends on the cohort, its samples and its models alone, never on how it is cut into blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from kinfed.capabilities import SelectsModel
from kinfed.client import Client, KnownOutputs
from kinfed.client_tasks import find_client_model
from kinfed.engines.workers import cores, run_at_once
from kinfed.errors import raise_if_cancelled
from kinfed.federation import Offer
from kinfed.method import Method
from kinfed.models import Model
from kinfed.params import NOTHING, Payload, Stack, count, each_leaf, from_flat, model_in, select, to_flat

OFTEN = 2  # times as many samples as pairs of a model and a sample, from which on each pair is evaluated once
LARGEST = 2**30  # bytes of all outputs
AT_ONCE = 1024  # samples that a worker evaluates in one go
MOST = 64  # groups of clients whose test samples are kept
GPU_BYTES = 2**28  # of the largest activation that a GPU computes at once
NOBODY = Client.__new__(Client)  # it has nothing: whoever reads of it gets an AttributeError


@dataclass
class TestSamples:
    """The test samples of all clients; those of a group of them are kept, as it hardly changes from round to round."""

    of_clients: Sequence[Tensor]
    device: torch.device
    known: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def count(self, clients: Sequence[int]) -> int:
        """How many these clients have together."""
        return sum(len(self.of_clients[i]) for i in clients)

    def find_different(self, clients: Sequence[int]) -> Tensor:
        """The different ones of these clients, in order."""
        group = tuple(clients)
        if group not in self.known:
            if len(self.known) >= MOST:
                self.known.clear()
            self.known[group] = torch.cat([self.of_clients[i] for i in group]).unique().to(self.device)
        return self.known[group]


class UsedModels(NamedTuple):
    """The models that the clients of a cohort use as they are."""

    models: Stack
    rows: list[int]  # those of the stack that are used
    number: Tensor | None  # [cohort] which of the rows each client uses; None: it selects one

    def group(self, tests: TestSamples, cohort: Sequence[int]) -> list[Tensor]:
        """The different test samples of each row's clients."""
        if self.number is None:
            return [tests.find_different(cohort)] * len(self.rows)
        whose: list[list[int]] = [[] for _ in self.rows]
        for client, row in zip(cohort, self.number.tolist(), strict=True):
            whose[row].append(client)
        return [tests.find_different(clients) for clients in whose]


def share_outputs(
    method: Method[object], offer: Offer, x: Tensor, tests: TestSamples, cohort: Sequence[int], workers: int
) -> KnownOutputs | None:
    """Outputs of the models that these clients use for their test samples; the model of each is [clients].

    None where each client is to evaluate its own: its model is its own, few samples are shared, or outputs are many;
    on a GPU also where it selects a model, since a CUDA graph of that is faster.
    """
    used, tested = find_used(method, offer, len(cohort)), tests.count(cohort)
    if used is None or not tested or (x.is_cuda and used.number is None):  # it loses more by selecting eagerly
        return None
    samples = used.group(tests, cohort)
    if tested < OFTEN * sum(map(len, samples)):
        return None
    return evaluate_pairs(find_client_model(method), used, samples, x, workers)


def find_used(method: Method[object], offer: Offer, clients: int) -> UsedModels | None:
    """The models that so many clients use as they are offered; None where some use others."""
    if isinstance(method, SelectsModel) and "models" in offer.shared:
        if not uses_selected(method):
            return None
        models, body = model_in(offer.shared, "models"), model_in({"body": NOTHING, **offer.shared}, "body")
        whole = each_leaf(lambda w: w.expand(count(models), *w.shape), body) | models
        return UsedModels(whole, list(range(count(models))), None)
    if "params" in offer.each and offer.pick is None:
        return None
    served = from_flat(to_flat(offer.shared) | select(to_flat(offer.each), 0))
    if not uses_served(method, served):
        return None
    if offer.pick is None or "params" not in offer.each:
        alone = each_leaf(lambda w: w[None], model_in(served, "params"))
        return UsedModels(alone, [0], torch.zeros(clients, dtype=torch.long))
    rows, number = offer.pick.unique(return_inverse=True)
    return UsedModels(model_in(offer.each, "params"), rows.tolist(), number)


def uses_served(method: Method[object], served: Payload) -> bool:
    """Whether clients use the very model that they are served, whatever they have and remember."""
    if "params" not in served:
        return False
    served = from_flat({name: t.clone() for name, t in to_flat(served).items()})  # should it write into them
    try:
        own, params = model_in(served, "params"), method.personalise(NOBODY, served)
    except (AttributeError, KeyError, TypeError):  # the method looks at the client, or is served something else
        return False
    return params.keys() == own.keys() and all(params[name] is w and not w._version for name, w in own.items())


def uses_selected(method: Method[object]) -> bool:
    """Whether clients use the model that they select; a class that only overrides `personalise` may change it."""
    owner = next(each for each in type(method).__mro__ if {"personalise", "select_offered"} & vars(each).keys())
    return "select_offered" in vars(owner)


def may_share(method: Method[object]) -> bool:
    """Whether clients use one of several models as it is, as far as that is known before the first round."""
    if isinstance(method, SelectsModel):
        return uses_selected(method)
    return uses_served(method, {"params": method.model.init()})


def evaluate_pairs(
    model: Model, used: UsedModels, samples: Sequence[Tensor], x: Tensor, workers: int
) -> KnownOutputs | None:
    """What each model makes of its samples of the pool x; None where that does not fit, or depends on chance."""
    facts, different = model.probe_evaluation(x), torch.cat(list(samples)).unique()
    if facts.flaw or facts.draws_always:
        return None
    one = model.logits(select(used.models, used.rows[0]), x[different[:1]])
    if len(used.rows) * len(different) * one.numel() * one.element_size() > LARGEST:
        return None
    table = one.new_zeros(len(used.rows), len(different), *one.shape[1:])  # clients without samples see an output, too
    place = torch.zeros(len(x), dtype=torch.long, device=x.device)
    place[different] = torch.arange(len(different), device=x.device)

    def evaluate(row: int, part: Tensor) -> None:
        raise_if_cancelled()
        table[row, place[part]] = model.logits(select(used.models, used.rows[row]), x[part])

    at_once = max(AT_ONCE, GPU_BYTES // max(1, facts.largest)) if x.is_cuda else AT_ONCE
    parts = [(row, part) for row, own in enumerate(samples) for part in own.split(at_once)]
    at_work = 1 if x.is_cuda else max(workers, cores())  # a core each, whatever the plan says
    run_at_once(lambda part: evaluate(*part), parts, at_work)
    return KnownOutputs(table.flatten(0, 1), place, len(different), used.number)
