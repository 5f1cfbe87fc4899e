"""What comes back may be anything: every bad reply is counted by its kind, and none is in the model."""

import logging
from dataclasses import replace

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.error import Error

from kinfed.engines import Vectorised, progress_log
from kinfed.engines.flower.messages import RAW, content, facts_in, parcel_in
from kinfed.engines.flower.packing import pack, unpack
from kinfed.errors import NetworkError
from kinfed.experiment import Experiment
from kinfed.methods import FedAvg
from kinfed.training import LocalTraining
from tests.engines.flower.loopback import Loopback, wired
from tests.problems import assert_close, small_net, tiny_population

SICK, ROUNDS = 2, 2
FEDAVG = FedAvg(small_net(), LocalTraining(epochs=1, batch_size=5, lr=0.05))


def spoiled(kind, answer: Message) -> list[Message]:
    facts, parcel = dict(facts_in(answer)), parcel_in(answer)
    tensors = unpack(parcel)

    def other(tensors=tensors, **more):
        return [Message(content(facts | more, pack(tensors)), reply_to=answer_to(answer))]

    def raw(arrays):
        records = {"facts": ConfigRecord(facts), "arrays": ArrayRecord(arrays)}
        return [Message(RecordDict(records), reply_to=answer_to(answer))]

    arrays = {name: Array(p.dtype, p.shape, RAW, p.data) for name, p in parcel.items()}
    bias = "params/1.bias"
    return {
        "nan": lambda: other(tensors | {bias: tensors[bias] * torch.nan}),
        "infinite": lambda: other(tensors | {bias: tensors[bias] / 0}),
        "shape": lambda: other({name: t[None] for name, t in tensors.items()}),
        "fewer": lambda: other({name: t for name, t in tensors.items() if name != bias}),
        "more": lambda: other(tensors | {"params/other": torch.zeros(3)}),
        "dtype": lambda: other({name: t.double() for name, t in tensors.items()}),
        "empty": lambda: other({}),
        "nothing": lambda: [Message(RecordDict(), reply_to=answer_to(answer))],
        "oversized": lambda: other(tensors | {"params/other": torch.zeros(10**6)}),
        "cut": lambda: raw(arrays | {bias: Array("float32", (8,), RAW, parcel[bias].data[:-4])}),
        "pickled": lambda: raw(arrays | {bias: Array("float32", (8,), "pickle", parcel[bias].data)}),
        "negative": lambda: raw(arrays | {bias: Array("float32", (-8,), RAW, parcel[bias].data)}),
        "twice": lambda: [answer, answer],
        "replayed": lambda: other(tick=facts["tick"] - 2),
        "another": lambda: other(client=4),
        "failed": lambda: [Message(Error(8, "died"), reply_to=answer_to(answer))],
        "lost": lambda: [],
    }[kind]()


def answer_to(answer: Message) -> Message:
    """The letter that an answer is to, as far as a reply needs it."""
    return LETTERS[answer.metadata.reply_to_message_id]


LETTERS: dict[str, Message] = {}


def meddler(kind):
    def meddle(letter: Message, answer: Message) -> list[Message]:
        LETTERS[letter.metadata.message_id] = letter
        facts = facts_in(letter)
        is_it = facts.get("task") == "train" and facts["client"] == SICK
        return spoiled(kind, answer) if is_it else [answer]

    return meddle


def trained(fed, rounds=ROUNDS):
    experiment = Experiment.over(fed, rounds=rounds)
    return experiment.run(), experiment.state.params


def without_the_sick_one():
    people = tiny_population()
    x = people.x.float() / 255
    x[people.train[SICK]] = torch.nan
    return trained(Vectorised(FEDAVG, replace(people, x=x)))[1]


KINDS = {
    "nan": "not_finite", "infinite": "not_finite", "shape": "wrong_shape", "fewer": "wrong_names",
    "more": "wrong_names", "dtype": "wrong_dtype", "empty": "empty", "nothing": "empty", "oversized": "oversized",
    "cut": "damaged", "pickled": "wrong_dtype", "negative": "wrong_shape", "replayed": "stale",
    "another": "unknown_sender", "failed": "failed", "lost": "no_answer",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_reply_is_counted_by_its_kind_and_is_not_in_the_model(kind):
    grid = Loopback(6, meddler(kind))
    summary, params = trained(wired(FEDAVG, tiny_population(), grid))
    counted = {name: value for name, value in summary.items() if name.startswith("replies_")}
    assert counted == {f"replies_{KINDS[kind]}": ROUNDS}
    assert summary["rejected_replies"] == (0 if KINDS[kind] in ("failed", "no_answer") else ROUNDS)
    assert_close(params, without_the_sick_one())


def test_of_a_doubled_reply_one_is_used_and_the_other_is_counted():
    summary, params = trained(wired(FEDAVG, tiny_population(), Loopback(6, meddler("twice"))))
    assert summary["replies_duplicate"] == summary["rejected_replies"] == ROUNDS
    assert_close(params, trained(Vectorised(FEDAVG, tiny_population()))[1])


def test_a_reply_that_comes_in_a_later_round_is_stale():
    late: list[Message] = []

    def meddle(letter, answer):
        facts = facts_in(letter)
        if facts.get("task") == "train" and facts["client"] == SICK and facts["round"] == 0:
            late.append(answer)
            return []
        return [answer, *([late.pop()] if late and facts.get("task") == "evaluate" else [])]

    summary, _ = trained(wired(FEDAVG, tiny_population(), Loopback(6, meddle)))
    assert summary["replies_stale"] == 1 and summary["replies_no_answer"] == 1


def test_a_reply_to_no_letter_at_all_is_of_an_unknown_sender():
    def meddle(letter, answer):
        if facts_in(letter).get("task") != "train" or facts_in(letter)["client"] != SICK:
            return [answer]
        stray = Message(answer.content, reply_to=letter)
        stray.metadata.__dict__["_reply_to_message_id"] = ""
        return [answer, stray]

    summary, params = trained(wired(FEDAVG, tiny_population(), Loopback(6, meddle)))
    assert summary["replies_unknown_sender"] == ROUNDS
    assert_close(params, trained(Vectorised(FEDAVG, tiny_population()))[1])


@pytest.mark.parametrize(
    ("kind", "factor", "more"), [("shape", 1, 0), ("dtype", 2, 0), ("twice", 2, 0), ("empty", 0, 0), ("cut", 1, -4),
                                 ("oversized", 1, 4 * 10**6), ("lost", 0, 0), ("failed", 0, 0)],
)  # fmt: skip
def test_all_bytes_that_came_are_counted_usable_or_not(kind, factor, more):
    fed, whole = wired(FEDAVG, tiny_population(), Loopback(6, meddler(kind))), Vectorised(FEDAVG, tiny_population())
    trained(fed)
    trained(whole)
    came, usual = fed.ledger.up["train"], whole.ledger.up["train"]
    assert came[SICK] == factor * usual[SICK] + ROUNDS * more and came[0] == usual[0]
    assert sum(row[4] for row in fed.ledger.rounds if row[1] == "train") == came.sum()
    assert torch.equal(fed.ledger.down["train"], whole.ledger.down["train"])


def test_a_node_that_is_gone_is_left_out_without_waiting_for_it():
    grid = Loopback(6)
    fed = wired(FEDAVG, tiny_population(), grid, timeout=30.0)
    fed.open()
    del grid.online[100 + SICK]
    summary, params = trained(fed)
    assert summary["replies_no_answer"] == ROUNDS * 2  # training and evaluation
    assert_close(params, without_the_sick_one())


def test_while_somebody_is_waited_for_it_is_said_how_many_have_answered(monkeypatch, caplog):
    monkeypatch.setattr(progress_log, "SECONDS", 0.1)
    with caplog.at_level(logging.INFO, "kinfed"):
        trained(wired(FEDAVG, tiny_population(), Loopback(6, meddler("lost"))))
    assert set(caplog.messages[1:]) == {"train: 5 of 6 clients"}  # the first is of the start


def test_who_is_silent_before_the_first_round_is_asked_again():
    from tests.methods.registry import make, population

    first: set[int] = set()

    def meddle(letter, answer):
        facts = facts_in(letter)
        if facts.get("task") == "compute_signature" and facts["client"] == SICK and not first:
            first.add(SICK)
            return []
        return [answer]

    flt = make("flt")
    fed = wired(flt, population(), Loopback(12, meddle))
    state = flt.init(fed)
    assert first and bool((state.clusters >= 0).all()) and not fed.rejected
    reference = flt.init(Vectorised(flt, population()))
    assert torch.equal(state.clusters, reference.clusters)


def test_an_experiment_that_nobody_answers_ends_and_says_so():
    fed = wired(FEDAVG, tiny_population(), Loopback(6), timeout=0.05)
    fed.open()
    fed.post.grid.online.clear()
    with pytest.raises(NetworkError, match="nobody answered 3 tasks in a row"):
        trained(fed, rounds=10)
