"""Shape: several models, the components, of which each client uses a mixture with shares of its own.

A client's shares never leave it. It estimates them anew from its labelled samples whenever it is served, from those it
trained with; one that never trained starts from equal shares, and one without labels keeps what it has.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from kinfed.capabilities import TRAIN_SUMMED, Exportable, ServesNetwork
from kinfed.client import Client
from kinfed.federation import Federation, Offer
from kinfed.learning_tasks import MOST
from kinfed.method import Method
from kinfed.models import Model, make_mixture, mix_models
from kinfed.params import Params, Payload, Stack, Value, count, model_in, select, stack
from kinfed.targets import fill_unknown, is_known, mark_labels
from kinfed.training import SMALLEST, LocalTraining


class ComponentsState(Protocol):
    """A server state with components."""

    @property
    def models(self) -> Stack: ...  # θₘ, [K]


M = TypeVar("M", bound=ComponentsState)


class Mixed(Method[M], Exportable[M], ServesNetwork):
    """Clients train all components, each on samples weighted by how well it fits them, and use their mixture."""

    components: int
    summed_tasks: ClassVar[Mapping[str, str]] = TRAIN_SUMMED
    hides_clients: ClassVar[bool] = True

    def initial_memory(self) -> dict[str, Value]:
        return {"shares": torch.full((self.components,), 1 / self.components)}

    def client_model(self) -> Model:
        return make_mixture(self.model, self.components)

    def offer(self, state: M, cohort: Tensor, fed: Federation) -> Offer:
        return Offer(shared={"models": state.models})

    def personalise(self, client: Client, offer: Payload) -> Params:
        models = model_in(offer, "models")
        return mix_models(models, expect(client, self.model, models).shares)

    def assignment_rule(self) -> str:
        return "a client mixes all components by shares that it estimates from its labelled samples; else equal shares"


class Expectation(NamedTuple):
    """What an E-step gives."""

    weights: Tensor  # q, [K, n] how likely each training sample is each component's
    shares: Tensor  # π, [K] their means over labelled samples
    masses: Tensor  # [K, labels] the same apart by label; [K, 1] where targets are no classes


def expect(client: Client, model: Model, models: Stack, log_prior: Tensor | None = None) -> Expectation:
    """Client: E-step. q is proportional to πₘ · exp(-loss), times what a prior says of the sample's label.

    The logarithm of the prior is [K, labels]. A client without labelled samples keeps its shares.
    """
    shares, weights = client.recall("shares"), []
    totals, number = torch.zeros((), device=shares.device), torch.zeros_like(client.train.size)
    for batch in client.train.in_order():
        y, known = fill_unknown(batch.y), batch.mask & is_known(batch.y)
        labels = mark_labels(y, known, model.classes).float()  # [b, labels]
        outputs = [model.logits(select(models, m), batch.x) for m in range(count(models))]
        losses = torch.stack([model.task.losses(output, y) for output in outputs]).nan_to_num(nan=MOST, posinf=MOST)
        fits = shares.log()[:, None] - losses.to(shares.dtype)  # whatever the network's
        weights.append((fits if log_prior is None else fits + log_prior @ labels.T).softmax(0))
        totals, number = totals + weights[-1] @ labels, number + known.sum()
    masses = totals / number.clamp(min=1)
    own = torch.where(number > 0, masses.sum(1), shares)
    return Expectation(torch.cat(weights, 1)[:, : len(client.train)], own, masses)


def maximise(client: Client, model: Model, local: LocalTraining, models: Stack, weights: Tensor) -> Stack:
    """Client: M-step. Each component [K], trained on samples that are weighted by its row of the weights [K, n]."""
    own = (client.with_train(replace(client.train, weights=q)) for q in weights)
    return stack([local(part, select(models, m), model.gradient)[0] for m, part in enumerate(own)])


def share_labels(masses: Tensor) -> Tensor:
    """The share of each label in a component, by what it got of each; even ones where it got nothing: [K, labels]."""
    total = masses.sum(1, keepdim=True)
    return torch.where(total > 0, masses / total.clamp(min=SMALLEST), 1 / masses.shape[1])
