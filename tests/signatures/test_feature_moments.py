"""What a common model makes of samples: features, moments and their scale, by hand."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from kinfed.aggregation import Mean, Median
from kinfed.clustering.knee_linkage import link_within_knee
from kinfed.engines import Vectorised
from kinfed.errors import ModelError
from kinfed.models import Model
from kinfed.signatures import Signatures, find_limits, project, scale_moments
from kinfed.signatures.feature_moments import (
    FAR,
    LEVEL,
    NOISIEST,
    balance_features,
    centre_moments,
    share_targets,
    standardise_moments,
)
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


def test_one_client_that_sends_what_another_sent_parts_no_others():
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [10.0, 0.0], [11.0, 0.0], [12.5, 0.0], [21.0, 0.0]])
    honest = link_within_knee(points).tolist()
    assert link_within_knee(torch.cat([points, points[:1]])).tolist() == [*honest, 0]
    even = points[:6].floor()  # all nearest distances are 1; two of 0 would be the knee
    assert link_within_knee(torch.cat([even, even[:1]])).tolist() == [0, 0, 0, 1, 1, 1, 0]
    near = torch.cat([points, points[:1] + 1e-4])
    assert Mean().find_copies(near).sum() == 0 and Median().find_copies(near).nonzero()[:, 0].tolist() == [0, 7]
    assert link_within_knee(near, copies=Median().find_copies(near)).tolist() == [*honest, 0]


def test_a_sample_counts_one_for_its_label_and_numbers_beside_one():
    labels, sequence = torch.tensor([1, -1]), torch.tensor([[1, 0], [0, 1]])
    numbers, both = torch.tensor([3.0, torch.nan]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    assert share_targets(labels, 2).tolist() == [[0, 1], [0.5, 0.5]]
    assert share_targets(sequence, 2).tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert share_targets(numbers, 2).tolist() == [[3, 1], [0, 1]], "a number counts as what it is, none as nothing"
    assert share_targets(both, 3).tolist() == [[1, 0, 1], [1, 1, 1]]
    assert share_targets(both, 3, bounded=True).tolist() == [[0, 0, 1]] * 2, "ε is for samples of bounded weight"


def send_moments(unit: float = 1.0, offset: float = 0.0) -> Signatures:
    """Ten clients of four parts of five samples each, with two features and one number: [10, 4, 2 * 3]."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(10, 4, 5, 2, generator=draw, dtype=torch.double)
    y = unit * (x[..., :1] + torch.randn(10, 4, 5, 1, generator=draw, dtype=torch.double)) + offset
    features = torch.cat([torch.ones_like(y), x + 3], 3)
    return Signatures(torch.cat([y * features, features], 3).mean(2), torch.full((10, 4), 5.0))


@pytest.mark.parametrize(("unit", "offset"), [(1e-3, 0.0), (1e3, 0.0), (1.0, 152.0), (77.0, -1e4)])
def test_moments_are_the_same_in_any_unit_and_from_any_zero(unit, offset):
    one, other = send_moments(), send_moments(unit, offset)
    assert_close(*(standardise_moments(known, known, 3).centroids for known in (one, other)), atol=1e-7, rtol=1e-7)


def test_moments_about_a_centre_are_covariances_by_hand():
    # two samples: numbers 3 and 5, features (1, 4) and (2, 0); the centre has 3 and (1, 2)
    moments = torch.tensor([[[4.0, 6.5, 6.0, 1.0, 1.5, 2.0]]])
    centre = torch.tensor([[3.0, 0.0, 0.0], [1.0, 1.0, 2.0]])
    # the number: 0 and 2 above; features: 0 and 1 above, 2 above and 2 below
    assert_close(centre_moments(moments, centre), torch.tensor([[[1.5, 2.0, 1.0, 1.0, -2.0]]]))


def test_features_have_noise_one_and_the_mean_of_a_number_counts_double():
    known = send_moments()
    scaled = standardise_moments(known, known, 3).centroids
    assert scaled.shape == (10, 4, 5), "two features, the mean of the number, and two covariances"
    noise = 5 * scaled.var(1).mean(0)  # of one sample: parts have five
    assert_close(noise, torch.tensor([1, 1, LEVEL**2, 1, 1], dtype=torch.double))


def test_clients_are_measured_in_units_of_others_and_a_lying_one_hides_no_difference():
    known = send_moments()
    some = standardise_moments(known.of(torch.arange(3)), known, 3)
    assert_close(some.centroids, standardise_moments(known, known, 3).centroids[:3])
    lying = Signatures(known.centroids.clone(), known.shares)
    lying.centroids[0] *= torch.tensor([1e9, -1e9, 1e9, -1e9], dtype=torch.double)[:, None]
    shrunk = standardise_moments(lying, lying, 3).centroids[1:].std() / some.centroids.std()
    assert shrunk > 0.5 / NOISIEST**0.5, "it adds its hundredfold noise to that of ten clients, no more"


def test_numbers_that_are_constant_within_clients_and_columns_without_any_difference_stay_finite():
    known = send_moments()
    features = known.centroids[..., 3:].clone()
    features[..., 2] = 7.0
    level = torch.arange(10, dtype=torch.double)[:, None, None]
    constant = Signatures(torch.cat([1e-9 * level * features, features], 2), known.shares)
    scaled = standardise_moments(constant, constant, 3).centroids
    assert scaled.isfinite().all()
    assert scaled[..., 2].std() > 1, "clients differ in it, and not by noise"
    nobody = Signatures(torch.full((2, 4, 6), torch.nan), torch.ones(2, 4))
    assert standardise_moments(nobody, nobody, 3) is nobody


def test_features_of_labels_in_a_far_unit_have_noise_one_by_hand():
    """Two labels, each with a share and one feature; one client of two parts of four samples."""
    parts = torch.tensor([[[0.25, 1.0, 0.75, 2.0], [0.5, 5.0, 0.5, 8.0]]])
    counts = torch.full((1, 2), 4.0)
    noise = (4 * (2 * 2**2 + 2 * 3**2)) ** 0.5  # means are 3 and 5, with one degree of freedom
    near = Signatures(parts, counts)
    assert 1 / FAR < noise < FAR and balance_features(near, near, 2) is near
    for unit in (1e-6, 1e6):
        far = Signatures(parts * torch.tensor([1, unit, 1, unit]), counts)
        expected = parts / torch.tensor([1, noise, 1, noise])
        assert_close(balance_features(far, far, 2).centroids, expected.double(), rtol=1e-6, atol=0.0)
        assert_close(balance_features(near, far, 2).centroids[..., 1], parts[..., 1].double() / noise / unit)


def test_features_of_labels_far_from_zero_are_taken_about_the_usual_ones_by_hand():
    """The same client, whose usual feature is 8, and others whose features are 1000 more."""
    parts = torch.tensor([[[0.25, 1.0, 0.75, 2.0], [0.5, 5.0, 0.5, 8.0]]])
    counts = torch.full((1, 2), 4.0)
    about = torch.tensor([[[0.25, -1.0, 0.75, -4.0], [0.5, 1.0, 0.5, 4.0]]], dtype=torch.double)
    noise = (4 * (2 * 1**2 + 2 * 4**2)) ** 0.5
    level = torch.tensor([[0.0, 250.0, 0.0, 750.0], [0.0, 500.0, 0.0, 500.0]])
    for unit in (1.0, 1e6):
        far = Signatures((parts + level) * torch.tensor([1, unit, 1, unit]), counts)
        expected = about if unit == 1 else about / torch.tensor([1, noise, 1, noise])
        assert_close(balance_features(far, far, 2).centroids, expected, rtol=1e-5, atol=1e-4)
    moved = balance_features(Signatures(parts, counts), Signatures(parts + level, counts), 2)
    assert_close(moved.centroids, about - level, rtol=1e-5, atol=1e-4)


def test_features_without_noise_or_a_client_to_measure_it_by_stay():
    constant = Signatures(torch.full((3, 2, 4), 1e9), torch.full((3, 2), 4.0))
    assert balance_features(constant, constant, 2) is constant
    unusable = Signatures(torch.full((1, 2, 4), torch.nan), torch.zeros(1, 2))
    assert balance_features(constant, unusable, 2) is constant
