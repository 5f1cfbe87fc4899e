"""FedDrift: learning under distributed concept drift (Jothimurugesan et al., AISTATS 2023, Algorithm 2).

Time goes in steps of some rounds. When one begins, each client takes the model that is best on its samples; if even
that is worse by more than δ than the best was when the last step began, its samples have drifted, and it gets a new
model, which nobody else may take, nor is merged, for W steps. When a step ends, models merge by complete linkage on
max(aᵢᵢ - aᵢⱼ, aⱼⱼ - aⱼᵢ, 0) up to δ, aᵢⱼ being the accuracy of model i on the clients of model j; their mean weighs by
use, in samples and steps. As in the authors' code δ is of accuracies (paper: losses). Deviations: a client has its
present samples alone (paper: also those of earlier steps, each with its model), so models merge before the next samples
come, and those that nobody uses are kept but not merged (authors: the least recently used makes room for a new one); a
new model starts from the first model of all; of equally good models a client keeps its own; `first="own"` starts with a
model for each client, where clients differ from the start (paper: one for all).
"""

from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar, Literal

import torch
from torch import Tensor

from kinfed.capabilities import require_labels
from kinfed.checks import above_zero, at_least, one_of
from kinfed.client import Client, Reply, client_task
from kinfed.client_tasks import find_task_of, score
from kinfed.federation import Federation, Offer
from kinfed.methods.cluster_merging import merge_named, name_alike
from kinfed.methods.cluster_models import Clustered, ClusterModels, Stale, draw_models
from kinfed.models import Model
from kinfed.params import Stack, count, join, one_hot, repeat, select
from kinfed.per_client import Each
from kinfed.ranges import Facts, Range
from kinfed.training import LocalTraining


def most_quality(facts: Facts) -> float:
    """The largest size of a mean score."""
    return max(abs(find_task_of(facts).least()), abs(find_task_of(facts).most()))


@dataclass(frozen=True)
class FedDriftState:
    served: ClusterModels
    before: Each  # [clients] how good the best model was when the last step began
    is_known: Each  # [clients] bool: whether that was measured
    uses: Tensor  # [C] samples that each model was trained on, summed over steps
    born: Tensor  # [C] the step in which each was made


@dataclass(frozen=True)
class FedDrift(Clustered[FedDriftState]):
    """A client whose best model has become worse gets a new one; models that do as well for each other merge."""

    model: Model
    local: LocalTraining = LocalTraining()
    delta: float = 0.1  # δ, of accuracy: a larger loss of it is drift, models that differ by less are merged
    step_rounds: int = 5  # rounds of a time step
    isolation: int = 1  # W, steps in which a new model is its client's alone
    max_clusters: int = 20  # models at most; beyond, a client with drift takes the best there is
    first: Literal["one", "own"] = "one"  # one model for all at the start, or one for each client
    stale: Stale = "exclude"  # what a client that was not sampled contributes

    needs_labels: ClassVar[str] = "FedDrift's clients select their model by its accuracy"
    hides_clients: ClassVar[bool] = False  # accuracies are not protected

    def __post_init__(self) -> None:
        above_zero(delta=self.delta)
        at_least(1, step_rounds=self.step_rounds, isolation=self.isolation, max_clusters=self.max_clusters)
        one_of(("one", "own"), first=self.first)

    def init(self, fed: Federation) -> FedDriftState:
        served, born = ClusterModels.init(self.model, self.stale, fed), -self.isolation
        if self.first == "own":
            labels = served.assignment.index_copy(0, fed.clients, torch.arange(len(fed.clients), device=fed.device))
            served, born = served.serve(labels, repeat(select(served.models, 0), len(fed.clients))), 0
        zeros, models = torch.zeros(fed.count, device=fed.device), torch.zeros(count(served.models), device=fed.device)
        return FedDriftState(served, zeros, zeros.bool(), models, models.long() + born)

    def round(self, state: FedDriftState, t: int, fed: Federation) -> FedDriftState:
        step, is_first = t // self.step_rounds, t % self.step_rounds == 0
        state = self.begin_step(state, step, fed) if is_first else state
        state = replace(state, served=self.train_clusters(state.served, fed.sample(), fed))
        return self.end_step(state, step, fed) if (t + 1) % self.step_rounds == 0 else state

    def begin_step(self, state: FedDriftState, step: int, fed: Federation) -> FedDriftState:
        """Server: the state in which clients have their best models, and those with drift new ones."""
        served = state.served
        replies = fed.run(self.assess, fed.clients, Offer(shared={"models": served.models}))
        clients, choice = replies.cohort, self.choose(state, replies.cohort, replies["quality"], step)
        best = replies["quality"].gather(1, choice[:, None])[:, 0]
        drifted = (state.is_known[clients] & (best < state.before[clients] - self.delta)).nonzero()[:, 0]
        new = drifted[: max(0, self.max_clusters - count(served.models))]
        choice = choice.index_copy(0, new, count(served.models) + torch.arange(len(new), device=fed.device))
        first = repeat(select(draw_models(self.model, 1, fed.device), 0), len(new))
        served = served.serve(served.assignment.index_copy(0, clients, choice), join(served.models, first))
        born, uses = torch.cat([state.born, choice.new_full((len(new),), step)]), state.uses
        before, is_known = state.before.index_copy(0, clients, best), state.is_known.index_fill(0, clients, True)
        state = FedDriftState(served, before, is_known, torch.cat([uses, uses.new_zeros(len(new))]), born)
        state = self.admit(state, fed.unseen, fed) if step and len(fed.unseen) else state
        own = one_hot(state.served.assignment[fed.clients], count(served.models))
        return replace(state, uses=state.uses + own @ fed.weights[fed.clients].float())

    def choose(self, state: FedDriftState, clients: Tensor, quality: Tensor, step: int) -> Tensor:
        """Server: the model that is best for each of these clients, its own if that is as good as any: [clients]."""
        own = one_hot(state.served.assignment[clients], quality.shape[1]).T.bool()
        open_to = quality.where(own | (step - state.born >= self.isolation), -inf)
        best = open_to.argmax(1)
        kept = (open_to.where(own, -inf).amax(1) >= open_to.amax(1)) & own.any(1)
        return torch.where(kept, own.long().argmax(1), best)

    def end_step(self, state: FedDriftState, step: int, fed: Federation) -> FedDriftState:
        """Server: the state in which models are merged that do as well for each other."""
        replies = fed.run(self.assess, fed.clients, Offer(shared={"models": state.served.models}))
        clients, quality, labels = replies.cohort, replies["quality"], state.served.assignment[replies.cohort]
        members = one_hot(labels, count(state.served.models)) * fed.weights[clients].float()  # [C, clients]
        ripe = ((members.sum(1) > 0) & (step + 1 - state.born >= self.isolation)).nonzero()[:, 0]
        shares = members[ripe] / members[ripe].sum(1, keepdim=True)
        names = name_alike(len(state.uses), ripe, (shares @ quality)[:, ripe].T, self.delta)
        served, uses = merge_named(state.served, names, state.uses)
        return replace(state, served=served, uses=uses, born=state.born[names.unique()])

    @client_task(ranges={"quality": Range(lambda facts: -most_quality(facts), most_quality)})
    def assess(self, client: Client, models: Stack) -> Reply:
        """Client task: how good each model is on its training samples, its accuracy; the larger the better."""
        totals = [score(self.model, select(models, m), client.train)["metric"] for m in range(count(models))]
        means = torch.stack(totals) / client.train.size.clamp(min=1)
        return Reply({"quality": -means if self.model.task.metric().lower_is_better else means})

    def admit(self, state: FedDriftState, unseen: Tensor, fed: Federation) -> FedDriftState:
        require_labels(self, unseen, fed)
        replies = fed.run(self.assess, unseen, Offer(shared={"models": state.served.models}))
        choice = self.choose(state, replies.cohort, replies["quality"], fed.round // self.step_rounds)
        return replace(state, served=state.served.assign(unseen, replies.cohort, choice, fed))
