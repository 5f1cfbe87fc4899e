"""The ledger of a federation: bytes that crossed the wire, by client, task and round."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Ledger:
    """Bytes down to and up from every client, by task, and by (round, task)."""

    clients: int
    down: dict[str, Tensor] = field(default_factory=dict)  # task -> [clients]
    up: dict[str, Tensor] = field(default_factory=dict)
    rounds: list[tuple[int, str, int, int, int]] = field(default_factory=list)  # round, task, clients, down, up

    def count(self, round: int, task: str, cohort: Tensor, down: int, answered: Tensor, up: int | Tensor) -> None:
        """Adds one call: the cohort received `down` bytes each, clients that replied sent `up`, or each its own."""
        sent, back = torch.full((len(cohort),), down), torch.as_tensor(up).expand(len(answered))
        for table, clients, sizes in ((self.down, cohort, sent), (self.up, answered, back)):
            table.setdefault(task, torch.zeros(self.clients, dtype=torch.long))[clients.cpu()] += sizes
        self.rounds.append((round, task, len(cohort), int(sent.sum()), int(back.sum())))

    def until(self, round: int, *, without: tuple[str, ...] = ()) -> int:
        """Bytes both ways before this round (they count from 0), but for these tasks."""
        return sum(down + up for t, task, _, down, up in self.rounds if t < round and task not in without)

    def total(self, *, without: tuple[str, ...] = ()) -> int:
        """All bytes both ways, but for these tasks."""
        return sum(int(t.sum()) for table in (self.down, self.up) for task, t in table.items() if task not in without)
