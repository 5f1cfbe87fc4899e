"""FLIS-HC: disjoint clusters by inference similarity (Morafah et al., FLIS, IEEE OJCS 2023).

Settled and changed: similarity and server rows as in FLIS-DC; clusters by average linkage on 1 - A, cut at 1 - β; all
clients' first training comes before round 0 and is no round. `variant="code"`: the authors' code has no hierarchy; a
client hears all that are β-similar, as they were left, never-asked ones with the first model (not kept: there it also
hears those before it in its round). A newcomer trains the first model once and joins the cluster it is most like, or
downloads all models and chooses (`newcomers="loss"`, as in the paper; who never trains chooses after every round).
"""

from dataclasses import dataclass
from math import inf, nextafter
from typing import ClassVar, Literal

import torch
from torch import Tensor

from kinfed.capabilities import require_labels
from kinfed.checks import at_least
from kinfed.client import Client, Reply, client_task
from kinfed.clustering.hierarchy import Dendrogram
from kinfed.federation import Federation, Offer
from kinfed.methods.assigning import first_state, inits, placed, seat
from kinfed.methods.cluster_models import ComparedState, Groups, Stale, connected
from kinfed.methods.model_selection import SelectOn, best_for
from kinfed.methods.owning import Owning
from kinfed.models import Model
from kinfed.params import Params, Payload, Stack, model_in, select
from kinfed.relatedness import predictions, server_samples, similarity
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FLISHCState(ComparedState):
    said: Tensor  # [m, server rows, classes] what members' models predicted; [0, ...] where nobody may come


@dataclass(frozen=True)
class FLISHC(Owning[FLISHCState], Groups[FLISHCState]):
    """All clients train once and are clustered by what their models predict; then FedAvg in each cluster."""

    model: Model
    local: LocalTraining = LocalTraining()
    beta: float = 0.45  # β, similarity from which on clients belong together
    linkage: Literal["average", "complete", "single"] = "average"  # between two clusters
    soft: bool = False  # compare probabilities, not classes
    variant: Literal["paper", "code"] = "paper"  # code: no hierarchy, a client hears whoever is similar
    newcomers: Literal["similarity", "loss"] = "similarity"  # placed by what their model predicts, or they choose
    select_on: SelectOn = "train_loss"  # newcomers that choose
    stale: Stale = "exclude"  # the code's variant: always "last_local"

    needs_labels: ClassVar[str] = "FLIS places clients by the models they train, or by the loss of its own"

    def __post_init__(self) -> None:
        at_least(0, beta=self.beta)

    def init(self, fed: Federation) -> FLISHCState:
        first = first_state(self.model, "last_local" if self.variant == "code" else self.stale, fed)
        server_samples(fed)  # says early that there are none
        replies = fed.run(self.show, fed.clients, Offer(shared={"params": select(first.models, 0)}))
        said = predictions(self.model, replies.stack("params"), server_samples(fed), self.soft)
        known = slice(None) if len(fed.clients) < fed.count else slice(0)
        state = FLISHCState(**vars(first), members=replies.cohort[known], said=said[known])
        return seat(state, replies.cohort, self.related(replies.cohort, similarity(said, said)), fed)

    def related(self, who: Tensor, alike: Tensor) -> Tensor | Dendrogram:
        """Who belongs together of these clients, who are so much alike: [m, m] bool, or how they were merged."""
        if self.variant == "code":
            return (alike >= self.beta) | torch.eye(len(alike), dtype=torch.bool, device=alike.device)
        return Dendrogram.of(who, 1 - alike, self.linkage, nextafter(1 - self.beta, inf))

    def round(self, state: FLISHCState, t: int, fed: Federation) -> FLISHCState:
        state, again = self.step(state, fed.sample(), fed), self.newcomers == "loss" and len(fed.unseen)
        return self.admit(state, fed.unseen, fed) if again else state

    def admit(self, state: FLISHCState, newcomers: Tensor, fed: Federation) -> FLISHCState:
        require_labels(self, newcomers, fed)
        if self.newcomers == "loss":
            replies = fed.run(self.choose, newcomers, Offer(shared={"models": state.models}))
            return placed(state, newcomers, replies.cohort, replies["choice"], fed)
        first = select(inits(self.model, 1, fed.device), 0)
        replies = fed.run(self.introduce, newcomers, Offer(shared={"params": first}))
        said = predictions(self.model, replies.stack("params"), server_samples(fed), self.soft)
        heard = state.hears[:, state.members].double()
        alike = similarity(said, state.said) @ heard.T / heard.sum(1).clamp(min=1)  # to each cluster, on average
        return placed(state, newcomers, replies.cohort, alike.argmax(1), fed)

    def needs_server_samples(self) -> bool:
        return True

    def admits_by_server_samples(self) -> bool:
        return self.newcomers == "similarity"

    @client_task
    def train(self, client: Client, params: Params) -> Reply:
        """Client task: E epochs from its cluster's model, remembered."""
        return self.owned(client, params)

    @client_task
    def show(self, client: Client, params: Params) -> Reply:
        """Client task: the first model after E epochs, for the server to look at."""
        return Reply({"params": self.local(client, params, self.model.gradient)[0]})

    @client_task
    def introduce(self, client: Client, params: Params) -> Reply:
        """Client task: the same for a newcomer, which uses its cluster's model until it takes part."""
        return self.disowned(client, self.show(client, params))

    @client_task
    def choose(self, client: Client, models: Stack) -> Reply:
        """Client task: which cluster model a newcomer chooses; it uses that until it takes part."""
        return self.disowned(client, Reply({"choice": best_for(client, self.model, models, self.select_on)}))

    def personalise(self, client: Client, offer: Payload) -> Params:
        return self.own_or(client, model_in(offer, "params"))

    def cluster_assignment(self, state: FLISHCState) -> Tensor:
        return connected(self.neighbours(state).matrix())
