"""How near is near, where it is not set: for clear groups a fixed distance, else the median of all pairs."""

import warnings
from dataclasses import replace

import pytest
import torch

from kinfed.relatedness import Relatedness, relatedness
from kinfed.relatedness.relatedness import adapt_threshold
from kinfed.signatures import Signatures

KERNEL = Relatedness()
UNCLEAR = "no clear clusters"


def apart(*places: float) -> torch.Tensor:
    """The distances of points on a line."""
    line = torch.tensor(places, dtype=torch.double)
    return (line[:, None] - line).abs()


def all_different(clients: int) -> Signatures:
    """A cloud of clients without any groups."""
    draw = torch.Generator().manual_seed(0)
    middles = torch.randn(clients, 1, 6, generator=draw)
    return Signatures(middles + 0.3 * torch.randn(clients, 4, 6, generator=draw), torch.full((clients, 4), 0.25))


def test_where_everyone_is_alone_the_median_pair_is_adapt_threshold():
    # by hand: of the 66 pairs of 12 points on a ruler 11, 10, 9 and 8 are one, two, three and four steps apart
    with pytest.warns(UserWarning, match=rf"{UNCLEAR} \(silhouette 0\.00\): .* raised from 0\.25 to 1\.20"):
        assert adapt_threshold(apart(*(0.3 * i for i in range(12))), 0.25) == pytest.approx(1.2)


@pytest.mark.parametrize(
    "places",
    [
        [0.1 * (i % 3) + 2 * (i // 3) for i in range(12)],  # four clear groups
        [0.01 * i for i in range(12)],  # one group
        [0.3 * i for i in range(9)],  # of few clients each may be one of a kind
    ],
)
def test_otherwise_near_is_as_it_was(places):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert adapt_threshold(apart(*places), 0.25) == 0.25


def test_it_never_becomes_less():
    points = torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    distances = torch.cdist(points, points)
    with pytest.warns(UserWarning, match=UNCLEAR):
        typical = adapt_threshold(distances, 0.25)
    assert adapt_threshold(distances * 0.24 / typical, 0.25) == 0.25


def test_a_threshold_that_is_set_stays_and_other_distances_have_their_own():
    ruler = apart(*range(0, 24, 2))
    assert Relatedness(threshold=0.4).threshold_for(ruler) == 0.4
    assert Relatedness(distance="matching").threshold_for(ruler) == 1.0


@pytest.mark.filterwarnings(f"ignore:{UNCLEAR}")
def test_all_pairs_few_pairs_and_strangers_are_as_near_as_each_other(monkeypatch):
    known, rule = all_different(40), KERNEL
    alone = replace(rule, threshold=rule.near).compare(known).neighbours().matrix().sum(1)
    few, many = rule.compare(known), replace(rule, all_pairs=1).compare(known)
    assert few.near == many.near > rule.near
    assert torch.equal(few.neighbours().matrix(), many.neighbours().matrix())
    assert few.neighbours().matrix().sum(1).float().mean() > 2 * alone.float().mean()
    close = rule.distances(known) < few.near
    assert torch.equal(rule.relate_unseen(known, known).matrix(), close)
    assert few.dendrogram(torch.arange(40)).height == pytest.approx(few.near)
    monkeypatch.setattr(relatedness, "SEEN", 30)
    assert rule.compare(known).near == replace(rule, all_pairs=1).compare(known).near != few.near
