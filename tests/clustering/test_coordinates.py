import pytest
import torch

from kinfed.clustering.kmeans import WIDTH, place_models
from kinfed.params import Stack, flatten, join, repeat, select


def models(number: int, away: float = 0.0, seed: int = 0) -> Stack:
    """Some models, with a tensor that is looked at in two pieces and one that has a single number."""
    draw = torch.Generator().manual_seed(seed)
    shapes = {"weight": (3, WIDTH // 2), "bias": (5,), "scale": ()}
    return {name: torch.randn(number, *shape, generator=draw) + away for name, shape in shapes.items()}


@pytest.mark.parametrize("away", [0.0, 1000.0])
def test_points_are_as_far_from_each_other_as_the_models(away):
    fresh, old = models(6, away), models(3, away, seed=1)
    points, whole = place_models(fresh, old), flatten(join(fresh, old)).double()
    assert len(points) == 9 and points.shape[1] < 9  # nine points span at most eight dimensions
    torch.testing.assert_close(torch.cdist(points, points), torch.cdist(whole, whole), rtol=1e-6, atol=1e-6)


def test_equal_models_are_at_one_point():
    some = models(4)
    points = place_models(select(some, torch.tensor([2, 0, 2, 1, 0])))
    assert points.shape[1] == 2
    torch.testing.assert_close(points[[0, 1]], points[[2, 4]], rtol=0, atol=1e-5)


def test_models_that_are_all_equal_have_a_coordinate_all_the_same():
    assert place_models(repeat(select(models(1), 0), 3)).tolist() == [[0.0]] * 3


def test_a_stack_without_models_adds_no_point():
    some = models(3)
    assert torch.equal(place_models(some, select(some, slice(0))), place_models(some))
