"""FedNova (Wang et al., NeurIPS 2020, section 4, equation 7): steps are normalised before they are averaged.

Client i took τᵢ steps whose gradients weigh ‖aᵢ‖₁ together (`LocalTraining.effective_steps`): τᵢ for plain SGD,
[τᵢ - ρ(1 - ρ^τᵢ)/(1 - ρ)]/(1 - ρ) with momentum ρ, and a ← (1 - ημ)a + 1 at each step with a proximal term.
It sends dᵢ = (w - wᵢ)/‖aᵢ‖₁ and what it adds to τ_eff: ‖aᵢ‖₁, or τᵢ with a proximal term, as in the authors' code.
Deviations: momentum and the proximal term together are weighed exactly, where the authors' code adds the two up;
batch-norm statistics, which no gradient moves, are averaged as they are.
"""

from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor

from kinfed.capabilities import TRAIN_SUMMED
from kinfed.client import Client, Reply, client_task
from kinfed.federation import Federation, Replies
from kinfed.methods.one_model import OneModel, OneModelState
from kinfed.models import Model
from kinfed.params import Params, subtract
from kinfed.ranges import Facts, Range
from kinfed.replies import keep_variances
from kinfed.training import LocalTraining


def most_steps(facts: Facts) -> Tensor:
    """The most that a client can add to τ_eff: its steps, each weighed by all that momentum makes of it."""
    local = cast("FedNova", facts.method).local
    return 1.001 * local.most_steps(facts.train) / (1 - local.momentum)  # rounded


@dataclass(frozen=True)
class FedNova(OneModel):
    """One model for all: the mean direction of the participants, whatever the number of their steps."""

    model: Model
    local: LocalTraining = LocalTraining()

    summed_tasks = TRAIN_SUMMED

    @client_task(ranges={"steps": Range(0, most_steps)})
    def train(self, client: Client, params: Params) -> Reply:
        trained, steps = self.local(client, params, self.model.gradient)
        effective = self.local.effective_steps(client)  # ‖aᵢ‖₁
        direction = self._scaled(subtract(params, trained), 1 / effective)  # dᵢ
        return Reply({"direction": direction, "steps": steps.float() if self.local.mu else effective})

    def absorb(self, state: OneModelState, replies: Replies, fed: Federation) -> OneModelState:
        weights = fed.weights[replies.cohort]
        effective = fed.aggregation.average_numbers(replies["steps"], weights)  # τ_eff
        sent = keep_variances(state.params, replies.stack("direction"), -1)
        direction = fed.aggregation.average(sent, weights)
        return replace(state, params=subtract(state.params, self._scaled(direction, effective)))

    def _scaled(self, step: Params, factor: Tensor) -> Params:
        return {name: s if name in self.model.buffers else factor * s for name, s in step.items()}
