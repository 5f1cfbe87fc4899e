"""A graph that holds its edges only."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kinfed.clustering.neighbour_sets import NeighbourSets, distinct, lots
from kinfed.errors import ConfigError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

MOST_EDGES = 2**30  # 4 GiB
MOST_BYTES = 2**32  # of the different rows; models served by so many of them would take far more
AT_ONCE = 4096  # rows

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
        return sorted_by_row(torch.cat(rows), torch.cat(counts), torch.cat(edges))

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

    def reached(self, some: Tensor) -> Tensor:
        """All to whom edges of some clients go, ascending."""
        mark = torch.zeros(len(self), dtype=torch.bool)
        for part in some.split(AT_ONCE):
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
        first, whose = distinct(self.sums(lots(len(self), torch.device("cpu"))))
        if len(first) * len(self) > MOST_BYTES:
            raise ConfigError(
                f"{len(self):,} clients have {len(first):,} different sets of relatives, and each needs a model of its "
                "own: set case = 'clusters'"
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


def sorted_by_row(rows: Tensor, counts: Tensor, others: Tensor) -> SparseGraph:
    """The graph whose edges are listed one row after the other, rows in this order, so many edges each."""
    place, begins = rows.argsort(), counts.cumsum(0) - counts
    parts = [others[spans(begins[some], counts[some])] for some in place.split(AT_ONCE)]
    return SparseGraph(torch.cat([counts.new_zeros(1), counts[place].cumsum(0)]), torch.cat(parts))


def spans(begins: Tensor, counts: Tensor) -> Tensor:
    """All positions begin, begin + 1, … of spans that are so long, one span after the other."""
    skipped = begins - (counts.cumsum(0) - counts)
    return torch.arange(int(counts.sum())) + skipped.repeat_interleave(counts)
