"""FedEM: Federated Multi-Task Learning under a Mixture of Distributions (Marfoq et al., NeurIPS 2021, Algorithm 1).

Each client's samples come from K common distributions, in shares of its own. E-step: q, how likely each sample is each
component's, πₘ · exp(-loss), normalised. M-step: π becomes the mean of q, and each component is trained on samples
weighted by its q; the server averages components, weighted by samples. A client predicts by the mixed probabilities.
Deviations: a client makes one more E-step with the components it is served (authors' code: clients that do not train
alone); all its components see the same mini-batches; participants alone are averaged (authors: clients that were not
sampled count with the models they have). Without labels it mixes all components alike.
"""

from dataclasses import dataclass

from kinfed.checks import at_least
from kinfed.client import Client, Reply, client_task
from kinfed.federation import Federation
from kinfed.methods.cluster_models import draw_models
from kinfed.methods.mixtures import Mixed, expect, maximise
from kinfed.models import Model
from kinfed.params import Stack
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FedEMState:
    models: Stack  # θₘ, [K]


@dataclass(frozen=True)
class FedEM(Mixed[FedEMState]):
    """Clients share a few component models, and each mixes their predictions in shares of its own, found by EM."""

    model: Model
    local: LocalTraining = LocalTraining()
    components: int = 3  # M, models that are mixed

    def __post_init__(self) -> None:
        at_least(1, components=self.components)

    def init(self, fed: Federation) -> FedEMState:
        return FedEMState(draw_models(self.model, self.components, fed.device))

    def round(self, state: FedEMState, t: int, fed: Federation) -> FedEMState:
        cohort = fed.sample()
        replies = fed.run(self.train, cohort, self.offer(state, cohort, fed))
        if not len(replies.cohort) and not fed.privacy.training.is_on:
            return state
        return FedEMState(fed.average(replies, "models", state.models))

    @client_task
    def train(self, client: Client, models: Stack) -> Reply:
        """Client task: q and π, which stays with it, and all components, trained."""
        weights, shares, _ = expect(client, self.model, models)
        trained = maximise(client, self.model, self.local, models, weights)
        return Reply({"models": trained}, keep={"shares": shares})
