"""Degenerate settings must give simpler methods exactly."""

import pytest
import torch

from kinfed.methods import FedAvg
from kinfed.params import average, select
from kinfed.relatedness import Relatedness
from kinfed.training import LocalTraining
from tests.methods.registry import KERNEL, LOCAL, make, population
from tests.problems import assert_close, fit, small_net

pytestmark = pytest.mark.filterwarnings("ignore:.* which is FedAvg")
EVERYBODY, NOBODY = Relatedness(threshold=1e9), Relatedness(threshold=1e-12, overlap=1.0)


def final(name, **more):
    return fit(make(name, **more), population=population(), rounds=3, fraction=0.5)


def test_flt_with_everybody_related_and_no_stale_slots_is_fedavg():
    flt, _ = final(KERNEL, relatedness=EVERYBODY, stale="exclude")
    fedavg, _ = final("fedavg")
    assert_close(select(flt.served.models, 0), fedavg.params)
    assert flt.served.assignment.unique().tolist() == [0]


def test_flt_with_everybody_related_is_fedavg_over_all_clients():
    flt, _ = final(KERNEL, relatedness=EVERYBODY, stale="aggregated")
    fedavg, _ = final("fedavg", aggregate_over="all_clients")
    assert_close(select(flt.served.models, 0), fedavg.params)


@pytest.mark.filterwarnings("ignore:12 of 12 clients are related to no other")
@pytest.mark.parametrize("stale", ["aggregated", "exclude", "last_local"])
def test_flt_with_nobody_related_is_local_training(stale):
    flt, _ = final(KERNEL, relatedness=NOBODY, stale=stale)
    _, alone = final("local")
    own = {f"params/{name}": w[flt.served.assignment] for name, w in flt.served.models.items()}
    assert_close(own, alone.memory)


def test_case_two_is_case_one_with_a_block_matrix():
    one, _ = final("flt", case="related")
    two, _ = final("flt", case="clusters")
    assert torch.equal(one.served.contributors[one.served.assignment], two.served.contributors[two.served.assignment])
    assert_close(select(one.served.models, one.served.assignment), select(two.served.models, two.served.assignment))


def test_last_local_slots_start_from_the_first_model():
    model = small_net()
    flt, fed = fit(
        make(KERNEL, relatedness=EVERYBODY, stale="last_local"), population=population(), rounds=1, fraction=0.5
    )
    slots = flt.served.last_trained
    assert_close(select(flt.served.models, 0), average(slots, fed.sizes.float()))
    untouched = [i for i in range(12) if fed.ledger.up["train"][i] == 0]
    assert len(untouched) == 6
    assert_close(select(slots, untouched[0]), model.init())


def test_fedprox_without_pull_is_fedavg_and_with_a_huge_one_stands_still():
    plain, _ = final("fedavg")
    none, _ = final("fedavg", local=LocalTraining(2, 5, 0.05, mu=0.0))
    assert_close(plain.params, none.params, atol=0)
    stuck, _ = final("fedavg", local=LocalTraining(2, 5, 1e-5, momentum=0, mu=9e4))
    assert_close(stuck.params, small_net().init(), atol=1e-3)


def test_one_client_alone_is_plain_training():
    from tests.problems import tiny_population

    single = tiny_population((20,), clusters=1)
    fedavg, _ = fit(FedAvg(small_net(), LOCAL), population=single, rounds=2)
    _, alone = fit(make("local"), population=single, rounds=2)
    assert_close(fedavg.params, {name.removeprefix("params/"): w[0] for name, w in alone.memory.items()})
