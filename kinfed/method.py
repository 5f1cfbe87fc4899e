"""The contract: an algorithm is server rules and client tasks of one method. It holds settings, never state."""

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from kinfed.client import Client, Reply, Samples
from kinfed.clustering.hierarchy import Dendrogram
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.errors import RoleError
from kinfed.federation import Federation, Offer
from kinfed.models import Model, hits
from kinfed.params import Params, Payload, flatten, subtract
from kinfed.per_client import cut_to
from kinfed.training import LocalTraining

State = TypeVar("State")  # a frozen dataclass of tensors, models, numbers


class Method(ABC, Generic[State]):
    """One method. Subclasses are frozen dataclasses; `state` is passed in and returned."""

    model: Model
    local: LocalTraining
    needs_labels: ClassVar[str] = ""  # why it cannot place a client without labels; empty: it can
    clusters_after: ClassVar[str] = (
        ""  # its setting that says after how many rounds it looks for groups; empty: at once
    )
    remembers_signatures: ClassVar[bool] = False  # its embeddings are in its state, and nobody is asked for them

    @abstractmethod
    def init(self, fed: Federation) -> State:
        """Server: the state before the first round; one-off phases live here."""

    @abstractmethod
    def round(self, state: State, t: int, fed: Federation) -> State:
        """Server: the state after round t."""

    @abstractmethod
    def offer(self, state: State, cohort: Tensor, fed: Federation) -> Offer:
        """Server: what these clients are served."""

    @abstractmethod
    def admit(self, state: State, newcomers: Tensor, fed: Federation) -> State:
        """Server: the state after placing clients that were not there at `init` (late, holdout, unlabelled)."""

    @abstractmethod
    def personalise(self, client: Client, **offer: Params) -> Params:
        """Client: the model it will use."""

    def need_labels(self, clients: Tensor, fed: Federation) -> None:
        """Raises RoleError where the method needs labels, and some of these clients have no labelled training rows."""
        sizes = fed.sizes.tolist()
        without = [i for i in clients.tolist() if not fed.roles[i].labelled or not sizes[i]]
        if without and self.needs_labels:
            raise RoleError(
                f"clients {without} have no labelled training rows, but {self.needs_labels}; "
                "use a method that needs none, such as flt"
            )

    def blank_memory(self) -> Payload:
        """Client: what it remembers before its first task."""
        return {}

    def networks(self, shape: tuple[int, ...]) -> tuple[Params, ...]:
        """Client: the networks whose weights, or some of them, it may be sent, for rows of this shape."""
        return (self.model.init(),)

    def cluster_assignment(self, state: State) -> Tensor | None:
        """Server: the kinship found for each client ([clients], -1 for not placed), where the method finds any."""
        return None

    def graph(self, state: State) -> Tensor | None:
        """Server: who is related to whom (bool [clients, clients]), where the method finds out; for few clients."""
        return None

    def export_state(self, state: State, clients: Tensor, sizes: Tensor) -> State:
        """Server: what it takes to admit one more client after the run, and serve it; RoleError where that cannot be.

        It is the state of those who trained (ids, and rows of every client), numbered from 0 on, and of one stranger.
        """
        return cut_to(state, clients)

    def placement(self) -> str:
        """How a stranger gets its model, in words."""
        return self.needs_labels or "everybody is served the same model"

    def needs_server_samples(self) -> bool:
        """Whether training takes rows that the server owns."""
        return False

    def asks_server_samples(self) -> bool:
        """Whether admitting a stranger takes the rows that the server owns."""
        return False

    def distances_to_clusters(self, state: State, clients: Tensor, fed: Federation) -> Tensor | None:
        """Server: how far clients that were placed are from each group, by the method's own measure, if it has one.

        [clients, groups]; infinite for a group that nobody else is in.
        """
        return None

    def embeddings(self, state: State, fed: Federation) -> Tensor | None:
        """Server: how the method sees those who train; row i is of fed.clients[i], not a number if it is silent.

        A method that has signatures of its clients gives these; others see the update Δw of each (REPA's "WD").
        """
        replies = fed.run(self.differ_from_served, fed.clients, self.offer(state, fed.clients, fed))
        return in_rows(fed.clients, replies.cohort, flatten(replies.stack("update")))

    def differ_from_served(self, client: Client, **offer: Params) -> Reply:
        """Client task: Δw, what local training changes in the model it uses; asked by the experiment, not a method."""
        served = self.personalise(client, **offer)
        trained, _ = self.local(client, served, self.model.gradient)
        return Reply({"update": subtract(trained, served)})

    def neighbours(self, state: State) -> NeighbourSets | None:
        """Server: the same in memory that grows with the different sets of relatives."""
        graph = self.graph(state)
        return None if graph is None else NeighbourSets.of_matrix(graph)

    def tree(self, state: State) -> Dendrogram | None:
        """Server: the merges by which the groups were found, where the method merges clients."""
        return None

    def evaluate(self, client: Client, **offer: Params) -> Reply:
        """Client task: how its model does on its test rows."""
        return score(self.model, self.personalise(client, **offer), client.test)

    def evaluate_adapted(self, client: Client, **offer: Params) -> Reply:
        """Client task: the same after some epochs of local training."""
        adapted, _ = self.local.for_adaptation()(client, self.personalise(client, **offer), self.model.gradient)
        return score(self.model, adapted, client.test)


def in_rows(clients: Tensor, answered: Tensor, values: Tensor) -> Tensor:
    """What those who answered said ([answered, d]) as rows of all these clients; not a number for the others."""
    blank = torch.full((len(clients), values.shape[1]), torch.nan, device=values.device)
    return blank.index_copy(0, torch.searchsorted(clients, answered), values)


def score(model: Model, params: Params, rows: Samples) -> Reply:
    """Samples classified rightly, rows in all, and the summed loss (the largest number if it is not finite)."""
    correct, loss = torch.zeros_like(rows.size), torch.zeros((), device=rows.size.device)
    for batch in rows.in_order():
        logits = model.logits(params, batch.x)
        correct = correct + hits(logits, batch).sum()
        loss = loss + (cross_entropy(logits, batch.y.clamp(min=0), reduction="none") * batch.mask).sum()
    return Reply({"correct": correct, "rows": rows.size.clone(), "loss": torch.nan_to_num(loss, nan=torch.finfo().max)})
