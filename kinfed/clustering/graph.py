"""Groups from a graph of related clients: connected components, or Ward's clusters of its rows."""

import torch
from torch import Tensor

from kinfed.errors import ConfigError


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


def average_linkage(distances: Tensor, height: float) -> Tensor:
    """Groups whose members are nearer than `height` to each other on average (UPGMA): [clients]."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    if len(distances) == 1:
        return torch.zeros(1, dtype=torch.long)
    apart = distances.cpu().double().numpy()
    tree = linkage(squareform((apart + apart.T) / 2, checks=False), method="average")
    return torch.from_numpy(fcluster(tree, height, criterion="distance")).long() - 1
