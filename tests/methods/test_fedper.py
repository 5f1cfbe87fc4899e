from types import SimpleNamespace

import pytest
import torch
from torch import nn

from kinfed.data import Population, Role
from kinfed.engines import Vectorised
from kinfed.errors import ConfigError
from kinfed.methods import FedPer
from kinfed.metrics import fedavg_parameters, method_bytes
from kinfed.models import Gradient, Model, make_model
from kinfed.params import select
from kinfed.training import LocalTraining
from tests.methods.registry import make, population
from tests.problems import ENGINES, assert_close, assert_same_bits, fit, small_net

BASE, HEAD = ("1.weight", "1.bias"), ("3.weight", "3.bias")  # of small_net, 64-8-3


def kept(model: Model, layers: int) -> list[str]:
    return list(FedPer(model, personal_layers=layers).initial_memory())


def pulled(params, batch):
    """The gradient of ½(w - mean x)² for each weight w."""
    mean = (batch.x[:, 0] * batch.mask).sum() / batch.mask.sum().clamp(min=1)
    return Gradient({name: (w - mean) * batch.mask.any() for name, w in params.items()})


TWO_NUMBERS = SimpleNamespace(
    init=lambda: {"base.w": torch.zeros(()), "head.w": torch.zeros(())},
    weights=("base.w", "head.w"), gradient=pulled, buffers=frozenset(),
)  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_two_rounds_by_hand(engine):
    # client 0 has one row, 1; client 1 three rows, 4; a step goes half of the way there
    x = torch.tensor([1.0, 4.0, 4.0, 4.0])[:, None]
    own = (torch.tensor([0]), torch.tensor([1, 2, 3]))
    nobody = (torch.tensor([], dtype=torch.long),) * 2
    fedper = FedPer(TWO_NUMBERS, LocalTraining(1, 10, 0.5, momentum=0.0))
    fed = engine(fedper, Population(x, torch.zeros(4, dtype=torch.long), own, nobody, 1))
    state = fedper.round(fedper.init(fed), 0, fed)
    assert state.shared.keys() == {"base.w"} and float(state.shared["base.w"]) == 1.625  # (1 · 0.5 + 3 · 2) / 4
    assert fed.memory["head.w"].tolist() == [0.5, 2.0]
    state = fedper.round(state, 1, fed)
    # bases 1.625 - 0.3125 and 1.625 + 1.1875; heads 0.5 + 0.25 and 2 + 1
    assert float(state.shared["base.w"]) == (1 * 1.3125 + 3 * 2.8125) / 4
    assert fed.memory["head.w"].tolist() == [0.75, 3.0]


def test_the_last_layers_stay_with_the_client():
    lenet = make_model("lenet5", (1, 28, 28), 10)
    assert kept(lenet, 1) == ["11.weight", "11.bias"]
    assert kept(lenet, 2) == ["9.weight", "9.bias", "11.weight", "11.bias"]
    state, fed = fit(make("fedper"), population=population(), rounds=1)
    assert tuple(state.shared) == BASE and tuple(fed.memory) == HEAD


def test_the_statistics_of_a_norm_go_with_its_layer():
    net = Model(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)), classes=2)
    norm = {"1.weight", "1.bias", "1.running_mean", "1.running_var"}
    assert set(kept(net, 2)) == norm | {"2.weight", "2.bias"} and not norm & set(kept(net, 1))


def test_it_is_lg_fedavg_the_other_way_round():
    mirrored = make("lg_fedavg", shares=lambda name: name in BASE)
    (one, fed), (other, twin) = (
        fit(method, population=population(), fraction=0.5) for method in (make("fedper"), mirrored)
    )
    assert_same_bits(one.shared, other.shared)
    assert_same_bits(fed.memory, twin.memory)


def test_one_client_alone_is_fedavg():
    alone = population(roles=tuple(Role(holdout=i != 3) for i in range(12)))
    part, fed = fit(make("fedper"), population=alone, rounds=2)
    whole, _ = fit(make("fedavg"), population=alone, rounds=2)
    assert_close(select(fed.memory, 3) | part.shared, whole.params)


def test_only_the_base_crosses_the_wire():
    _, fed = fit(make("fedper"), population=population(), rounds=3, fraction=0.5)
    assert method_bytes(fed.ledger) == 4 * fedavg_parameters(6, 64 * 8 + 8, 3)  # 2 · 0.5 · 12 · |base| a round


def test_a_stranger_is_served_the_base_and_the_first_models_head():
    roles = tuple(Role(holdout=i == 2) for i in range(12))
    fedper = make("fedper")
    state, fed = fit(fedper, population=population(roles=roles), rounds=2)
    first = small_net().init()
    assert_same_bits(select(fed.memory, 2), {name: first[name] for name in HEAD})
    assert_same_bits(fedper.offer(state, torch.tensor([2]), fed).shared["shared"], state.shared)
    assert not torch.equal(state.shared["1.weight"], first["1.weight"])


def test_who_does_not_take_part_keeps_its_head():
    _, fed = fit(make("fedper"), population=population(), rounds=1, fraction=0.5)
    same = [torch.equal(own, small_net().init()["3.weight"]) for own in fed.memory["3.weight"]]
    assert same == (fed.ledger.up["train"] == 0).tolist() and sum(same) == 6


def test_nothing_personal_and_nothing_shared_are_refused():
    with pytest.raises(ConfigError, match="personal_layers must be at least 1, got 0; for none use 'fedavg'"):
        make("fedper", personal_layers=0)
    fedper = make("fedper", personal_layers=2)
    with pytest.raises(ConfigError, match=r"none of 1\.weight.* is shared: share some, or use 'local'"):
        fedper.init(Vectorised(fedper, population()))
