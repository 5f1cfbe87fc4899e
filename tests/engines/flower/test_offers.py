"""A client trusts nobody: it does the tasks of its own algorithm, with what they take, and says no more than a code."""

from functools import partial

import pytest
import torch

from kinfed.client import Reply, client_task
from kinfed.engines.flower.memory import InFolder
from kinfed.engines.flower.offers import Refusal, Refused, checked, tasks_of
from kinfed.engines.flower.packing import Packed, is_finite, pack, unpack
from kinfed.engines.flower.simulation import rows_of
from kinfed.engines.flower.site import Call, Site, done, guarded
from tests.methods.registry import CASES, make
from tests.problems import assert_same_bits, small_net, tiny_population

SHAPE = (1, 8, 8)
MODEL = small_net().init()


def weights(name="params", **changes):
    return {f"{name}/{inner}": t for inner, t in (MODEL | changes).items()}


def stacked(times):
    return {f"models/{inner}": torch.stack([t] * times) for inner, t in MODEL.items()}


def refusal(method, task, tensors) -> Refusal:
    with pytest.raises(Refused) as refused:
        checked(make(method), SHAPE, task, pack(tensors))
    return refused.value.code


def test_tensors_come_back_as_they_were_sent():
    tensors = {
        "a": torch.randn(3, 4), "b": torch.tensor(7), "c": torch.tensor([True, False]), "d": torch.empty(0, 3),
        "e": torch.randn(2).bfloat16(), "f": torch.arange(12).view(3, 4).T,
    }  # fmt: skip
    assert_same_bits(unpack(pack(tensors)), tensors)
    assert not Packed("float32", (3,), b"12345678").is_whole and not Packed("object", (1,), b"12345678").is_whole
    assert not is_finite({"a": torch.tensor([1.0, torch.inf])}) and is_finite({"a": torch.tensor([2**62])})


@pytest.mark.parametrize("name", CASES)
def test_every_methods_tasks_are_known_by_their_marks(name):
    tasks = tasks_of(make(name))
    assert {"train", "evaluate", "evaluate_adapted", "compute_update"} <= tasks
    assert not tasks & {"personalise", "init", "round", "offer", "admit", "initial_memory", "remarks", "__init__"}


def test_what_a_task_takes_is_taken():
    assert_same_bits(checked(make("fedavg"), SHAPE, "train", pack(weights())), weights())
    assert_same_bits(checked(make("fedavg"), SHAPE, "evaluate", pack(weights())), weights())
    assert_same_bits(checked(make("ifca"), SHAPE, "train", pack(stacked(5))), stacked(5))
    some = {name: t for name, t in weights("shared").items() if "3." in name}
    assert_same_bits(checked(make("lg_fedavg"), SHAPE, "train", pack(some)), some)


def test_another_task_is_refused():
    for task in ("nothing", "personalise", "__init__", "_signature", "round", ""):
        assert refusal("flt", task, weights()) is Refusal.UNKNOWN_TASK


def test_other_names_are_refused():
    assert refusal("fedavg", "train", {}) is Refusal.WRONG_NAMES
    assert refusal("fedavg", "train", weights("weights")) is Refusal.WRONG_NAMES
    assert refusal("fedavg", "evaluate", weights(another=torch.zeros(1))) is Refusal.WRONG_NAMES
    assert refusal("fedavg", "train", weights(another=torch.zeros(1))) is Refusal.WRONG_NAMES


def test_other_shapes_dtypes_and_numbers_are_refused():
    bias = MODEL["1.bias"]
    assert refusal("fedavg", "train", weights(**{"1.bias": bias[:-1]})) is Refusal.WRONG_SHAPE
    assert refusal("fedavg", "train", weights(**{"1.bias": bias[None]})) is Refusal.WRONG_SHAPE
    assert refusal("fedavg", "train", weights(**{"1.bias": bias.double()})) is Refusal.WRONG_DTYPE
    assert refusal("fedavg", "train", weights(**{"1.bias": bias * torch.nan})) is Refusal.NOT_FINITE
    with pytest.raises(Refused) as refused:
        checked(make("fedavg"), SHAPE, "train", pack(weights()) | {"params/1.bias": Packed("float32", (8,), b"")})
    assert refused.value.code is Refusal.WRONG_SHAPE


CALL = {
    "run": "0123456789abcdef", "task": "train", "tick": 3, "client": 1, "key": 5, "round": 0, "since": 0, "width": 9,
    "test_width": 9, "accepted": 0, "durable": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    "wrong", [{"run": "../../etc"}, {"run": ""}, {"tick": "3"}, {"tick": 0}, {"width": 0}, {"key": 1.5}, {"task": 7}]
)
def test_a_call_that_is_not_one_is_refused(wrong):
    with pytest.raises(Refused) as refused:
        Call.read(CALL | wrong)
    assert refused.value.code is Refusal.MALFORMED


def site(method):
    return Site("one", method, partial(rows_of, tiny_population(), 1), 1)


def test_an_error_in_a_task_stays_at_home(tmp_path, caplog):
    class Broken(type(make("fedavg"))):
        @client_task
        def train(self, client, params: dict[str, torch.Tensor]) -> Reply:
            raise RuntimeError(f"the patient's row is {client.train.x[0]}")

    broken = Broken(small_net())
    facts, parcel = guarded(CALL, lambda: done(site(broken), Call.read(CALL), pack(weights()), InFolder(tmp_path)))
    assert facts == {"tick": 3, "client": 1, "fault": 8} and parcel == {}
    assert "patient" in caplog.text  # its own log has it


def test_a_client_says_of_itself_who_it_is_and_how_many_rows_it_has():
    assert site(make("fedavg")).introduce() == {
        "name": "one", "number": 1, "train": 23, "test": 6, "labelled": True, "holdout": False,
    }  # fmt: skip
