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
from kinfed.capabilities import Exportable, require_labels
from kinfed.client import Client, Reply, client_task
from kinfed.errors import ConfigError
from kinfed.federation import Federation, Offer
from kinfed.method import Method
from kinfed.methods.assigning import check_clusters, inits
from kinfed.methods.model_selection import SelectOn, attractive, best_for, taken
from kinfed.models import Model, fix_weights, is_last_layer
from kinfed.params import NOTHING, Params, Payload, Stack, count, model_in, select
from kinfed.per_client import Labels
from kinfed.training import LocalTraining

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class IFCAState:
    models: Stack  # [C], or the C last layers
    body: Params  # the layers that all clusters share; empty unless weights are shared
    choices: Labels  # [clients] what each chose last; -1: it was never asked


@dataclass(frozen=True)
class IFCA(Method[IFCAState], Exportable[IFCAState]):
    """Clients are offered all models, choose the one with the least loss on their rows, and train it."""

    model: Model
    local: LocalTraining = LocalTraining()
    clusters: int = 2  # C, models that clients choose from
    least_share: float = 0.0  # of the sampled clients that must choose each first model; 0: drawn once
    warm_rounds: int = 0  # of FedAvg, before the last layer is cut off; 0: clusters share no weights
    select_on: SelectOn = "train_loss"  # how a client chooses; test_accuracy leaks, and is there to compare with papers

    needs_labels: ClassVar[str] = "IFCA's clients choose their model by its loss"
    clusters_after: ClassVar[str] = "warm_rounds"

    def __post_init__(self) -> None:
        if self.clusters < 1 or self.warm_rounds < 0 or not 0 <= self.least_share <= 1 / self.clusters:
            got = f"{self.clusters}, {self.warm_rounds} and {self.least_share}"
            raise ConfigError(f"wanted clusters >= 1, warm_rounds >= 0 and least_share <= 1 / clusters, got {got}")

    def init(self, fed: Federation) -> IFCAState:
        check_clusters(self.clusters, fed)
        one = IFCAState(inits(self.model, 1, fed.device), {}, torch.full((fed.count,), -1, device=fed.device))
        return one if self.warm_rounds else self.drawn(one, fed)

    def round(self, state: IFCAState, t: int, fed: Federation) -> IFCAState:
        if self.warm_rounds and t == self.warm_rounds:
            body = {name: w for name, w in select(state.models, 0).items() if not is_last_layer(self.model, name)}
            state = self.drawn(replace(state, body=body), fed)
        cohort = fed.sample()
        replies = fed.run(self.train, cohort, self.offer(state, cohort, fed))
        chosen = one_hot(replies["choice"], count(state.models)) * fed.sizes[replies.cohort]
        models = mix_heard(state.models, chosen, replies.stack("params"))
        return replace(state, models=models, choices=state.choices.index_copy(0, replies.cohort, replies["choice"]))

    def drawn(self, state: IFCAState, fed: Federation) -> IFCAState:
        """The state with C new models, or C new last layers of its body, of which each attracts enough clients."""

        def draw(attempt: int) -> IFCAState:
            models = inits(self.model, self.clusters, fed.device, attempt)
            models = {name: w for name, w in models.items() if name not in state.body}
            return IFCAState(models, state.body, torch.full_like(state.choices, -1))

        return attractive(draw, lambda drawn: self.least_chosen(drawn, fed), self.least_share)

    def least_chosen(self, state: IFCAState, fed: Federation) -> float:
        """The share of the sampled clients that choose the model which the fewest choose."""
        cohort = fed.sample()
        replies = fed.run(self.choose, cohort, self.offer(state, cohort, fed))
        return float(one_hot(replies["choice"], self.clusters).sum(1).min()) / len(cohort)

    @client_task
    def choose(self, client: Client, models: Stack, body: Weights = NOTHING) -> Reply:
        """Client task: which model it would train."""
        return Reply({"choice": best_for(client, self.model, models, self.select_on, body)})

    @client_task
    def train(self, client: Client, models: Stack, body: Weights = NOTHING) -> Reply:
        """Client task: it trains what it chooses, and says which."""
        choice = best_for(client, self.model, models, self.select_on, body)
        trained, _ = self.local(client, taken(models, choice), fix_weights(self.model.gradient, body))
        return Reply({"params": trained, "choice": choice})

    def personalise(self, client: Client, offer: Payload) -> Params:
        models, body = model_in(offer, "models"), model_in({"body": NOTHING, **offer}, "body")
        return body | taken(models, best_for(client, self.model, models, self.select_on, body))

    def offer(self, state: IFCAState, cohort: Tensor, fed: Federation) -> Offer:
        return Offer(shared={"models": state.models, "body": state.body})

    def admit(self, state: IFCAState, newcomers: Tensor, fed: Federation) -> IFCAState:
        require_labels(self, newcomers, fed)
        if fed.round == 0 and not fed.is_over:
            return state  # first models say nothing of them yet; they choose whenever they are served
        replies = fed.run(self.choose, newcomers, self.offer(state, newcomers, fed))
        return replace(state, choices=state.choices.index_copy(0, replies.cohort, replies["choice"]))

    def cluster_assignment(self, state: IFCAState) -> Tensor:
        return state.choices
