import pytest
import torch

from kinfed.data import Role
from kinfed.engines import Vectorised
from kinfed.errors import ConfigError
from kinfed.methods import LGFedAvg
from kinfed.metrics import fedavg_parameters, megabits_per_client, method_bytes
from kinfed.models import make_model
from kinfed.params import select
from tests.methods.registry import make, population
from tests.problems import assert_close, assert_same_bits, fit, small_net


def shared_of(name: str, shape: tuple[int, int, int], classes: int = 10) -> dict[str, torch.Tensor]:
    lg = LGFedAvg(make_model(name, shape, classes))
    return lg.init(Vectorised(lg, population())).shared


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_lenets_shared_part_is_its_last_two_layers(shape):
    # 120 * 84 + 84 + 84 * 10 + 10
    assert sum(w.numel() for w in shared_of("lenet5", shape).values()) == 11_014


def test_flis_counts_its_megabits():
    # 10 of 100 clients move the part both ways: 0.07049 Mb a round and client
    assert megabits_per_client(4 * fedavg_parameters(10, 11_014, 1), 100) == pytest.approx(0.07049, abs=1e-5)


def test_resnets_shared_part_is_its_last_norm_and_its_head():
    shapes = [tuple(w.shape) for w in shared_of("resnet9", (3, 32, 32), 100).values()]
    assert shapes == [(512,), (512,), (100, 512), (100,)]


def test_a_model_that_is_shared_whole_is_noticed():
    with pytest.warns(UserWarning, match="^all of 1.weight, 1.bias, 3.weight, 3.bias are shared, which is FedAvg"):
        fit(make("lg_fedavg", shared_tensors=4), population=population(), rounds=1)


def test_only_the_shared_part_crosses_the_wire():
    _, fed = fit(make("lg_fedavg"), population=population(), rounds=3, fraction=0.5)
    assert method_bytes(fed.ledger) == 4 * fedavg_parameters(6, 8 * 3 + 3, 3)


def test_who_does_not_take_part_keeps_its_own_part_and_is_served_the_new_shared_one():
    lg = make("lg_fedavg")
    state, fed = fit(lg, population=population(), rounds=1, fraction=0.5)
    trained = fed.ledger.up["train"] > 0
    first = small_net().init()
    own = {name: first[name] for name in ("1.weight", "1.bias")}
    assert fed.memory.keys() == own.keys()
    for client in range(12):
        assert torch.equal(fed.memory["1.weight"][client], own["1.weight"]) != bool(trained[client])
    assert not torch.equal(state.shared["3.weight"], first["3.weight"])


def test_the_shared_part_is_the_mean_by_rows():
    lg = make("lg_fedavg")
    fed = Vectorised(lg, population())
    state = lg.init(fed)
    after = lg.round(state, 0, fed)
    twin = Vectorised(lg, population())
    sent = twin.run(lg.train, twin.clients, lg.offer(state, twin.clients, twin)).stack("shared")
    wanted = sum(fed.sizes[i] / fed.sizes.sum() * sent["3.bias"][i] for i in range(12))
    torch.testing.assert_close(after.shared["3.bias"], wanted)


def test_a_stranger_keeps_the_first_models_own_part():
    roles = tuple(Role(holdout=i == 2) for i in range(12))
    _, fed = fit(make("lg_fedavg"), population=population(roles=roles), rounds=2)
    assert_same_bits(select(fed.memory, 2), {name: w for name, w in small_net().init().items() if name[0] == "1"})


def test_the_shared_part_can_be_chosen_by_name():
    state, fed = fit(make("lg_fedavg", shares=lambda name: name.endswith("weight")), population=population(), rounds=1)
    assert list(state.shared) == ["1.weight", "3.weight"] and list(fed.memory) == ["1.bias", "3.bias"]


@pytest.mark.filterwarnings("ignore:.* which is FedAvg")
def test_more_tensors_than_there_are_means_all():
    many, fed = fit(make("lg_fedavg", shared_tensors=99), population=population(), rounds=1)
    assert many.shared.keys() == small_net().init().keys() and not fed.memory


def test_sharing_nothing_is_refused():
    with pytest.raises(ConfigError, match="shared_tensors must be at least 1, got 0; for none use 'local'"):
        make("lg_fedavg", shared_tensors=0)
    with pytest.raises(ConfigError, match=r"none of 1\.weight.* is shared"):
        fit(make("lg_fedavg", shares=lambda name: False), population=population(), rounds=1)


def test_both_parts_are_trained_together():
    # one client: sharing all or a part of its model makes no difference to it
    alone = population(roles=tuple(Role(holdout=i != 3) for i in range(12)))
    part, fed = fit(make("lg_fedavg"), population=alone, rounds=2)
    whole, _ = fit(make("fedavg"), population=alone, rounds=2)
    assert_close(select(fed.memory, 3) | part.shared, whole.params)
