"""REPA's robustness, by hand and through every method."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import tensor

from kinfed.data import LATER, Role
from kinfed.experiment import Evaluation, Experiment
from kinfed.metrics import collect_confusions, current_clusters, robustness
from tests.methods.registry import CASES, make, population


def test_robustness_is_the_mean_over_clusters_of_the_share_of_look_alikes_in_place():
    #             clients 0..3, then two look-alikes each
    originals = tensor([-1, -1, -1, -1, 0, 0, 1, 1, 2, 2, 3, 3])
    clusters = tensor([5, 5, 8, 2, 5, 5, 5, 8, 8, -1, 5, 5])
    # cluster 5: 3 of 4 in place; cluster 8: 1 of 2, one was assigned nowhere; cluster 2: none of 2
    found = robustness(clusters, originals, tensor([0, 1, 2, 3]))
    assert found["robustness"] == pytest.approx((3 / 4 + 1 / 2 + 0) / 3)
    mean = 5 / 12
    deviation = (((3 / 4 - mean) ** 2 + (1 / 2 - mean) ** 2 + mean**2) / 2) ** 0.5
    assert found["robustness_se"] == pytest.approx(deviation / 3**0.5)


def test_look_alikes_of_those_without_a_cluster_or_who_do_not_train_do_not_count():
    originals = tensor([-1, -1, -1, 0, 1, 2])
    assert robustness(tensor([0, -1, 0, 0, 0, 1]), originals, tensor([0, 1])) == {"robustness": 1.0}


def test_a_method_that_gives_unseen_clients_no_cluster_has_no_robustness():
    assert robustness(tensor([0, 1, -1, -1]), tensor([-1, -1, 0, 1]), tensor([0, 1])) == {}


def with_look_alikes():
    """Twelve clients, one of them held out, and look-alikes of the first three, made of some of their test samples."""
    base = population(roles=(*(Role(),) * 11, Role(holdout=True)))
    alike = [Role(LATER, holdout=True, look_alike_of=client) for client in range(3)]
    none = torch.empty(0, dtype=torch.long)
    return base, replace(
        base,
        train=base.train + base.test[:3],
        test=base.test + (none,) * 3,
        roles=base.roles + tuple(alike),
        true_clusters=torch.cat([base.true_clusters, tensor([-1] * 3)]),
    )


def outcome(name, base, **settings):
    method = make(name)
    evaluation = Evaluation(adapt=True, metrics="main", **settings)
    experiment = Experiment(method, base, fraction=0.5, rounds=2, evaluation=evaluation)
    return experiment.run(), experiment


@cache
def watched(name):
    """A run with look-alikes whose correlations are measured: both ask clients after every round."""
    return outcome(name, with_look_alikes()[1], correlation=True)


OFTEN = ("fedavg", "ditto", "flt", "pca_km_hc", "repa", "ifca", "fesem", "cfl", "flhc", "flis_dc", "flis_hc", "wd",
         "fedem", "auto", "local")  # each admits clients in another way  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.on_demand]) for name in CASES]
)
def test_look_alikes_and_correlations_are_measured_for_every_method_and_disturb_none(name):
    (without, one), (summary, other) = outcome(name, with_look_alikes()[0]), watched(name)
    assert {key: summary[key] for key in without} == pytest.approx(without, abs=1e-6)
    assert one.fed.ledger.rounds == other.fed.ledger.rounds
    assert all(int(sent[12:].sum()) == 0 for sent in other.fed.ledger.down.values())
    assert -1 <= summary["correlation_labels"] <= 1 and 0 <= summary["correlation_labels_se"] < 0.1
    assert "correlation_drift" not in summary
    more = {"robustness", "robustness_se", "correlation_labels", "correlation_labels_se"}
    assert summary.keys() - without.keys() <= more


@pytest.mark.parametrize("name", ["flt", "pca_km_hc", "fesem", "cfl", "flhc", "flis_hc", "repa", "wd"])
def test_methods_that_assign_unseen_clients_to_clusters_have_a_robustness(name):
    summary, experiment = watched(name)
    assert 0 <= summary["robustness"] <= 1
    found = current_clusters(experiment.method, experiment.state, experiment.fed)
    assert (found[12:] == -1).all() and (found[:11] >= 0).all()


def test_outputs_that_are_not_finite_are_of_no_class_in_a_confusion_matrix():
    base = population()
    whole = collect_confusions(*fit_confusions(base), None)
    assert whole is not None and whole[1].shape == (1, base.classes, base.classes)
    sick = base.x.float()
    lost = base.test[2][:3]
    sick[lost] = torch.nan
    found = collect_confusions(*fit_confusions(replace(base, x=sick)), None)
    assert found is not None and found[1].shape == (1, base.classes, base.classes + 1)
    held = torch.bincount(base.y[torch.cat(base.test)], minlength=base.classes)
    assert found[1][0, :, -1].tolist() == torch.bincount(base.y[lost], minlength=base.classes).tolist()
    assert found[1][0].sum(1).tolist() == held.tolist() == whole[1][0].sum(1).tolist()


def fit_confusions(base):
    """A method, its state at the start, and its federation."""
    method = make("fedavg")
    fed = Experiment(method, base, rounds=1).fed
    return method, method.init(fed), fed
