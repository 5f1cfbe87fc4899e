"""What comes back may be anything: every faulty reply is counted by its kind, and none is aggregated."""

import logging
from dataclasses import replace

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.error import Error

from kinfed.engines import Vectorised
from kinfed.engines import workers as progress_log
from kinfed.engines.flower.messages import STALE, pack, unpack
from kinfed.engines.flower.transport import RAW, read_arrays, read_config, to_records
from kinfed.errors import NetworkError
from kinfed.experiment import Experiment
from kinfed.methods import FedAvg
from kinfed.training import LocalTraining
from tests.engines.flower.loopback import Loopback, Tamperer, make_flower
from tests.problems import assert_close, small_net, tiny_population

FAULTY, ROUNDS = 2, 2
FEDAVG = FedAvg(small_net(), LocalTraining(epochs=1, batch_size=5, lr=0.05))


def corrupt(kind, reply: Message) -> list[Message]:
    config, packed = dict(read_config(reply)), read_arrays(reply)
    tensors = unpack(packed)

    def other(tensors=tensors, **more):
        return [Message(to_records(config | more, pack(tensors)), reply_to=find_request(reply))]

    def raw(arrays):
        records = {"config": ConfigRecord(config), "arrays": ArrayRecord(arrays)}
        return [Message(RecordDict(records), reply_to=find_request(reply))]

    arrays = {name: Array(p.dtype, p.shape, RAW, p.data) for name, p in packed.items()}
    bias = "params/1.bias"
    return {
        "nan": lambda: other(tensors | {bias: tensors[bias] * torch.nan}),
        "infinite": lambda: other(tensors | {bias: tensors[bias] / 0}),
        "shape": lambda: other({name: t[None] for name, t in tensors.items()}),
        "fewer": lambda: other({name: t for name, t in tensors.items() if name != bias}),
        "more": lambda: other(tensors | {"params/other": torch.zeros(3)}),
        "dtype": lambda: other({name: t.double() for name, t in tensors.items()}),
        "empty": lambda: other({}),
        "nothing": lambda: [Message(RecordDict(), reply_to=find_request(reply))],
        "oversized": lambda: other(tensors | {"params/other": torch.zeros(10**6)}),
        "cut": lambda: raw(arrays | {bias: Array("float32", (8,), RAW, packed[bias].data[:-4])}),
        "pickled": lambda: raw(arrays | {bias: Array("float32", (8,), "pickle", packed[bias].data)}),
        "negative": lambda: raw(arrays | {bias: Array("float32", (-8,), RAW, packed[bias].data)}),
        "twice": lambda: [reply, reply],
        "replayed": lambda: other(call=config["call"] - 2),
        "another": lambda: other(client=4),
        "failed": lambda: [Message(Error(8, "died"), reply_to=find_request(reply))],
        "lost": lambda: [],
    }[kind]()


def find_request(reply: Message) -> Message:
    """The request of a reply."""
    return REQUESTS[reply.metadata.reply_to_message_id]


REQUESTS: dict[str, Message] = {}


def make_tamperer(kind):
    def tamper(request: Message, reply: Message) -> list[Message]:
        REQUESTS[request.metadata.message_id] = request
        config = read_config(request)
        is_it = config.get("task") == "train" and config["client"] == FAULTY
        return corrupt(kind, reply) if is_it else [reply]

    return tamper


def train(fed, rounds=ROUNDS):
    experiment = Experiment.over(fed, rounds=rounds)
    return experiment.run(), experiment.state.params


def train_without_the_faulty_client():
    population = tiny_population()
    x = population.x.float() / 255
    x[population.train[FAULTY]] = torch.nan
    return train(Vectorised(FEDAVG, replace(population, x=x)))[1]


KINDS = {
    "nan": "not_finite", "infinite": "not_finite", "shape": "wrong_shape", "fewer": "wrong_names",
    "more": "wrong_names", "dtype": "wrong_dtype", "empty": "empty", "nothing": "empty", "oversized": "oversized",
    "cut": "damaged", "pickled": "wrong_dtype", "negative": "wrong_shape", "replayed": "stale",
    "another": "unknown_sender", "failed": "failed", "lost": "no_answer",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_faulty_reply_is_counted_by_its_kind_and_is_not_aggregated(kind):
    grid = Loopback(6, make_tamperer(kind))
    summary, params = train(make_flower(FEDAVG, tiny_population(), grid))
    counted = {name: value for name, value in summary.items() if name.startswith("replies_")}
    assert counted == {f"replies_{KINDS[kind]}": ROUNDS}
    assert summary["rejected_replies"] == (0 if KINDS[kind] in ("failed", "no_answer") else ROUNDS)
    assert_close(params, train_without_the_faulty_client())


def test_all_clients_sizes_are_looked_at_once_in_a_call_and_not_in_each_request(monkeypatch):
    fed, seen = make_flower(FEDAVG, tiny_population(), Loopback(6)), []
    whole = fed.width
    monkeypatch.setattr(fed, "width", lambda part: seen.append(len(part)) or whole(part))
    train(fed, rounds=1)
    assert seen == [6] * 2 * fed.tasks


def test_of_a_doubled_reply_one_is_used_and_the_other_is_counted():
    summary, params = train(make_flower(FEDAVG, tiny_population(), Loopback(6, make_tamperer("twice"))))
    assert summary["replies_duplicate"] == summary["rejected_replies"] == ROUNDS
    assert_close(params, train(Vectorised(FEDAVG, tiny_population()))[1])


def delay_training(until: tuple[str, int], silent: bool = False) -> Tamperer:
    """The faulty client's first training is replied to in this task of this round, which it may not reply to itself."""
    late: list[Message] = []

    def tamper(request: Message, reply: Message) -> list[Message]:
        config = read_config(request)
        if config.get("client") != FAULTY:
            return [reply]
        if (config["task"], config["round"]) == ("train", 0):
            late.append(reply)
            return []
        if (config["task"], config["round"]) != until:
            return [reply]
        return [*([] if silent else [reply]), *late]

    return tamper


def test_a_late_reply_is_named_by_its_own_task_and_round(caplog):
    grid = Loopback(6, delay_training(("train", 1)))
    summary, _ = train(make_flower(FEDAVG, tiny_population(), grid))
    assert summary["replies_stale"] == 1 and summary["replies_no_answer"] == 1
    assert f"client {FAULTY} replied too late to 'train' of round 1: not used" in caplog.messages
    assert "failed at" not in caplog.text


def test_a_client_that_sends_a_late_reply_alone_is_missing_in_the_task_that_is_going_on():
    fed = make_flower(FEDAVG, tiny_population(), Loopback(6, delay_training(("evaluate", 0), silent=True)))
    summary, _ = train(fed)
    assert summary["replies_stale"] == 1 and summary["replies_no_answer"] == 2
    assert [entry.task for entry in fed.rejected if entry.reason == STALE] == ["train"]


def test_a_reply_to_no_request_is_of_an_unknown_sender():
    def tamper(request, reply):
        if read_config(request).get("task") != "train" or read_config(request)["client"] != FAULTY:
            return [reply]
        stray = Message(reply.content, reply_to=request)
        stray.metadata.__dict__["_reply_to_message_id"] = ""
        return [reply, stray]

    summary, params = train(make_flower(FEDAVG, tiny_population(), Loopback(6, tamper)))
    assert summary["replies_unknown_sender"] == ROUNDS
    assert_close(params, train(Vectorised(FEDAVG, tiny_population()))[1])


@pytest.mark.parametrize(
    ("kind", "factor", "more"), [("shape", 1, 0), ("dtype", 2, 0), ("twice", 2, 0), ("empty", 0, 0), ("cut", 1, -4),
                                 ("oversized", 1, 4 * 10**6), ("lost", 0, 0), ("failed", 0, 0)],
)  # fmt: skip
def test_all_bytes_that_came_are_counted_usable_or_not(kind, factor, more):
    fed, whole = (
        make_flower(FEDAVG, tiny_population(), Loopback(6, make_tamperer(kind))),
        Vectorised(FEDAVG, tiny_population()),
    )
    train(fed)
    train(whole)
    came, usual = fed.ledger.up["train"], whole.ledger.up["train"]
    assert came[FAULTY] == factor * usual[FAULTY] + ROUNDS * more and came[0] == usual[0]
    assert sum(row[4] for row in fed.ledger.rounds if row[1] == "train") == came.sum()
    assert torch.equal(fed.ledger.down["train"], whole.ledger.down["train"])


def test_a_node_that_is_gone_is_left_out_without_waiting_for_it():
    grid = Loopback(6)
    fed = make_flower(FEDAVG, tiny_population(), grid, timeout=30.0)
    fed.open()
    del grid.online[100 + FAULTY]
    summary, params = train(fed)
    assert summary["replies_no_answer"] == ROUNDS * 2  # training and evaluation
    assert_close(params, train_without_the_faulty_client())


def test_during_a_wait_the_log_says_how_many_clients_have_replied(monkeypatch, caplog):
    monkeypatch.setattr(progress_log, "SECONDS", 0.1)
    with caplog.at_level(logging.INFO, "kinfed"):
        train(make_flower(FEDAVG, tiny_population(), Loopback(6, make_tamperer("lost"))))
    progress = {message for message in caplog.messages if message.startswith(("train", "evaluate"))}
    assert progress == {"train: 5 of 6 clients"}


def test_a_silent_client_is_asked_again_before_the_first_round():
    from tests.methods.registry import make, population

    first: set[int] = set()

    def tamper(request, reply):
        config = read_config(request)
        if config.get("task") == "compute_signature" and config["client"] == FAULTY and not first:
            first.add(FAULTY)
            return []
        return [reply]

    flt = make("flt")
    fed = make_flower(flt, population(), Loopback(12, tamper))
    state = flt.init(fed)
    assert first and bool((state.clusters >= 0).all()) and not fed.rejected
    reference = flt.init(Vectorised(flt, population()))
    assert torch.equal(state.clusters, reference.clusters)


def test_an_experiment_without_any_reply_ends_with_an_error():
    fed = make_flower(FEDAVG, tiny_population(), Loopback(6), timeout=0.05)
    fed.open()
    fed.transport.grid.online.clear()
    with pytest.raises(
        NetworkError, match=r"no client sent a reply that can be used to 3 tasks in a row, .*6 no answer"
    ):
        train(fed, rounds=10)
