"""SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1, option II): control variates undo client drift.

Clients step along g - cᵢ + c; cᵢ stays on the client. The paper has plain SGD: cᵢ⁺ = cᵢ - c + (w - y)/(Kη). Deviations:
with momentum that is too large by up to 1/(1 - ρ), so FedNova's ‖a‖₁ (`effective_steps`; it is K for plain SGD)
stands for K, and cᵢ⁺ is a mean of the gradients met; clients join and leave, and c stays the mean of all cᵢ (from the
first round without those that left on); batch-norm statistics have no control, and become their means whatever η_g.
`weighting="samples"` is the mean of NIID-Bench's code. Under robust aggregation c is what the rule makes of all cᵢ.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from kinfed.capabilities import Exportable
from kinfed.checks import above_zero
from kinfed.client import Client, Reply, client_task
from kinfed.federation import Federation, Offer, Replies
from kinfed.method import Method
from kinfed.models import Model
from kinfed.params import Params, Stack, each_leaf, flatten, put, repeat, select, subtract
from kinfed.per_client import LastTrained
from kinfed.replies import keep_variances
from kinfed.training import SMALLEST, LocalTraining, ShiftedGradient


@dataclass(frozen=True)
class ScaffoldState:
    params: Params
    control: Params  # c
    controls: LastTrained = field(default_factory=dict)  # [clients] cᵢ as reported; empty: c is summed up


@dataclass(frozen=True)
class Scaffold(Method[ScaffoldState], Exportable[ScaffoldState]):
    """One model for all, each client's drift corrected by control variates."""

    model: Model
    local: LocalTraining = LocalTraining()
    server_lr: float = 1.0  # η_g, the step of the server
    weighting: Literal["clients", "samples"] = "clients"  # of the mean over participants

    sgd_reason: ClassVar[str] = "SCAFFOLD's control variates are gradients of SGD, and do not fit other steps"

    def __post_init__(self) -> None:
        above_zero(server_lr=self.server_lr)

    def init(self, fed: Federation) -> ScaffoldState:
        params, control = self.model.init(), self.initial_memory()["control"]
        return ScaffoldState(*(each_leaf(lambda w: w.to(fed.device), start) for start in (params, control)))

    def initial_memory(self) -> dict[str, Params]:
        params = self.model.init()
        return {"control": {name: torch.zeros_like(params[name]) for name in self.model.weights}}

    def round(self, state: ScaffoldState, t: int, fed: Federation) -> ScaffoldState:
        replies = fed.run(self.train, fed.sample(), Offer(shared={"params": state.params, "control": state.control}))
        if not len(replies.cohort):
            return state
        weights = fed.weights[replies.cohort] if self.weighting == "samples" else torch.ones_like(replies.cohort)
        step = fed.aggregation.average(keep_variances(state.params, replies.stack("step")), weights)
        rates = dict.fromkeys(self.model.weights, self.server_lr)  # batch-norm statistics become their means
        params = {name: w + rates.get(name, 1.0) * step[name] for name, w in state.params.items()}
        return ScaffoldState(params, *self.update_controls(state, replies, fed))

    def update_controls(self, state: ScaffoldState, replies: Replies, fed: Federation) -> tuple[Params, Stack]:
        """Server: c; and all cᵢ where some leave, or rules are robust: a sum of bounded changes has no bound itself."""
        change = replies.stack("change")
        if not fed.aggregation.is_robust and not fed.loses_clients:
            moved = each_leaf(lambda d: d / len(fed.clients), fed.aggregation.sum(change))
            return each_leaf(torch.add, state.control, moved), state.controls
        before = state.controls or each_leaf(torch.zeros_like, repeat(state.control, fed.count))
        controls = put(before, replies.cohort, each_leaf(torch.add, select(before, replies.cohort), change))
        known = fed.clients[flatten(select(controls, fed.clients)).any(1)]  # the others' are 0
        mean = fed.aggregation.average(select(controls, known), torch.ones_like(known)) if len(known) else state.control
        return each_leaf(lambda c: len(known) / len(fed.clients) * c, mean), controls

    @client_task
    def train(self, client: Client, params: Params, control: Params) -> Reply:
        own = client.recall_model("control")  # cᵢ
        way = self.local.rate(client) * self.local.effective_steps(client)  # Kη
        trained, _ = self.local(client, params, ShiftedGradient(self.model.gradient, subtract(control, own)))
        step = subtract(trained, params)  # Δy
        moves = way > 0  # a cosine ends at a learning rate of 0, which says nothing of gradients
        change = each_leaf(lambda c, d: torch.where(moves, -c - d / way.clamp(min=SMALLEST), 0.0), control, step)  # Δc
        return Reply({"step": step, "change": change}, keep={"control": each_leaf(torch.add, own, change)})

    def offer(self, state: ScaffoldState, cohort: Tensor, fed: Federation) -> Offer:
        return Offer(shared={"params": state.params})

    def admit(self, state: ScaffoldState, unseen: Tensor, fed: Federation) -> ScaffoldState:
        known = 1 - torch.isin(fed.clients, unseen).float().mean()
        return replace(state, control=each_leaf(lambda c: known * c, state.control))
