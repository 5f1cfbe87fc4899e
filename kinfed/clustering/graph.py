"""Groups from a graph of related clients: connected components, or Ward's clusters of its rows."""

import torch
from torch import Tensor

from kinfed.clustering.linking import cut_into, link
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.errors import ConfigError

MOST_ROWS = 8192  # different rows of a graph that Ward's linkage compares
AT_ONCE = 4096  # columns


def components(related: Tensor) -> Tensor:
    """The connected component of each client: [clients]."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    return torch.from_numpy(connected_components(csr_matrix(related.cpu().numpy()), directed=False)[1]).long()


def ward(related: Tensor, clusters: int) -> Tensor:
    """At most `clusters` groups of clients whose rows of the graph are alike (Ward's linkage, Euclidean)."""
    from scipy.cluster.hierarchy import fcluster, linkage

    if clusters > len(related):
        raise ConfigError(f"{clusters} clusters were asked for, but there are only {len(related)} clients")
    if len(related) == 1:
        return torch.zeros(1, dtype=torch.long)
    tree = linkage(related.cpu().float().numpy(), method="ward")
    return torch.from_numpy(fcluster(tree, clusters, criterion="maxclust")).long() - 1


def ward_of_neighbours(neighbours: NeighbourSets, clusters: int) -> Tensor:
    """The same from the different rows of the graph alone: [clients]."""
    clients = len(neighbours.whose)
    if clusters > clients:
        raise ConfigError(f"{clusters} clusters were asked for, but there are only {clients} clients")
    if len(neighbours.rows) > MOST_ROWS:
        raise ConfigError(
            f"Ward's linkage compares up to {MOST_ROWS} different sets of relatives, got {len(neighbours.rows)} of "
            f"{clients} clients: set clusters = 0"
        )
    counts = neighbours.sizes().double()
    weight = (2 * counts[:, None] * counts / (counts[:, None] + counts)).sqrt()
    return cut_into(link(weight * apart(neighbours.rows), counts, "ward"), clusters)[neighbours.whose.cpu()]


def apart(rows: Tensor) -> Tensor:
    """Euclidean distances between the rows of a bool matrix: [rows, rows]."""
    common = torch.zeros(len(rows), len(rows), dtype=torch.double, device=rows.device)
    for part in rows.split(AT_ONCE, 1):
        common += part.float() @ part.float().T
    size = common.diagonal()
    return (size[:, None] + size - 2 * common).sqrt()


def average_linkage(distances: Tensor, height: float) -> Tensor:
    """Groups whose members are nearer than `height` to each other on average (UPGMA): [clients]."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    if len(distances) == 1:
        return torch.zeros(1, dtype=torch.long)
    apart = distances.cpu().double().numpy()
    tree = linkage(squareform((apart + apart.T) / 2, checks=False), method="average")
    return torch.from_numpy(fcluster(tree, height, criterion="distance")).long() - 1
