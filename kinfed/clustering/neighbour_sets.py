"""Who is related to whom, in memory that grows with different sets of neighbours, or with the edges of a graph."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kinfed.errors import ConfigError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

EXACT = 2**52  # sums of whole numbers below this lose nothing in a double


@dataclass(frozen=True)
class NeighbourSets:
    """Each different set of neighbours once: those of client i are row whose[i]."""

    rows: Tensor  # [G, others] bool
    whose: Tensor  # [clients]

    @staticmethod
    def of_matrix(related: Tensor) -> "NeighbourSets":
        """The different rows of a related-clients matrix ([clients, others] bool)."""
        first, whose = find_distinct(hash_rows(related))
        return NeighbourSets(related[first], whose)

    @staticmethod
    def of_clusters(clusters: Tensor) -> "NeighbourSets":
        """Everybody related to its own cluster ([clients]), and to nobody else."""
        names, whose = clusters.unique(return_inverse=True)
        return NeighbourSets(whose == torch.arange(len(names), device=clusters.device)[:, None], whose)

    @staticmethod
    def stack(parts: "list[NeighbourSets]") -> "NeighbourSets":
        """The clients of one part after those of the other; the others are the same."""
        counts = torch.tensor([0] + [len(part.rows) for part in parts]).cumsum(0)
        whose = [part.whose + int(before) for part, before in zip(parts, counts[:-1], strict=True)]
        return NeighbourSets(torch.cat([part.rows for part in parts]), torch.cat(whose))

    def beside(self, more: "NeighbourSets") -> "NeighbourSets":
        """The same clients with further others to the right."""
        pairs, whose = torch.stack([self.whose, more.whose], 1).unique(dim=0, return_inverse=True)
        return NeighbourSets(torch.cat([self.rows[pairs[:, 0]], more.rows[pairs[:, 1]]], 1), whose)

    def transpose(self) -> "NeighbourSets":
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


def draw_weights(number: int, device: torch.device) -> Tensor:
    """Two random whole numbers for each of so many clients; the sums over two sets differ unless the sets are equal."""
    draw = torch.Generator().manual_seed(number)
    most = EXACT // max(1, number)  # so that sums are exact, in whatever order they are made
    return torch.randint(most, (number, 2), generator=draw).double().to(device)


def hash_rows(rows: Tensor) -> Tensor:
    """Two numbers that tell the rows of a bool matrix apart: [rows, 2]."""
    drawn = draw_weights(rows.shape[1], rows.device)
    at_once = max(1, 2**24 // max(1, rows.shape[1]))
    return torch.cat([drawn[:0], *(part.double() @ drawn for part in rows.split(at_once))])


def find_distinct(marks: Tensor) -> tuple[Tensor, Tensor]:
    """The first of those with the same marks, and for each whose marks it has: [G] and [n]."""
    found, whose = torch.unique(marks, dim=0, return_inverse=True)
    first = torch.full((len(found),), len(marks), device=marks.device)
    return first.scatter_reduce(0, whose, torch.arange(len(marks), device=marks.device), "amin"), whose


MOST_EDGES = 2**30  # 4 GiB
MOST_BYTES = 2**32  # of the different rows; models served by so many of them would take far more
ROWS_AT_ONCE = 4096

Block = tuple[Tensor, Tensor, Tensor]  # some [a], others [b] ascending, and which of them are linked: bool [a, b]


@dataclass(frozen=True)
class SparseGraph:
    """Edges go from i to others[starts[i] : starts[i + 1]], ascending."""

    starts: Tensor  # [n + 1]
    others: Tensor  # [edges] int32

    def __len__(self) -> int:
        return len(self.starts) - 1

    @staticmethod
    def of_blocks(number: int, blocks: Iterable[Block]) -> "SparseGraph":
        """The graph of so many clients; every one of them is once among the `some` of a block."""
        rows, counts, edges, many = [], [], [], 0
        for some, others, linked in blocks:
            rows.append(some.cpu())
            counts.append(linked.sum(1).cpu())
            edges.append(others.int().expand(linked.shape)[linked].cpu())
            many += len(edges[-1])
            refuse_many(many, number)
        return sort_by_row(torch.cat(rows), torch.cat(counts), torch.cat(edges))

    @staticmethod
    def of_pairs(number: int, parts: Iterable[Tensor]) -> "SparseGraph":
        """The graph of so many clients with these pairs ([n, 2] each, no pair twice) both ways, and with themselves."""
        from scipy.sparse import coo_matrix

        found, many = [torch.zeros(0, 2, dtype=torch.int)], 0
        for part in parts:
            found.append(part.int().cpu())
            many += 2 * len(part)
            refuse_many(many, number)
        (a, b), own = torch.cat(found).T, torch.arange(number, dtype=torch.int)
        ends = torch.cat([a, b, own]).numpy(), torch.cat([b, a, own]).numpy()
        graph = coo_matrix((torch.ones(len(ends[0]), dtype=torch.uint8).numpy(), ends), (number, number)).tocsr()
        graph.sort_indices()
        return SparseGraph(torch.from_numpy(graph.indptr).long(), torch.from_numpy(graph.indices).int())

    def rows(self, some: Tensor) -> tuple[Tensor, Tensor]:
        """The edges of some clients: their positions in `some`, and where they go."""
        counts = self.starts.diff()[some]
        return torch.arange(len(some)).repeat_interleave(counts), self.others[spans(self.starts[some], counts)].long()

    def targets(self, some: Tensor) -> Tensor:
        """All to whom edges of some clients go, ascending."""
        mark = torch.zeros(len(self), dtype=torch.bool)
        for part in some.split(ROWS_AT_ONCE):
            mark[self.rows(part)[1]] = True
        return mark.nonzero()[:, 0]

    def components(self) -> Tensor:
        """The connected component of each client: [n]."""
        from scipy.sparse.csgraph import connected_components

        return torch.from_numpy(connected_components(self._scipy(), directed=False)[1]).long()

    def sums(self, values: Tensor) -> Tensor:
        """The sum of the values ([n, d]) of those to whom each client's edges go: [n, d]."""
        return torch.from_numpy(self._scipy() @ values.numpy())

    def neighbours(self) -> NeighbourSets:
        """The graph's different rows."""
        first, whose = find_distinct(self.sums(draw_weights(len(self), torch.device("cpu"))))
        if len(first) * len(self) > MOST_BYTES:
            raise ConfigError(
                f"{len(self):,} clients have {len(first):,} different sets of neighbours, and each needs its own "
                "model: set case = 'clusters'"
            )
        rows = torch.zeros(len(first), len(self), dtype=torch.bool)
        rows[self.rows(first)] = True
        return NeighbourSets(rows, whose)

    def _scipy(self) -> "csr_matrix":
        from scipy.sparse import csr_matrix

        ones = torch.ones(len(self.others), dtype=torch.uint8).numpy()
        return csr_matrix((ones, self.others.numpy(), self.starts.numpy()), (len(self), len(self)))


def refuse_many(edges: int, clients: int) -> None:
    """Raises ConfigError if a graph of so many clients would not fit into memory."""
    if edges > MOST_EDGES:
        raise ConfigError(
            f"more than {MOST_EDGES:,} pairs of {clients:,} clients are related: set a smaller threshold, or for the "
            "distance 'kernel' case = 'clusters', which needs no pairs"
        )


def sort_by_row(rows: Tensor, counts: Tensor, others: Tensor) -> SparseGraph:
    """The graph whose edges are listed one row after the other, rows in this order, so many edges each."""
    place, begins = rows.argsort(), counts.cumsum(0) - counts
    parts = [others[spans(begins[some], counts[some])] for some in place.split(ROWS_AT_ONCE)]
    return SparseGraph(torch.cat([counts.new_zeros(1), counts[place].cumsum(0)]), torch.cat(parts))


def spans(begins: Tensor, counts: Tensor) -> Tensor:
    """All positions begin, begin + 1, … of spans that are so long, one span after the other."""
    skipped = begins - (counts.cumsum(0) - counts)
    return torch.arange(int(counts.sum())) + skipped.repeat_interleave(counts)
