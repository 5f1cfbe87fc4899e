"""What a common model makes of samples: features, moments and their scale, by hand."""

import pytest
import torch
from torch import nn

from kinfed.clustering.hierarchy import link_within_knee
from kinfed.engines import Vectorised
from kinfed.errors import ModelError
from kinfed.models import Model
from kinfed.signatures import find_limits, project, scale_moments
from tests.methods.registry import make, population
from tests.problems import small_net


def test_features_are_what_the_last_layer_takes():
    net, x = small_net(), population().x[:5]
    params = net.init()
    wanted = (net.inputs(x).flatten(1) @ params["1.weight"].T + params["1.bias"]).relu()
    torch.testing.assert_close(net.features(params, x), wanted)
    assert net.features_width() == 8


def test_features_of_several_places_are_their_mean():
    net = Model(lambda: nn.Sequential(nn.Identity(), nn.Linear(4, 2)), classes=2)
    x = torch.arange(24.0).view(2, 3, 4)
    torch.testing.assert_close(net.features(net.init(), x), x.mean(1))


def test_a_last_layer_that_is_not_called_has_no_features():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(4, 2)

        def forward(self, x):
            return nn.functional.linear(x, self.last.weight, self.last.bias)

    net = Model(Bare, classes=2)
    with pytest.raises(ModelError, match="does not call it"):
        net.features(net.init(), torch.zeros(1, 4))


def test_directions_are_orthonormal_and_the_same_for_all():
    turned = project(torch.eye(6), 4)
    torch.testing.assert_close(turned.T @ turned, torch.eye(4).double())
    assert project(torch.eye(3), 10).shape == (3, 3), "at most as many as there are features"
    assert torch.equal(project(torch.eye(6), 4), turned)


def test_moments_are_those_of_the_embedded_samples_by_hand():
    people, method = population(), make("flux", dimensions=4)
    fed = Vectorised(method, people)
    root = method.model.init()
    _, moments = method.collect(root, torch.tensor([3]), fed)
    x = project(method.model.features(root, people.x[people.train[3]]), 4)
    y = people.y[people.train[3]]
    torch.testing.assert_close(
        moments[0, 0], torch.stack([x.mean(0), x.std(0, correction=0)]).float(), atol=1e-5, rtol=1e-4
    )
    for label in range(3):
        own = x[y == label]
        wanted = torch.stack([own.mean(0), own.std(0, correction=0)]) if len(own) else torch.full((2, 4), -1.0)
        torch.testing.assert_close(moments[0, 1 + label], wanted.float(), atol=1e-5, rtol=1e-4)


def test_each_block_is_scaled_by_its_own_limits():
    moments = torch.tensor(
        [[[[0.0, 4.0], [7.0, 7.0]]], [[[2.0, 2.0], [7.0, 7.0]]]]
    )  # two clients, one block, two moments
    limits = find_limits(moments)
    assert limits.flatten().tolist() == [0, 7, 4, 7]
    assert scale_moments(moments, limits).flatten().tolist() == [0, 1, 0, 0, 0.5, 0.5, 0, 0]  # all alike: 0


def test_points_are_linked_up_to_the_knee_by_hand():
    # distances to the nearest: 1, 1, 1, 1, 1, 1.5, 17.5; the line from 1 to 17.5 is furthest above 1.5
    points = torch.tensor([[0.0], [1.0], [2.0], [10.0], [11.0], [12.5], [30.0]])
    assert link_within_knee(points).tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert link_within_knee(points, radius=6.0).tolist() == [0, 0, 0, 0, 0, 0, 1]  # 8 is within 6 · 1.5
    assert link_within_knee(points[:1]).tolist() == [0]
