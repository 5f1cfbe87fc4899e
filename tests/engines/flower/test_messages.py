"""A client trusts nobody: it runs tasks of its own method, with what they take, and replies a code otherwise."""

from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from kinfed.client import Reply, client_task
from kinfed.engines import Sequential
from kinfed.engines.flower import node
from kinfed.engines.flower.messages import (
    PackedTensor,
    Refusal,
    RefusedRequest,
    ReplyMessage,
    check_request,
    is_finite,
    pack,
    task_names,
    unpack,
)
from kinfed.engines.flower.node import ClientNode, FolderMemory, TaskRequest, reply_or_refuse, run_task
from kinfed.engines.flower.simulation import select_data
from kinfed.errors import ConfigError, DataError
from tests.methods.registry import CASES, make
from tests.problems import assert_same_bits, small_net, tiny_population

SHAPE = (1, 8, 8)
MODEL = small_net().init()


def weights(name="params", **changes):
    return {f"{name}/{inner}": t for inner, t in (MODEL | changes).items()}


def stack_weights(times):
    return {f"models/{inner}": torch.stack([t] * times) for inner, t in MODEL.items()}


def refusal(method, task, tensors) -> Refusal:
    with pytest.raises(RefusedRequest) as refused:
        check_request(make(method), SHAPE, task, pack(tensors))
    return refused.value.code


def test_tensors_come_back_as_they_were_sent():
    tensors = {
        "a": torch.randn(3, 4), "b": torch.tensor(7), "c": torch.tensor([True, False]), "d": torch.empty(0, 3),
        "e": torch.randn(2).bfloat16(), "f": torch.arange(12).view(3, 4).T,
    }  # fmt: skip
    assert_same_bits(unpack(pack(tensors)), tensors)
    assert (
        not PackedTensor("float32", (3,), b"12345678").is_complete
        and not PackedTensor("object", (1,), b"12345678").is_complete
    )
    assert not is_finite({"a": torch.tensor([1.0, torch.inf])}) and is_finite({"a": torch.tensor([2**62])})


@pytest.mark.parametrize("name", CASES)
def test_every_methods_tasks_are_known_by_their_marks(name):
    tasks = task_names(make(name))
    assert {"train", "evaluate", "evaluate_adapted", "compute_update"} <= tasks
    assert not tasks & {"personalise", "init", "round", "offer", "admit", "initial_memory", "remarks", "__init__"}


def test_what_a_task_takes_is_taken():
    assert_same_bits(check_request(make("fedavg"), SHAPE, "train", pack(weights())), weights())
    assert_same_bits(check_request(make("fedavg"), SHAPE, "evaluate", pack(weights())), weights())
    assert_same_bits(check_request(make("ifca"), SHAPE, "train", pack(stack_weights(5))), stack_weights(5))
    some = {name: t for name, t in weights("shared").items() if "3." in name}
    assert_same_bits(check_request(make("lg_fedavg"), SHAPE, "train", pack(some)), some)


def test_another_task_is_refused():
    for task in ("nothing", "personalise", "__init__", "_signature", "round", ""):
        assert refusal("flt", task, weights()) is Refusal.UNKNOWN_TASK


def test_an_unmarked_task_is_refused_on_the_node_with_the_message_of_the_server():
    class Unmarked(type(make("fedavg"))):
        def probe(self, client, params: dict[str, torch.Tensor]) -> Reply:
            return Reply({})

    method, message = Unmarked(small_net()), "'probe' is no client task: mark it with @client_task"
    with pytest.raises(RefusedRequest, match=message):
        check_request(method, SHAPE, "probe", pack(weights()))
    fed = Sequential(method, tiny_population())
    with pytest.raises(ConfigError, match=message):
        fed.run(method.probe, fed.clients)


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
    with pytest.raises(RefusedRequest) as refused:
        check_request(
            make("fedavg"), SHAPE, "train", pack(weights()) | {"params/1.bias": PackedTensor("float32", (8,), b"")}
        )
    assert refused.value.code is Refusal.WRONG_SHAPE


REQUEST = {
    "run": "0123456789abcdef", "task": "train", "call": 3, "client": 1, "key": 5, "round": 0, "since": 0, "width": 9,
    "test_width": 9, "accepted": 0, "durable": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    "wrong", [{"run": "../../etc"}, {"run": ""}, {"call": "3"}, {"call": 0}, {"width": 0}, {"key": 1.5}, {"task": 7}]
)
def test_a_malformed_request_is_refused(wrong):
    with pytest.raises(RefusedRequest) as refused:
        TaskRequest.parse(REQUEST | wrong)
    assert refused.value.code is Refusal.MALFORMED


def make_node(method):
    return ClientNode("one", method, partial(select_data, tiny_population(), 1), 1)


def test_the_text_of_an_error_stays_on_the_node(tmp_path, caplog):
    class Broken(type(make("fedavg"))):
        @client_task
        def train(self, client, params: dict[str, torch.Tensor]) -> Reply:
            raise RuntimeError(f"the patient's sample is {client.train.x[0]}")

    broken = Broken(small_net())
    config, arrays = reply_or_refuse(
        REQUEST,
        lambda: run_task(make_node(broken), TaskRequest.parse(REQUEST), pack(weights()), FolderMemory(tmp_path)),
    )
    assert config == {"call": 3, "client": 1, "refusal": 8, "error": "RuntimeError"} and arrays == {}
    assert "patient" in caplog.text  # its own log has it


def test_a_node_whose_disk_is_full_says_so_and_leaves_nothing_half_written(tmp_path, monkeypatch, caplog):
    def save_half(tensors, path):
        Path(path).write_bytes(b"half")
        raise SafetensorError("Error while serializing: No space left on device")

    method, home = make("scaffold"), tmp_path / "home"
    sent = pack(weights() | weights("control"))
    ask_node = partial(run_task, make_node(method), TaskRequest.parse(REQUEST), sent)
    monkeypatch.setattr(node, "save_file", save_half)
    config, _ = reply_or_refuse(REQUEST, lambda: ask_node(FolderMemory(home)))
    reply = ReplyMessage("7", config, {})
    assert reply.explain_failure().startswith("what it remembers cannot be written: its disk is full, or `home` of its")
    assert "memory-3.safetensors cannot be written: Error while serializing: No space" in caplog.text
    assert not list(home.iterdir())
    (tmp_path / "file").touch()
    config, _ = reply_or_refuse(REQUEST, lambda: ask_node(FolderMemory(tmp_path / "file" / "home")))
    assert config["refusal"] == Refusal.NOT_WRITTEN


def test_an_error_of_kinfeds_own_has_no_traceback_in_the_log_of_the_node(caplog):
    def work():
        raise DataError("1 of 4 samples of x have a NaN or an infinity")

    reply_or_refuse({}, work)
    assert caplog.messages == ["'enrol' failed"]  # which alone is forwarded
    assert "DataError: 1 of 4 samples of x have a NaN or an infinity" in caplog.text
    assert "Traceback" not in caplog.text


def test_enrolment_says_which_client_it_is_and_how_many_samples_it_has():
    assert make_node(make("fedavg")).enrolment() == {
        "name": "one", "number": 1, "train": 23, "test": 6, "labelled": True, "holdout": False,
    }  # fmt: skip
