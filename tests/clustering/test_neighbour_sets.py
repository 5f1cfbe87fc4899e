import pytest
import torch

from kinfed.clustering import neighbour_sets
from kinfed.clustering.hierarchy import ward, ward_of_neighbours
from kinfed.clustering.neighbour_sets import NeighbourSets, SparseGraph
from kinfed.errors import ConfigError
from tests.problems import same_clusters

GRAPH = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]]).bool()


def random_graph(clients: int, seed: int) -> torch.Tensor:
    drawn = torch.rand(clients, clients, generator=torch.Generator().manual_seed(seed)) < 0.3
    twins = torch.arange(clients) // 3
    return (drawn | drawn.T)[twins][:, twins]


def test_each_set_of_neighbours_is_held_once():
    found = NeighbourSets.of_matrix(GRAPH)
    assert len(found.rows) == 3 and torch.equal(found.matrix(), GRAPH)
    assert found.sizes().sum() == 4 and found.sizes()[found.whose[0]] == 2


def test_clusters_are_blocks():
    clusters = torch.tensor([7, 2, 7])
    assert torch.equal(NeighbourSets.of_clusters(clusters).matrix(), clusters[:, None] == clusters)


def test_parts_are_put_together_as_matrices_are():
    a, b = random_graph(9, 0), random_graph(9, 1)
    one, other = NeighbourSets.of_matrix(a), NeighbourSets.of_matrix(b)
    assert torch.equal(one.beside(other).matrix(), torch.cat([a, b], 1))
    assert torch.equal(NeighbourSets.stack([one, other]).matrix(), torch.cat([a, b]))
    wide = NeighbourSets.of_matrix(torch.cat([a, b], 1))
    assert torch.equal(wide.transpose().matrix(), torch.cat([a, b], 1).T)


def test_wards_clusters_need_the_different_rows_only():
    labels = torch.arange(4).repeat_interleave(torch.tensor([10, 14, 20, 30]))
    graph = labels[:, None] == labels
    graph[[0, 12, 13, 30], [73, 0, 50, 1]] = True  # some rows are like no other
    rows = NeighbourSets.of_matrix(graph)
    assert len(rows.rows) == 8
    for clusters in (1, 3, 4, 8):
        assert same_clusters(ward(graph, clusters), ward_of_neighbours(rows, clusters))


def test_a_sparse_graph_is_the_matrix_it_was_made_of():
    graph = random_graph(30, 3)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    everyone = torch.arange(30)
    found = SparseGraph.of_blocks(30, [(some, everyone, graph[some]) for some in order.split(7)])
    assert torch.equal(found.neighbours().matrix(), graph)
    assert found.others.dtype == torch.int32 and len(found.others) == int(graph.sum())
    assert torch.equal(found.targets(torch.tensor([4, 9])), (graph[4] | graph[9]).nonzero()[:, 0])


def test_pairs_are_edges_both_ways():
    found = SparseGraph.of_pairs(4, [torch.tensor([[0, 2]]), torch.tensor([[1, 2]])])
    wanted = torch.tensor([[1, 0, 1, 0], [0, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 1]]).bool()
    assert torch.equal(found.neighbours().matrix(), wanted)
    assert found.components().tolist() == [0, 0, 0, 1]


def test_too_many_pairs_are_refused_with_a_way_out(monkeypatch: pytest.MonkeyPatch):
    everyone, graph = torch.arange(30), random_graph(30, 3)
    monkeypatch.setattr(neighbour_sets, "MOST_EDGES", 50)
    with pytest.raises(ConfigError, match=r"more than 50 pairs of 30 clients.*case = 'clusters'"):
        SparseGraph.of_blocks(30, [(everyone, everyone, graph)])
    with pytest.raises(ConfigError, match="more than 50 pairs of 30 clients"):
        SparseGraph.of_pairs(30, [torch.tensor([[0, 1]]), graph.triu(1).nonzero()])


def test_too_many_sets_of_neighbours_are_refused_with_a_way_out(monkeypatch: pytest.MonkeyPatch):
    everyone, graph = torch.arange(30), random_graph(30, 3)
    monkeypatch.setattr(neighbour_sets, "MOST_BYTES", 50)
    with pytest.raises(ConfigError, match=r"30 clients have 10 different sets.*case = 'clusters'"):
        SparseGraph.of_blocks(30, [(everyone, everyone, graph)]).neighbours()
