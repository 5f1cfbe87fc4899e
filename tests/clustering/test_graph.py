import pytest
import torch

from kinfed.clustering.hierarchy import components, ward
from kinfed.errors import ConfigError
from tests.problems import same_clusters


def blocks(*sizes: int) -> torch.Tensor:
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return labels[:, None] == labels


def test_components_are_the_blocks():
    assert components(blocks(2, 3)).tolist() == [0, 0, 1, 1, 1]


def test_one_wrong_edge_chains_components_but_not_wards_clusters():
    graph = blocks(4, 4)
    graph[0, 7] = graph[7, 0] = True
    assert components(graph).unique().tolist() == [0]
    assert same_clusters(ward(graph, 2), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))


def test_members_keep_their_own_positions():
    order = torch.tensor([5, 0, 3, 1, 4, 2])
    graph = blocks(3, 3)[order][:, order]
    assert same_clusters(ward(graph, 2), torch.tensor([0, 0, 0, 1, 1, 1])[order])


def test_more_clusters_than_clients_are_refused():
    with pytest.raises(ConfigError, match=r"9 clusters .* only 5 clients"):
        ward(blocks(5), 9)


def test_one_client_is_one_cluster():
    assert ward(blocks(1), 1).tolist() == [0]
