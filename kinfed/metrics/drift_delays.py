"""How long it takes until a change of clients' samples is noticed, and until their models are as good as before.

docs/drift.md defines both. All is in a log that a checkpoint holds, so that a resumed run measures the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from kinfed.data.population import Role
from kinfed.federation import Federation
from kinfed.metrics.scores import Scores

ENOUGH = 0.95  # of a client's main metric before its samples changed: it has recovered


class DriftEvent(NamedTuple):
    """One client's samples changed."""

    round: int  # before which they did, counted from 0
    client: int
    before: float | None  # its main metric at the last evaluation before; None: there was none
    noticed: int | None = None  # the round in which most others of its cluster first were of its true one
    recovered: int | None = None  # the evaluated round in which its main metric was first back


@dataclass(frozen=True)
class DriftLog:
    """All changes so far, and every client's main metric of the last evaluation."""

    events: tuple[DriftEvent, ...] = ()
    latest: tuple[float | None, ...] = ()  # [clients]; empty before the first evaluation

    @classmethod
    def read(cls, table: object) -> "DriftLog":
        """The log that `state_dict` turned into this table; an empty one where there is none."""
        parts = cast("dict[str, list[Any]]", table or {"events": [], "latest": []})
        return cls(tuple(DriftEvent(*event) for event in parts["events"]), tuple(parts["latest"]))

    def state_dict(self) -> dict[str, object]:
        """All of it, as JSON."""
        return {"events": [list(event) for event in self.events], "latest": list(self.latest)}

    def enter(self, fed: Federation) -> "DriftLog":
        """The log with the clients whose samples changed before the round that the federation is in.

        One that joins in this round has had no others.
        """
        changes = [change for change in fed.population.changes if change.round == fed.round]
        training = {m for m in fed.clients.tolist() if fed.roles[m].joins < fed.round} if changes else set[int]()
        moved = [client for change in changes for client in change.clients.tolist() if client in training]
        before = {client: self.latest[client] if self.latest else None for client in moved}
        return replace(self, events=(*self.events, *(DriftEvent(fed.round, m, before[m]) for m in moved)))

    def note(self, fed: Federation, clusters: Tensor | None, scores: Scores | None, lower: bool) -> "DriftLog":
        """The log after a round: what its clusters and its scores say of the clients that changed."""
        last = {event.client: event.round for event in self.events}  # an older change is over
        training, true = set(fed.clients.tolist()), fed.true_clusters

        def look(event: DriftEvent) -> DriftEvent:
            if event.round < last[event.client] or event.client not in training:
                return event
            if event.noticed is None and clusters is not None and true is not None:
                seen = fits_cluster(clusters, true, event.client)
                event = event._replace(noticed=fed.round if seen else None)
            if event.recovered is None and scores is not None and event.before is not None:
                back = is_back(float(scores.main[event.client]), event.before, lower)
                event = event._replace(recovered=fed.round if back else None)
            return event

        found = None if scores is None else [None if x != x else x for x in scores.main.tolist()]
        return DriftLog(tuple(map(look, self.events)), self.latest if found is None else tuple(found))

    def measure(self, rounds: int, has_clusters: bool, roles: Sequence[Role] = ()) -> dict[str, float]:
        """Mean rounds until changes were noticed and made good, and the shares of those that were; none: nothing.

        One that never was counts with the rounds until the client's next change, until it leaves, or until the end.
        """
        ended = [(event, end) for event, end in zip(self.events, self.find_ends(rounds, roles), strict=True)]
        known = [(e.recovered, e.round, end) for e, end in ended if e.before is not None]
        metrics = average_delays("drift_recovery", known)
        if has_clusters:
            metrics |= average_delays("drift_delay", [(e.noticed, e.round, end) for e, end in ended])
        return metrics

    def find_ends(self, rounds: int, roles: Sequence[Role] = ()) -> list[int]:
        """For each change the round of the client's next one, that in which it leaves, or the number of rounds."""
        later: dict[int, int] = {}
        ends = []
        for event in reversed(self.events):
            last = min(rounds, roles[event.client].leaves) if roles else rounds
            ends.append(later.get(event.client, last))
            later[event.client] = event.round
        return ends[::-1]


def fits_cluster(clusters: Tensor, true: Tensor, client: int) -> bool:
    """Whether most others in a client's cluster are of its true cluster; also where it is alone, not where unassigned.

    Both [clients]; -1: in none.
    """
    if int(clusters[client]) < 0:
        return False
    others = (clusters == clusters[client]).index_fill(0, torch.tensor([client]), False)
    return not bool(others.any()) or float((true[others] == true[client]).double().mean()) > 0.5


def is_back(now: float, before: float, lower_is_better: bool) -> bool:
    """Whether a main metric is nearly what it was before; never where it was not measured."""
    return now <= before / ENOUGH if lower_is_better else now >= ENOUGH * before


def average_delays(name: str, delays: Sequence[tuple[int | None, int, int]]) -> dict[str, float]:
    """The mean of (when or never, from, at most until), and the share of those that were; nothing where none are."""
    if not delays:
        return {}
    waited = [(end if when is None else when) - start for when, start, end in delays]
    made = sum(when is not None for when, _, _ in delays)
    return {name: sum(waited) / len(waited), f"{name}_share": made / len(delays)}


def average_changed(scores: Scores, fed: Federation) -> float | None:
    """The mean main metric of the training clients whose samples have changed by now; None where none have."""
    changed = scores.trains & (fed.since > fed.columns.joins).cpu() & ~scores.main.isnan()
    return float(scores.main[changed].mean()) if bool(changed.any()) else None
