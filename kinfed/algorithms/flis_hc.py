"""FLIS-HC: disjoint clusters by inference similarity (Morafah et al., FLIS, IEEE OJCS 2023).

Settled and changed: similarity and server rows as in FLIS-DC; clusters by average linkage (UPGMA) on 1 - A, cut at
1 - β (a merge at this height is made); all clients' first training comes before round 0 and is no round of its own.
`variant="code"`: the authors' code has no hierarchy; a client hears all clients that are β-similar to it, in the state
they were left in, never-asked ones with the first model. Not kept: there it also hears those before it in its round.
A newcomer trains the first model once and joins the cluster it is most similar to on average, or downloads all cluster
models and chooses (`newcomers="loss"`, the paper's experiment, `select_on` as in FLIS-DC; who never trains chooses anew
after every round).
A client uses, and is scored with, the model it trained itself when it last took part, which it remembers; one that was
never asked uses the first model, a newcomer that has not trained yet its cluster's.
"""

from dataclasses import dataclass
from math import inf, nextafter
from typing import ClassVar, Literal

import torch
from torch import Tensor

from kinfed.algorithms.groups import (
    Groups,
    GroupState,
    SelectOn,
    Stale,
    best_for,
    first_state,
    inits,
    need_labels,
    placed,
    seat,
)
from kinfed.client import Client, Reply
from kinfed.clustering.graph import components
from kinfed.clustering.hierarchy import cut, merges
from kinfed.errors import ConfigError
from kinfed.federation import Federation, Offer
from kinfed.models import Model
from kinfed.params import Params, Payload, Stack, each_leaf, rows
from kinfed.relatedness import predictions, server_rows, similarity
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FLISHCState(GroupState):
    members: Tensor  # [m] who was clustered
    said: Tensor  # [m, rows, classes] what their models predicted; [0, ...] where nobody may come


@dataclass(frozen=True)
class FLISHC(Groups[FLISHCState]):
    """All clients train once and are clustered by what their models predict; then FedAvg in each cluster."""

    model: Model
    local: LocalTraining = LocalTraining()
    beta: float = 0.45  # β, similarity from which on clients belong together
    linkage: Literal["average", "complete", "single"] = "average"
    soft: bool = False  # compare probabilities, not classes
    variant: Literal["paper", "code"] = "paper"
    newcomers: Literal["similarity", "loss"] = "similarity"
    select_on: SelectOn = "train_loss"  # newcomers that choose
    stale: Stale = "exclude"  # the code's variant: always "last_local"

    serves_unlabelled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.beta < 0:
            raise ConfigError(f"beta is a similarity and must be at least 0, got {self.beta}")

    def init(self, fed: Federation) -> FLISHCState:
        stale = "last_local" if self.variant == "code" else self.stale
        x, first = server_rows(fed), first_state(self.model, stale, fed)
        replies = fed.run(self.show, fed.clients, Offer(shared={"params": rows(first.models, 0)}))
        said = predictions(self.model, replies.stack("params"), x, self.soft)
        related = self.related(similarity(said, said))
        known = slice(None) if len(fed.clients) < fed.count else slice(0)
        state = FLISHCState(**vars(first), members=replies.cohort[known], said=said[known])
        return seat(state, replies.cohort, related, fed)

    def related(self, alike: Tensor) -> Tensor:
        """Who belongs together, of clients that are so much alike: [m, m] bool."""
        if self.variant == "code":
            return (alike >= self.beta) | torch.eye(len(alike), dtype=torch.bool, device=alike.device)
        groups = cut(merges(1 - alike, self.linkage), nextafter(1 - self.beta, inf))
        return groups[:, None] == groups

    def round(self, state: FLISHCState, t: int, fed: Federation) -> FLISHCState:
        cohort = fed.sample()
        state = self.blend(state, fed.run(self.train, cohort, self.offer(state, cohort, fed)), fed)
        strangers = fed.present[torch.isin(fed.present, fed.clients, invert=True)]
        return self.admit(state, strangers, fed) if self.newcomers == "loss" and len(strangers) else state

    def admit(self, state: FLISHCState, newcomers: Tensor, fed: Federation) -> FLISHCState:
        need_labels(newcomers, fed, "FLIS places clients by the models they train, or by the loss of its own")
        if self.newcomers == "loss":
            replies = fed.run(self.choose, newcomers, Offer(shared={"models": state.models}))
            labels = replies["choice"]
        else:
            first = rows(inits(self.model, 1, fed.device), 0)
            replies = fed.run(self.introduce, newcomers, Offer(shared={"params": first}))
            labels = self.nearest(state, replies.stack("params"), fed)
        return placed(state, newcomers, replies.cohort, labels, fed)

    def nearest(self, state: FLISHCState, trained: Stack, fed: Federation) -> Tensor:
        """The cluster whose members predict most like each of these models, on average."""
        alike = similarity(predictions(self.model, trained, server_rows(fed), self.soft), state.said)
        heard = state.hears[:, state.members].double()
        return (alike @ heard.T / heard.sum(1).clamp(min=1)).argmax(1)

    def show(self, client: Client, params: Params) -> Reply:
        """Client task: the first model after E epochs, for the server to look at."""
        return Reply({"params": self.local(client, params, self.model.gradient)[0]})

    def introduce(self, client: Client, params: Params) -> Reply:
        """Client task: the same for a newcomer, which uses its cluster's model until it takes part."""
        return self.show(client, params)._replace(keep={"owns": torch.zeros_like(client.recall("owns"))})

    def choose(self, client: Client, models: Stack) -> Reply:
        """Client task: which cluster model a newcomer chooses; it uses that until it takes part."""
        choice = best_for(client, self.model, models, self.select_on)
        return Reply({"choice": choice}, keep={"owns": torch.zeros_like(client.recall("owns"))})

    def train(self, client: Client, params: Params) -> Reply:
        """Client task: E epochs from its cluster's model, remembered."""
        trained, _ = self.local(client, params, self.model.gradient)
        return Reply({"params": trained}, keep={"params": trained, "owns": torch.ones_like(client.recall("owns"))})

    def blank_memory(self) -> Payload:
        return {"params": self.model.init(), "owns": torch.ones((), dtype=torch.bool)}

    def personalise(self, client: Client, params: Params) -> Params:  # type: ignore[override]
        owns = client.recall("owns")
        return each_leaf(lambda mine, served: torch.where(owns, mine, served), client.recall_model("params"), params)

    def graph(self, state: FLISHCState) -> Tensor:
        return state.hears[state.labels] & (state.labels >= 0)[:, None]

    def groups(self, state: FLISHCState) -> Tensor:
        together = components(self.graph(state)).to(state.labels.device)
        return torch.where(state.labels >= 0, together, -1)
