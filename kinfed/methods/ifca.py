"""IFCA: the Iterative Federated Clustering Algorithm (Ghosh et al., NeurIPS 2020), Algorithm 1, option II.

Averages are weighted by samples (MNIST and CIFAR code: plain means). Where one first model suits all clients best it
stays so: `least_share` draws anew until each is selected by so many (CIFAR code: 0.35 for two, 0.1 for four).
`warm_rounds` is section 6's weight sharing: after so many rounds of FedAvg all layers but the last are fixed, and
clusters differ in their last layer, drawn independently (FEMNIST code: trained by random groups first).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kinfed.aggregation import Sent
from kinfed.capabilities import Exportable, FindsClusters, SelectsModel, require_labels
from kinfed.client import Client, Reply, client_task
from kinfed.errors import ConfigError
from kinfed.federation import Federation, Offer
from kinfed.method import Method
from kinfed.methods.cluster_models import SelectOn, check_clusters, draw_models, model_at, redraw, select_model
from kinfed.models import Model, fix_weights, is_last_layer
from kinfed.params import NOTHING, Params, Payload, Stack, count, model_in, one_hot, select
from kinfed.per_client import Labels
from kinfed.ranges import CHOICE
from kinfed.training import LocalTraining

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class IFCAState:
    models: Stack  # θⱼ, [C], or the C last layers
    body: Params  # the layers that all clusters share; empty unless weights are shared
    choices: Labels  # [clients] the cluster identity that each estimated last; -1: it was never sampled


@dataclass(frozen=True)
class IFCA(Method[IFCAState], FindsClusters[IFCAState], Exportable[IFCAState], SelectsModel):
    """Clients are offered all models, select the one with the least loss on their samples, and train it."""

    model: Model
    local: LocalTraining = LocalTraining()
    clusters: int = 2  # C, models that clients select from
    least_share: float = 0.0  # of the sampled clients that must select each first model; 0: drawn once
    warm_rounds: int = 0  # of FedAvg, before the last layer is cut off; 0: clusters share no weights
    select_on: SelectOn = "train_loss"  # of model selection; test_accuracy leaks, and is there to compare with papers

    needs_labels: ClassVar[str] = "IFCA's clients select their model by its loss"
    clusters_after: ClassVar[str] = "warm_rounds"
    summed_tasks: ClassVar[Mapping[str, str]] = {"train": "choice"}

    def __post_init__(self) -> None:
        if self.clusters < 1 or self.warm_rounds < 0 or not 0 <= self.least_share <= 1 / self.clusters:
            got = f"{self.clusters}, {self.warm_rounds} and {self.least_share}"
            raise ConfigError(f"wanted clusters >= 1, warm_rounds >= 0 and least_share <= 1 / clusters, got {got}")

    def init(self, fed: Federation) -> IFCAState:
        check_clusters(self.clusters, fed)
        one = IFCAState(draw_models(self.model, 1, fed.device), {}, torch.full((fed.count,), -1, device=fed.device))
        return one if self.warm_rounds else self.draw(one, fed)

    def round(self, state: IFCAState, t: int, fed: Federation) -> IFCAState:
        if self.warm_rounds and t == self.warm_rounds:
            state = self.draw(replace(state, body=self.cut_head(state)), fed)
        cohort = fed.sample()  # Mₜ
        replies = fed.run(self.train, cohort, self.offer(state, cohort, fed))  # all models to all of them
        members = one_hot(replies["choice"], count(state.models)) * fed.weights[replies.cohort]  # s
        sent, trained = Sent(state.models, replies["choice"]), replies.stack("params")
        models = fed.aggregation.mix_contributors(state.models, members, sent, trained)  # θⱼ ← Σ sᵢⱼ θ̃ᵢ / Σ sᵢⱼ
        return replace(state, models=models, choices=state.choices.index_copy(0, replies.cohort, replies["choice"]))

    @client_task(ranges={"choice": CHOICE})
    def train(self, client: Client, models: Stack, body: Weights = NOTHING) -> Reply:
        """Client task: ĵ = argmin F(θⱼ), and θ̃, that model trained."""
        choice = select_model(client, self.model, models, self.select_on, body)
        trained, _ = self.local(client, model_at(models, choice), fix_weights(self.model.gradient, body))
        return Reply({"params": trained, "choice": choice})

    @client_task(ranges={"choice": CHOICE})
    def choose(self, client: Client, models: Stack, body: Weights = NOTHING) -> Reply:
        """Client task: ĵ alone."""
        return Reply({"choice": select_model(client, self.model, models, self.select_on, body)})

    def offer(self, state: IFCAState, cohort: Tensor, fed: Federation) -> Offer:
        return Offer(shared={"models": state.models, "body": state.body})

    def personalise(self, client: Client, offer: Payload) -> Params:
        own = model_at(model_in(offer, "models"), self.select_offered(client, offer))
        return model_in({"body": NOTHING, **offer}, "body") | own

    def select_offered(self, client: Client, offer: Payload) -> Tensor:
        models, body = model_in(offer, "models"), model_in({"body": NOTHING, **offer}, "body")
        return select_model(client, self.model, models, self.select_on, body)

    def admit(self, state: IFCAState, unseen: Tensor, fed: Federation) -> IFCAState:
        require_labels(self, unseen, fed)
        if fed.round == 0 and not fed.is_over:
            return state  # first models say nothing of them yet; they select one whenever they are served
        replies = fed.run(self.choose, unseen, self.offer(state, unseen, fed))
        return replace(state, choices=state.choices.index_copy(0, replies.cohort, replies["choice"]))

    def cluster_assignment(self, state: IFCAState) -> Tensor:
        return state.choices

    def draw(self, state: IFCAState, fed: Federation) -> IFCAState:
        """The state with C new models, or C new last layers of its body, each selected by enough clients."""

        def attempt(number: int) -> IFCAState:
            models = draw_models(self.model, self.clusters, fed.device, number)
            models = {name: w for name, w in models.items() if name not in state.body}
            return IFCAState(models, state.body, torch.full_like(state.choices, -1))

        return redraw(attempt, lambda drawn: self.least_selected(drawn, fed), self.least_share)

    def least_selected(self, state: IFCAState, fed: Federation) -> float:
        """The share of the sampled clients that select the model which the fewest do."""
        cohort = fed.sample()
        replies = fed.run(self.choose, cohort, self.offer(state, cohort, fed))
        return float(one_hot(replies["choice"], self.clusters).sum(1).min()) / len(cohort)

    def cut_head(self, state: IFCAState) -> Params:
        """All layers but the last of the one model."""
        return {name: w for name, w in select(state.models, 0).items() if not is_last_layer(self.model, name)}
