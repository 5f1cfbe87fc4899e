"""Who is related to whom, in memory that grows with the different sets of relatives, not with the pairs of clients."""

from dataclasses import dataclass

import torch
from torch import Tensor

EXACT = 2**52  # sums of whole numbers below this lose nothing in a double


@dataclass(frozen=True)
class NeighbourSets:
    """Each different set of relatives once: those of client i are row whose[i]."""

    rows: Tensor  # [G, others] bool
    whose: Tensor  # [clients]

    @staticmethod
    def of_matrix(related: Tensor) -> "NeighbourSets":
        """The different rows of a related-clients matrix ([clients, others] bool)."""
        first, whose = distinct(marks_of(related))
        return NeighbourSets(related[first], whose)

    @staticmethod
    def of_clusters(clusters: Tensor) -> "NeighbourSets":
        """Everybody related to its own group ([clients]), and to nobody else."""
        names, whose = clusters.unique(return_inverse=True)
        return NeighbourSets(whose == torch.arange(len(names), device=clusters.device)[:, None], whose)

    @staticmethod
    def stacked(parts: "list[NeighbourSets]") -> "NeighbourSets":
        """The clients of one part after those of the other; the others are the same."""
        counts = torch.tensor([0] + [len(part.rows) for part in parts]).cumsum(0)
        whose = [part.whose + int(before) for part, before in zip(parts, counts[:-1], strict=True)]
        return NeighbourSets(torch.cat([part.rows for part in parts]), torch.cat(whose))

    def beside(self, more: "NeighbourSets") -> "NeighbourSets":
        """The same clients with further others to the right."""
        pairs, whose = torch.stack([self.whose, more.whose], 1).unique(dim=0, return_inverse=True)
        return NeighbourSets(torch.cat([self.rows[pairs[:, 0]], more.rows[pairs[:, 1]]], 1), whose)

    def turned(self) -> "NeighbourSets":
        """The others as clients, and the clients as others."""
        columns = NeighbourSets.of_matrix(self.rows.T)
        return NeighbourSets(columns.rows[:, self.whose], columns.whose)

    def to(self, device: torch.device) -> "NeighbourSets":
        """The same on this device."""
        return NeighbourSets(self.rows.to(device), self.whose.to(device))

    def matrix(self) -> Tensor:
        """The whole related-clients matrix: bool [clients, others]. For few clients only."""
        return self.rows[self.whose]

    def sizes(self) -> Tensor:
        """How many clients have each row: [G]."""
        return torch.bincount(self.whose, minlength=len(self.rows))


def lots(number: int, device: torch.device) -> Tensor:
    """Two random whole numbers for each of so many clients; the sums over two sets differ unless the sets are equal."""
    draw = torch.Generator().manual_seed(number)
    most = EXACT // max(1, number)  # so that sums are exact, in whatever order they are made
    return torch.randint(most, (number, 2), generator=draw).double().to(device)


def marks_of(rows: Tensor) -> Tensor:
    """Two numbers that tell the rows of a bool matrix apart: [rows, 2]."""
    drawn = lots(rows.shape[1], rows.device)
    at_once = max(1, 2**24 // max(1, rows.shape[1]))
    return torch.cat([drawn[:0], *(part.double() @ drawn for part in rows.split(at_once))])


def distinct(marks: Tensor) -> tuple[Tensor, Tensor]:
    """The first of those with the same marks, and for each whose marks it has: [G] and [n]."""
    found, whose = torch.unique(marks, dim=0, return_inverse=True)
    first = torch.full((len(found),), len(marks), device=marks.device)
    return first.scatter_reduce(0, whose, torch.arange(len(marks), device=marks.device), "amin"), whose
