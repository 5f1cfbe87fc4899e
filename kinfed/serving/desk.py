"""One stranger is placed and served: the method's own rules, with nobody else there."""

from typing import TypeVar

import torch
from torch import Tensor

from kinfed.capabilities import AssignsUnseen, FindsClusters
from kinfed.client import Client
from kinfed.client_tasks import score
from kinfed.data.population import NO_SAMPLES, Population, Role
from kinfed.data.sample_kind import SampleKind
from kinfed.engines.sequential import Sequential, make_client, unpack_offer
from kinfed.errors import DataError
from kinfed.keys import base_key, fold
from kinfed.method import Method
from kinfed.params import Params, select
from kinfed.serving.assigned import Assigned

State = TypeVar("State")
Labelled = tuple[Tensor, Tensor]  # rows and labels


class Desk(Sequential):
    """Those who trained, of whom only the number of rows is known, and one client who is here with its rows."""

    def __init__(
        self, method: Method[State], sizes: Tensor, server_samples: Tensor, own: Labelled, test: Labelled
    ) -> None:
        parts = [(server_samples, torch.full((len(server_samples),), -1)), own, test]
        public, mine, tested = torch.arange(sum(len(y) for _, y in parts)).split([len(y) for _, y in parts])
        labelled = bool((own[1] >= 0).all())
        nobody = (NO_SAMPLES,) * len(sizes)
        roles = (*(Role(holdout=True),) * len(sizes), Role(holdout=True, labelled=labelled))
        pool = (torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]))
        people = Population(*pool, (*nobody, mine), (*nobody, tested), method.model.classes, roles=roles, public=public)
        super().__init__(method, people, seed=method.model.seed)
        self.roles = (*(Role(),) * len(sizes), roles[-1])
        self.counted = torch.cat([sizes, torch.tensor([len(mine)])])
        self.is_over = True

    @property
    def sizes(self) -> Tensor:
        return self.counted

    def serve(self, state: object, kind: SampleKind) -> Assigned:
        """What the client is handed, after it was admitted to this state."""
        method: Method[object] = self.method  # type: ignore[assignment]
        who = torch.tensor([self.count - 1])
        state = method.admit(state, who, self)
        if self.rejected:
            raise DataError("the method cannot place this client: what it computes of its rows is not finite")
        client = self.client(who)
        params = self.personal(method, client, state, who)
        found = method.cluster_assignment(state) if isinstance(method, FindsClusters) else None
        apart = method.distances_to_clusters(state, who, self) if isinstance(method, AssignsUnseen) else None
        tested = score(method.model, params, client.test)
        return Assigned(
            method.model, params, kind,
            cluster=None if found is None or int(found[who]) < 0 else int(found[who]),
            distances={} if apart is None else {g: float(d) for g, d in enumerate(apart[0]) if torch.isfinite(d)},
            rows=len(client.train),
            test_samples=len(client.test),
            test_correct=int(tested["correct"]),
        )  # fmt: skip

    def client(self, who: Tensor) -> Client:
        """The client with its rows and what it remembers by now."""
        key = fold(torch.tensor(base_key(self.seed, "serve")), who)[0]
        return make_client(self, int(who), key, select(self.remembered(who), 0))

    def personal(self, method: Method[object], client: Client, state: object, who: Tensor) -> Params:
        """The model that the client makes of what it is offered."""
        offer = unpack_offer(self, method.offer(state, who, self), 0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(client.key) & 0x7FFFFFFFFFFFFFFF)
            return method.personalise(client, offer)
