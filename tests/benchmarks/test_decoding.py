"""The attacks on signatures: who is named, among all clients and among those of a cluster."""

import torch

from benchmarks.decoding import Case, count_hits, find_nearest_samples
from kinfed.data import Population
from kinfed.signatures import PartMeans, Signatures

DISTANCES = torch.tensor([[1.0, 2.0, 0.5], [3.0, 1.0, 2.0], [1.0, 1.0, 4.0]])
MATES = torch.tensor([[True, True, False], [True, True, False], [False, False, True]])


def test_a_client_is_named_where_its_own_distance_is_the_least():
    everyone = torch.ones(3, dtype=torch.bool)
    assert count_hits(DISTANCES, everyone, MATES, in_cluster=False) == torch.tensor(1 / 3, dtype=torch.double)
    assert count_hits(DISTANCES, everyone, MATES, in_cluster=True) == 1.0
    assert count_hits(DISTANCES, torch.tensor([True, False, False]), MATES, in_cluster=True) == 1 / 3


def test_points_are_decoded_and_compared_with_every_sample_of_every_client():
    x = torch.zeros(3, 1, 28, 28, dtype=torch.uint8)
    x[1, 0, 0, 0], x[2, 0, 0, 0] = 51, 255  # the first pixel: 0, 0.2 and 1
    own = (torch.tensor([0, 2]), torch.tensor([1]))
    nothing = (torch.zeros(0).long(),) * 2
    population = Population(x, torch.zeros(3).long(), own, nothing, classes=1)
    encoder = {"mean": torch.zeros(784), "directions": torch.eye(784)[:, :1]}
    known = Signatures(torch.tensor([[[0.9], [0.5]], [[0.2], [0.0]]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
    found = find_nearest_samples(Case("part means", PartMeans(latent=1)), known, encoder, population)
    torch.testing.assert_close(
        found, torch.tensor([[0.1, 0.3], [0.2, 0.0]]), atol=1e-4, rtol=0
    )  # the last point stands for no samples
