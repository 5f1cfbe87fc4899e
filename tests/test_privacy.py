"""Private signatures and training: clipped, with the noise that a hand-derived sensitivity asks for, and its ε."""

import math
from dataclasses import replace
from statistics import NormalDist

import pytest
import torch
from torch.testing import assert_close

from kinfed.aggregation import Median
from kinfed.client import Client, Execution, Samples
from kinfed.clustering.kmeans import Centroids, Part
from kinfed.config import read
from kinfed.config.assembly import assemble
from kinfed.engines import Sequential, Vectorised
from kinfed.errors import ConfigError
from kinfed.experiment import Experiment
from kinfed.federation import Replies
from kinfed.methods import FLT, METHODS
from kinfed.methods.cluster_models import ClusterModels
from kinfed.privacy import Privacy, SignaturePrivacy, TrainingPrivacy, find_epsilon, find_multiplier, sum_nearest
from kinfed.relatedness import Calibrated, Relatedness
from kinfed.signatures import PartMeans, Pretraining, Signatures
from kinfed.signatures.part_means import split_batches
from tests.methods.registry import KERNEL, make, population, signature
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
    none = Signatures.none(fed.count, *flt.signature.size((1, 8, 8), 3), fed.device)
    return flt.collect(none, flt.signature.networks((1, 8, 8))[0], fed.clients, fed)


@pytest.mark.parametrize("source", [PartMeans(latent=8), signature()], ids=["part_means", "encoder_centroids"])
def test_engines_draw_the_same_private_signatures(source):
    by = Calibrated() if source.has_parts() else Relatedness()
    flt = FLT(small_net(), signature=source.protect(SignaturePrivacy(epsilon=8.0)), relatedness=by)
    (first, _), (second, _) = (collect(flt, engine) for engine in (Vectorised, Sequential))
    assert_close(first.centroids, second.centroids)
    assert_close(first.shares, second.shares)


def test_clients_below_the_floor_count_as_those_without_a_signature():
    flt = make(KERNEL, signature=signature().protect(SignaturePrivacy(min_samples=9)))
    enough = [i for i, rows in enumerate(population().train) if len(rows) >= 9]
    assert collect(flt, Vectorised)[1].tolist() == enough and len(enough) < 12


def test_private_centroids_need_an_encoder_that_clients_do_not_tune():
    with pytest.raises(ConfigError, match="tuning = 'none'"):
        signature(tuning="own_copy").protect(PRIVATE)


@pytest.mark.parametrize("method", ["fedavg", "repa"])
def test_methods_without_protected_signatures_refuse_the_setting(method):
    with pytest.raises(ConfigError, match="use flt"):
        assemble(read({"method": method, "privacy": {"signature": {"epsilon": 1.0}}, "partition": {"clients": 5}}))


def experiment_with_private_signatures(method):
    return Experiment(method, population(), rounds=1, privacy=Privacy(signature=SignaturePrivacy(epsilon=0.5)))


@pytest.mark.parametrize("source", [PartMeans(embedding="random"), PartMeans(embedding="random").protect(PRIVATE)])
def test_an_experiment_refuses_privacy_that_the_signature_does_not_add(source):
    with pytest.raises(ConfigError, match=r"signature.protect\(privacy.signature\)"):
        experiment_with_private_signatures(FLT(small_net(), signature=source))


@pytest.mark.parametrize("name", ["repa", "pacfl", "fedavg", "fedclust"])
def test_an_experiment_refuses_private_signatures_of_methods_that_have_none(name):
    with pytest.raises(ConfigError, match="use flt, or leave it out"):
        experiment_with_private_signatures(make(name))


def test_the_section_reaches_the_signature():
    table = {"method": "flt", "privacy": {"signature": {"min_samples": 3}}, "data": {"public": 0.1}}
    config = read(table)
    assert assemble(config).method.signature.protection.min_samples == 3
    assert read(config.resolve()) == config and "protection" not in config.resolve()["methods"]["flt"]["signature"]


@pytest.mark.parametrize("wrong", [{"epsilon": -1.0}, {"delta": 0.0}, {"clip": 0.0}, {"epsilon": math.inf}])
def test_meaningless_budgets_are_refused(wrong):
    with pytest.raises(ConfigError):
        replace(SignaturePrivacy(), **wrong)


ZERO = {"w": torch.zeros(2, 3)}  # two models of three weights


def release(trained, which, expected, noise=0.0, number=0.0):
    privacy = TrainingPrivacy(clip=2.0, noise=noise)
    return privacy.release(ZERO, which, {"w": trained}, expected, lambda count: torch.full((count,), number))["w"]


def test_updates_are_clipped_summed_by_cluster_and_divided_by_the_expected_clients():
    trained = torch.tensor([[0.0, 3.0, 4.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [9.0, 9.0, 9.0]])
    means = release(trained, torch.tensor([0, 0, 1, -1]), torch.tensor([4.0, 2.0]))
    first = torch.tensor([1.0, 3.0 * 2 / 5, 4.0 * 2 / 5]) / 4  # the first update is 5 long
    assert_close(means, torch.stack([first, torch.tensor([0.0, 0.0, 0.5])]))  # the last is a decoy


def test_a_client_more_moves_no_sum_by_more_than_the_clip():
    trained, which = torch.randn(6, 3, generator=torch.Generator().manual_seed(2)) * 5, torch.tensor([0, 1, 0, 1, 0, 1])
    one = torch.ones(2)
    moved = release(trained, which, one) - release(trained[:-1], which[:-1], one)
    assert float(moved.norm()) <= 2 + 1e-6 and not moved[0].any()


def test_the_noise_of_a_sum_is_the_multiplier_times_the_clip():
    nobody, which = torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)
    assert_close(release(nobody, which, torch.tensor([4.0, 0.0]), 1.5, 1.0), torch.tensor([[0.75] * 3, [0.0] * 3]))


def train_privately(method, fraction=1.0, rounds=2, engine=Vectorised, **privacy):
    fed = engine(method, population(), fraction=fraction)
    fed.privacy = Privacy(training=TrainingPrivacy(**privacy))
    experiment = Experiment.over(fed, rounds=rounds)
    return experiment, experiment.run()


def test_without_noise_and_with_a_wide_clip_all_clients_weigh_the_same():
    method = make("fedavg")
    experiment, summary = train_privately(method, rounds=1, clip=1e6, noise=0.0)
    fed = Vectorised(method, population())
    state = method.init(fed)
    replies = fed.run(method.train, fed.clients, method.offer(state, fed.clients, fed))
    mean = {name: w.mean(0) for name, w in replies.stack("params").items()}
    for name, weight in experiment.state.params.items():
        assert_close(weight, mean[name], atol=1e-5, rtol=0)
    assert summary["training_epsilon"] is None and summary["training_delta"] == 1e-5


def test_the_summary_holds_the_epsilon_of_all_rounds():
    _, summary = train_privately(make("fedavg"), rounds=3, clip=1.0, noise=2.0)
    assert summary["training_epsilon"] == pytest.approx(find_epsilon(2.0, 1e-5, steps=3))


def test_every_round_counts_where_an_encoder_is_trained_too():
    _, summary = train_privately(make("repa"), rounds=1, clip=1.0, noise=2.0)
    assert summary["training_epsilon"] == pytest.approx(find_epsilon(2.0, 1e-5, steps=2))


def test_engines_train_the_same_private_models():
    runs = [train_privately(make("fedper"), engine=engine, clip=0.5)[0] for engine in (Vectorised, Sequential)]
    for name, weight in runs[0].state.shared.items():
        assert_close(weight, runs[1].state.shared[name], atol=1e-5, rtol=0)


def test_cohorts_are_poisson_samples():
    fed = Vectorised(make("fedavg"), population(), fraction=0.5)
    fed.privacy = Privacy(training=TrainingPrivacy(clip=1.0))
    sizes = torch.tensor([float(len(fed.sample())) for _ in range(400)])
    assert abs(float(sizes.mean()) - 6) < 0.4 and abs(float(sizes.var()) - 3) < 0.8  # binomial: 12 · 0.5, 12 · 0.25


def test_a_round_without_clients_still_adds_noise():
    fed = Vectorised(make("fedavg"), population(), fraction=1e-9)
    fed.privacy = Privacy(training=TrainingPrivacy(clip=1e-9, noise=1.0))
    assert len(fed.sample()) == len(fed.decoys) == 1
    state = make("fedavg").init(fed)
    after = make("fedavg").round(state, 0, fed)
    name = next(iter(state.params))
    change = (after.params[name] - state.params[name]).norm()
    assert float(change) > 0  # 1e-9 · N(0, 1) / (1e-9 · 12)


def test_a_small_cluster_keeps_its_model():
    experiment, _ = train_privately(make("pca_km_hc", clusters=3, stale="exclude"), rounds=1, clip=1.0)
    served = experiment.state.served
    first = make("fedavg").model.init()
    for model, members in enumerate(served.contributors.sum(1).tolist()):
        stays = all(torch.equal(w[model], first[name]) for name, w in served.models.items())
        assert stays == (members < 3)


def test_overlapping_neighbours_cannot_be_hidden():
    with pytest.raises(ConfigError, match="case = 'clusters'"):
        overlap = torch.tensor([[True, True], [False, True]])
        served = ClusterModels({"w": torch.zeros(2, 1)}, torch.tensor([0, 1]), overlap, {})
        served.release(Replies(torch.tensor([0, 1]), {"params": {"w": torch.zeros(2, 1)}}), None, "exclude")


HIDING = {"fedavg", "fedavg_ft", "fedprox", "fedper", "lg_fedavg", "per_fedavg", "flt", "pca_km_hc", "repa",
          "ditto", "apfl", "pfedme", "fedala", "fedrep", "fedbabu", "fedbn", "oracle", "fedem"}  # fmt: skip


def test_private_training_refuses_another_rule():
    with pytest.raises(ConfigError, match="takes their mean, got aggregation Median"):
        Experiment(
            make("fedavg"), population(), aggregation=Median(), privacy=Privacy(training=TrainingPrivacy(clip=1.0))
        )


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_make_more_of_updates_refuse_private_training(name):
    fed = Vectorised(make(name), population())
    fed.privacy = Privacy(training=TrainingPrivacy(clip=1.0))
    if name in HIDING:
        Experiment.over(fed, rounds=3)
        return
    with pytest.raises(ConfigError, match="more of updates than means"):
        Experiment.over(fed, rounds=3)


@pytest.mark.parametrize("embedding", ["auto", "model"])
def test_private_signatures_are_in_the_summary(embedding):
    source = PartMeans(embedding=embedding, latent=8, pretraining=Pretraining("public"), model_rounds=1)
    source = source.protect(SignaturePrivacy(epsilon=8.0))
    fed = Vectorised(FLT(small_net(), signature=source, relatedness=Calibrated()), population())
    fed.privacy = Privacy(signature=SignaturePrivacy(epsilon=8.0))
    assert Experiment.over(fed, rounds=1).run()["signature_epsilon"] == pytest.approx(8.0)
