"""FedRC: Robust Clustering in Federated Learning (Guo et al., ICML 2024, arXiv 2301.12379), Algorithm 1.

FedEM whose E-step divides by Cₘ(y), the share of the sample's label in a component: q ∝ πₘ · exp(-loss) / Cₘ(y). So
clients with other labels alone share a component, and those whose labels mean something else do not. Clients also send
how much of each label a component got, which makes C. Deviations: C is of the last round's clients (paper: of all), and
no share is below `floor` of an even one; those of FedEM. Where targets are no classes it is FedEM.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kinfed.checks import above_zero, at_least
from kinfed.client import Client, Reply, client_task
from kinfed.federation import Federation, Offer
from kinfed.methods.cluster_models import draw_models
from kinfed.methods.mixtures import Mixed, expect, maximise, share_labels
from kinfed.models import Model, mix_models
from kinfed.params import Params, Payload, Stack, model_in, tensor_in
from kinfed.ranges import PARTS
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FedRCState:
    models: Stack  # θₖ, [K]
    labels: Tensor  # C, [K, labels] the share of each label in each component


@dataclass(frozen=True)
class FedRC(Mixed[FedRCState]):
    """FedEM whose components part clients by what labels mean, and not by which labels they have."""

    model: Model
    local: LocalTraining = LocalTraining()
    components: int = 3  # K, models that are mixed
    floor: float = 0.01  # of an even share: no label counts as rarer in a component

    hides_clients: ClassVar[bool] = False  # label masses are not protected

    def __post_init__(self) -> None:
        at_least(1, components=self.components)
        above_zero(floor=self.floor)

    def init(self, fed: Federation) -> FedRCState:
        number = self.model.classes if self.model.task.has_classes() and fed.y.dim() == 1 else 1
        even = torch.full((self.components, number), 1 / number, device=fed.device)
        return FedRCState(draw_models(self.model, self.components, fed.device), even)

    def round(self, state: FedRCState, t: int, fed: Federation) -> FedRCState:
        replies = fed.run(self.train, cohort := fed.sample(), self.offer(state, cohort, fed))
        if not len(replies.cohort):
            return state
        models, weights = fed.average(replies, "models", state.models), fed.weights[replies.cohort]
        masses = fed.aggregation.average({"masses": replies["masses"]}, weights)["masses"]
        return FedRCState(models, share_labels(masses).clamp(min=self.floor / masses.shape[1]))

    @client_task(ranges={"masses": PARTS})
    def train(self, client: Client, models: Stack, labels: Tensor) -> Reply:
        """Client task: γ and ω, which stays with it, and all components, trained; and their labels' masses."""
        weights, shares, masses = expect(client, self.model, models, -labels.log())
        trained = maximise(client, self.model, self.local, models, weights)
        return Reply({"models": trained, "masses": masses}, keep={"shares": shares})

    def offer(self, state: FedRCState, cohort: Tensor, fed: Federation) -> Offer:
        return Offer(shared={"models": state.models, "labels": state.labels})

    def personalise(self, client: Client, offer: Payload) -> Params:
        models, labels = model_in(offer, "models"), tensor_in(offer, "labels")
        return mix_models(models, expect(client, self.model, models, -labels.log()).shares)
