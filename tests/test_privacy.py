"""Private signatures: clipped, with the noise that a hand-derived sensitivity asks for, and an exact account of ε."""

import math
from dataclasses import replace
from statistics import NormalDist

import pytest
import torch
from torch.testing import assert_close

from kinfed.client import Client, Execution, Samples
from kinfed.clustering.kmeans import Centroids, Part
from kinfed.config import read
from kinfed.config.assembly import assemble
from kinfed.engines import Sequential, Vectorised
from kinfed.errors import ConfigError
from kinfed.methods import FLT
from kinfed.privacy import SignaturePrivacy, find_epsilon, find_multiplier, sum_nearest
from kinfed.relatedness import Calibrated, Relatedness
from kinfed.signatures import PartMeans, Signatures
from kinfed.signatures.part_means import split_batches
from tests.methods.registry import population, signature
from tests.problems import small_net

PRIVATE = SignaturePrivacy(epsilon=2.0, clip=0.5)
IDENTITY = {"mean": torch.zeros(3), "directions": torch.eye(3)}
UNIT = int((1 - math.exp(-0.5)) * 2**53) << 11  # -2 log(1 - u) = 1: with angle 0 the number drawn is 1


def silent(count: int) -> torch.Tensor:
    """Random bits that make every normal number 0."""
    return torch.zeros(count, dtype=torch.long)


def steady(count: int) -> torch.Tensor:
    """Random bits that make every normal number 1."""
    return torch.cat([torch.full((count // 2,), UNIT), torch.zeros(count // 2, dtype=torch.long)])


def make_client(x: torch.Tensor, entropy=None, key: int = 7) -> Client:
    zero, count = torch.tensor(0), len(x)
    own = Samples(x, torch.zeros(count).long(), torch.arange(count), torch.tensor(count), exact=True, width=4)
    return Client(own, own, torch.tensor(key), zero, zero, {}, Execution(entropy=entropy))


def compute(x: torch.Tensor, privacy: SignaturePrivacy = PRIVATE, entropy=silent) -> Centroids:
    return PartMeans(parts=4, latent=3).protect(privacy).compute(make_client(x, entropy), IDENTITY, 2)


def test_the_multiplier_solves_the_exact_condition():
    normal, z, epsilon = NormalDist().cdf, find_multiplier(1.0, 1e-5), 1.0
    delta = normal(1 / (2 * z) - epsilon * z) - math.exp(epsilon) * normal(-1 / (2 * z) - epsilon * z)
    assert delta == pytest.approx(1e-5, rel=1e-6)  # Balle and Wang 2018, theorem 8


def test_four_releases_cost_what_one_with_half_the_noise_does():
    assert find_epsilon(3.0, 1e-5, steps=4) == pytest.approx(find_epsilon(1.5, 1e-5))


def test_epsilon_is_the_inverse_of_the_multiplier():
    assert find_epsilon(find_multiplier(0.7, 1e-6), 1e-6) == pytest.approx(0.7)


def test_no_release_costs_nothing_and_no_noise_everything():
    assert find_epsilon(1.0, 1e-5, steps=0) == 0 and find_epsilon(0.0, 1e-5) == math.inf


def test_the_exact_account_is_a_little_below_the_accountant_of_opacus():
    accountants = pytest.importorskip("opacus.accountants")
    accountant = accountants.RDPAccountant()
    accountant.history = [(4.0, 1.0, 10)]
    assert 0.8 * accountant.get_epsilon(1e-5) < find_epsilon(4.0, 1e-5, steps=10) < accountant.get_epsilon(1e-5)


def test_sampling_lowers_epsilon():
    pytest.importorskip("opacus")
    assert find_epsilon(1.0, 1e-5, steps=10, rate=0.1) < 0.3 * find_epsilon(1.0, 1e-5, steps=10)


def test_one_sample_moves_the_mean_of_its_part_by_twice_the_clip_over_the_part():
    x = torch.zeros(8, 3)
    x[5, 0] = 100.0
    y = x.clone()
    y[5, 0] = -100.0  # clipped to ±0.5: the part has 2 samples, so the mean moves by 1 / 2
    moved = compute(x).points - compute(y).points
    assert_close(moved.norm(dim=1).sort().values, torch.tensor([0.0, 0.0, 0.0, 2 * 0.5 / 2]))


def test_no_adjacent_client_is_farther_than_the_bound():
    draw = torch.Generator().manual_seed(0)
    for _ in range(50):
        x = torch.randn(8, 3, generator=draw)
        y = x.clone()
        y[int(torch.randint(8, (1,), generator=draw))] = 3 * torch.randn(3, generator=draw)
        assert (compute(x).points - compute(y).points).norm() <= 2 * 0.5 / 2 + 1e-6


def test_the_noise_of_a_part_is_the_multiplier_times_its_sensitivity():
    x = torch.rand(10, 3)  # parts of 3, 3, 2 and 2 samples
    part = torch.cat([part for _, part in split_batches(make_client(x).train, torch.tensor(7), 4)])
    expected = find_multiplier(2.0, 1e-5) * 2 * 0.5 / part.bincount()
    added = compute(x, entropy=steady).points - compute(x).points
    assert_close(added, expected.float()[:, None].expand(4, 3), rtol=1e-4, atol=1e-5)


def test_counts_say_how_much_parts_vary_with_their_noise():
    counts = compute(torch.rand(10, 3)).shares.sort().values
    share = 4 * find_multiplier(2.0, 1e-5) ** 2 * 3  # variance of noise over that of one sample: 4z²C² · d / C²
    assert_close(counts[[0, 3]], torch.tensor([4 * (1 + share) / (2 + share), 9 * (1 + share) / (3 + share)]))


def test_without_a_budget_nothing_changes():
    x = torch.rand(10, 3)
    plain = PartMeans(parts=4, latent=3).compute(make_client(x), IDENTITY, 2)
    assert all(map(torch.equal, plain, compute(x, SignaturePrivacy(), entropy=steady)))


def test_sums_and_counts_move_by_two_at_most():
    draw, centres = torch.Generator().manual_seed(1), torch.tensor([[0.3, 0.0], [-0.3, 0.0], [0.0, 0.3]])

    def total(x: torch.Tensor) -> torch.Tensor:
        return sum_nearest([Part(PRIVATE.clip_embeddings(x), torch.ones(len(x)).bool())], centres, 0.5)

    for _ in range(100):
        x = torch.randn(6, 2, generator=draw)
        y = x.clone()
        y[0] = 5 * torch.randn(2, generator=draw)
        assert (total(x) - total(y)).norm() <= 2 + 1e-6
    far = torch.tensor([[9.0, 0.0]]), torch.tensor([[-9.0, 0.0]])  # sums move by 1 and -1, counts by 1 and 1
    assert float((total(far[0]) - total(far[1])).norm()) == pytest.approx(2.0)


def test_private_centroids_stay_within_the_clip_and_near_large_clusters():
    x = torch.cat([torch.tensor([1.0, 0.0, 0.0]).repeat(300, 1), torch.tensor([0.0, 1.0, 0.0]).repeat(300, 1)])
    privacy = SignaturePrivacy(epsilon=4.0, clip=0.5, iterations=2)
    parts = [Part(privacy.clip_embeddings(x), torch.ones(600).bool())]
    points, shares = privacy.cluster_privately(parts, 3, make_client(x))
    assert float(points.norm(dim=1).max()) <= 0.5 + 1e-6 and float(shares.sum()) == pytest.approx(1.0)
    mean = (points * shares[:, None]).sum(0)
    assert_close(mean, torch.tensor([0.25, 0.25, 0.0]), atol=0.06, rtol=0)


def test_small_centroids_are_merged_with_the_nearest_large_one():
    found = Centroids(torch.tensor([[0.0], [1.0], [10.0]]), torch.tensor([0.4, 0.1, 0.5]))
    points, shares = SignaturePrivacy(min_samples=2).release_centroids(found, make_client(torch.zeros(10, 1)))
    assert_close(points, torch.tensor([[0.2], [0.2], [10.0]]))  # (4 · 0 + 1 · 1) / 5
    assert_close(shares, torch.tensor([0.5, 0.0, 0.5]))


def test_centroids_that_are_all_small_become_one():
    found = Centroids(torch.tensor([[0.0], [4.0]]), torch.tensor([0.5, 0.5]))
    points, shares = SignaturePrivacy(min_samples=5).release_centroids(found, make_client(torch.zeros(8, 1)))
    assert points.tolist() == [[2.0], [2.0]] and shares.tolist() == [1.0, 0.0]


def test_a_client_of_fewer_samples_than_the_floor_sends_zeros():
    found = Centroids(torch.tensor([[0.0], [4.0]]), torch.tensor([0.5, 0.5]))
    points, shares = SignaturePrivacy(min_samples=9).release_centroids(found, make_client(torch.zeros(8, 1)))
    assert not points.any() and not shares.any()
    points, shares = compute(torch.rand(8, 3), SignaturePrivacy(min_samples=9))
    assert not points.any() and not shares.any()


def test_parts_are_fewer_where_they_would_be_too_small():
    assert sorted(compute(torch.rand(11, 3), SignaturePrivacy(min_samples=5)).shares.tolist()) == [0.0, 0.0, 5.0, 6.0]


def collect(flt: FLT, engine: type) -> tuple[Signatures, torch.Tensor]:
    """The signatures of the tiny population by an encoder that nobody has trained, and who sent one."""
    fed = engine(flt, population())
    none = Signatures.none(fed.count, *flt.signature.size((1, 8, 8)), fed.device)
    return flt.collect(none, flt.signature.networks((1, 8, 8))[0], fed.clients, fed)


@pytest.mark.parametrize("source", [PartMeans(latent=8), signature()], ids=["part_means", "encoder_centroids"])
def test_engines_draw_the_same_private_signatures(source):
    by = Calibrated() if source.has_parts() else Relatedness()
    flt = FLT(small_net(), signature=source.protect(SignaturePrivacy(epsilon=8.0)), relatedness=by)
    (first, _), (second, _) = (collect(flt, engine) for engine in (Vectorised, Sequential))
    assert_close(first.centroids, second.centroids)
    assert_close(first.shares, second.shares)


def test_clients_below_the_floor_count_as_those_without_a_signature():
    flt = FLT(small_net(), signature=signature().protect(SignaturePrivacy(min_samples=9)))
    enough = [i for i, rows in enumerate(population().train) if len(rows) >= 9]
    assert collect(flt, Vectorised)[1].tolist() == enough and len(enough) < 12


def test_private_centroids_need_an_encoder_that_clients_do_not_tune():
    with pytest.raises(ConfigError, match="tuning = 'none'"):
        signature(tuning="own_copy").protect(PRIVATE)


@pytest.mark.parametrize("method", ["fedavg", "repa"])
def test_methods_without_protected_signatures_refuse_the_setting(method):
    with pytest.raises(ConfigError, match="use flt"):
        assemble(read({"method": method, "privacy": {"signature": {"epsilon": 1.0}}, "partition": {"clients": 5}}))


def test_the_section_reaches_the_signature():
    table = {"method": "flt", "privacy": {"signature": {"min_samples": 3}}, "data": {"public": 0.1}}
    config = read(table)
    assert assemble(config).method.signature.protection.min_samples == 3
    assert read(config.resolve()) == config and "protection" not in config.resolve()["methods"]["flt"]["signature"]


@pytest.mark.parametrize("wrong", [{"epsilon": -1.0}, {"delta": 0.0}, {"clip": 0.0}, {"epsilon": math.inf}])
def test_meaningless_budgets_are_refused(wrong):
    with pytest.raises(ConfigError):
        replace(SignaturePrivacy(), **wrong)
