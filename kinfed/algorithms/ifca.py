"""IFCA: the Iterative Federated Clustering Algorithm (Ghosh et al., NeurIPS 2020), Algorithm 1, option II.

Averages are weighted by rows (MNIST and CIFAR code: plain means). Where one first model suits all clients best it
stays so: `least_share` draws anew until each attracts so many (CIFAR code: 0.35 for two, 0.1 for four).
`warm_rounds` is section 6's weight sharing: after so many rounds of FedAvg all layers but the last are fixed, and
clusters differ in their last layer, drawn independently (FEMNIST code: trained by random groups first).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kinfed.aggregation import mix_heard, one_hot
from kinfed.algorithm import Algorithm, score
from kinfed.algorithms.groups import inits, need_labels, taken
from kinfed.client import Client, Reply
from kinfed.errors import ConfigError
from kinfed.federation import Federation, Offer
from kinfed.models import Model
from kinfed.models.parts import beside, is_last
from kinfed.params import NOTHING, Params, Stack, count, rows
from kinfed.training import LocalTraining

Weights = Mapping[str, Tensor]
ATTEMPTS = 100  # to draw first models


@dataclass(frozen=True)
class IFCAState:
    models: Stack  # [C], or the C last layers
    body: Params  # the layers that all clusters share; empty unless weights are shared
    choices: Tensor  # [clients] what each chose last; -1: it never trained


@dataclass(frozen=True)
class IFCA(Algorithm[IFCAState]):
    """Clients are offered all models, choose the one with the least loss on their rows, and train it."""

    model: Model
    local: LocalTraining = LocalTraining()
    clusters: int = 2  # C
    least_share: float = 0.0  # of the sampled clients that must choose each first model; 0: drawn once
    warm_rounds: int = 0  # of FedAvg, before the last layer is cut off; 0: clusters share no weights

    serves_unlabelled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.clusters < 1 or self.warm_rounds < 0 or not 0 <= self.least_share <= 1 / self.clusters:
            got = f"{self.clusters}, {self.warm_rounds} and {self.least_share}"
            raise ConfigError(f"wanted clusters >= 1, warm_rounds >= 0 and least_share <= 1 / clusters, got {got}")

    def init(self, fed: Federation) -> IFCAState:
        unknown = torch.full((fed.count,), -1, device=fed.device)
        if self.warm_rounds:
            return IFCAState(inits(self.model, 1, fed.device), {}, unknown)
        return self.drawn(IFCAState({}, {}, unknown), fed)

    def round(self, state: IFCAState, t: int, fed: Federation) -> IFCAState:
        if self.warm_rounds and t == self.warm_rounds:
            body = {name: w for name, w in rows(state.models, 0).items() if not is_last(self.model, name)}
            state = self.drawn(replace(state, body=body), fed)
        cohort = fed.sample()
        replies = fed.run(self.train, cohort, self.offer(state, cohort, fed))
        chosen = one_hot(replies["choice"], count(state.models)) * fed.sizes[replies.cohort]
        models = mix_heard(state.models, chosen, replies.stack("params"))
        return replace(state, models=models, choices=state.choices.index_copy(0, replies.cohort, replies["choice"]))

    def drawn(self, state: IFCAState, fed: Federation) -> IFCAState:
        """The state with C new models, or C new last layers of its body."""
        for attempt in range(ATTEMPTS):
            drawn = inits(self.model, self.clusters, fed.device, attempt)
            models = {name: w for name, w in drawn.items() if name not in state.body}
            state = replace(state, models=models, choices=torch.full_like(state.choices, -1))
            if not self.least_share:
                return state
            cohort = fed.sample()
            choices = fed.run(self.pick, cohort, self.offer(state, cohort, fed))["choice"]
            if one_hot(choices, self.clusters).sum(1).min() >= self.least_share * len(cohort):
                return state
        raise ConfigError(
            f"no {self.clusters} of {ATTEMPTS} first models attract {self.least_share} of the clients each"
        )

    def train(self, client: Client, models: Stack, body: Weights = NOTHING) -> Reply:
        """Client task: it trains what it chooses, and says which."""
        choice = self.choose(client, models, body)
        trained, _ = self.local(client, taken(models, choice), beside(self.model.gradient, body))
        return Reply({"params": trained, "choice": choice})

    def pick(self, client: Client, models: Stack, body: Weights = NOTHING) -> Reply:
        """Client task: which of the first models it would choose."""
        return Reply({"choice": self.choose(client, models, body)})

    def choose(self, client: Client, models: Stack, body: Weights) -> Tensor:
        """The model with the least loss on the client's training rows."""
        every = range(count(models))
        losses = [score(self.model, {**body, **rows(models, c)}, client.train).send["loss"] for c in every]
        return torch.stack(losses).argmin()  # type: ignore[arg-type]

    def personalise(self, client: Client, models: Stack, body: Weights = NOTHING) -> Params:  # type: ignore[override]
        return {**body, **taken(models, self.choose(client, models, body))}

    def offer(self, state: IFCAState, cohort: Tensor, fed: Federation) -> Offer:
        return Offer(shared={"models": state.models, "body": state.body})

    def admit(self, state: IFCAState, newcomers: Tensor, fed: Federation) -> IFCAState:
        need_labels(newcomers, fed, "IFCA's clients choose their model by its loss")
        return state

    def groups(self, state: IFCAState) -> Tensor:
        return state.choices
