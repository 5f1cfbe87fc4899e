"""Every number that a node sends has a range, checked where it enters; who breaks it again and again is excluded."""

import logging
import math
from dataclasses import replace

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Message

from kinfed import checkpoint
from kinfed.client_tasks import COMMON
from kinfed.data import Role
from kinfed.engines import Vectorised
from kinfed.engines.flower.messages import pack, unpack
from kinfed.engines.flower.transport import read_arrays, read_config, to_records
from kinfed.experiment import Experiment
from kinfed.federation import MAX_OFFENCES, Offer
from kinfed.ranges import CHOICE, FLAG, NUMBERS, Facts, Range
from tests.engines.flower.loopback import Loopback, make_flower
from tests.methods.registry import CASES, make, population

LIAR = 2


def lie(task, **fields):
    """Changes fields of one client's replies to one task."""

    def tamper(request: Message, reply: Message) -> list[Message]:
        config = read_config(request)
        if config.get("task") != task or config["client"] != LIAR:
            return [reply]
        tensors = unpack(read_arrays(reply))
        false = {name: torch.full_like(tensors[name], value) for name, value in fields.items()}
        return [Message(to_records(dict(read_config(reply)), pack(tensors | false)), reply_to=request)]

    return tamper


LIES = {
    "more right than there are samples": ("fedavg", "evaluate", {"metric": 10**6}),
    "fewer right than none": ("fedavg", "evaluate", {"metric": -5}),
    "more samples than it has": ("fedavg", "evaluate", {"samples": 10**12}),
    "one sample, all right": ("fedavg", "evaluate", {"samples": 1, "metric": 1}),
    "a loss that is no number": ("fedavg", "evaluate", {"loss": math.nan}),
    "a negative loss": ("fedavg", "evaluate", {"loss": -1e9}),
    "a share above one": ("fedavg", "evaluate_all", {"values": 1e20}),
    "a share below none": ("fedavg", "evaluate_all", {"values": -1.0}),
    "FedNova's steps": ("fednova", "train", {"steps": 1e9}),
    "IFCA's choice": ("ifca", "train", {"choice": 99}),
    "IFCA's negative choice": ("ifca", "choose", {"choice": -1}),
    "FedSoft's shares of all centres": ("fedsoft", "estimate", {"shares": 1.0}),
    "FedRC's masses of all labels": ("fedrc", "train", {"masses": 0.5}),
    "more predictions than it has samples": ("fedavg", "count_predictions", {"counts": 1}),
    "absurd counts in a signature": ("flt", "compute_signature", {"shares": 1e9}),
    "negative counts in a signature": ("flt", "compute_signature", {"shares": -3.0}),
}


def offer_for(method, task, state, clients, fed):
    if task == "compute_signature":
        return Offer(shared={"encoder": method.signature.encoder(fed)})
    if task == "estimate":
        return Offer(shared={"models": state.models})
    return method.offer(state, clients, fed)


@pytest.mark.parametrize("kind", LIES)
def test_a_number_out_of_its_range_is_counted_and_not_used(kind):
    name, task, fields = LIES[kind]
    method = make(name)
    fed = make_flower(method, population(), Loopback(12, lie(task, **fields)), timeout=30.0)
    state = method.init(Vectorised(method, population()))
    offer = offer_for(method, task, state, fed.clients, fed)
    asked = COMMON.get(task) or getattr(method, task)
    replies = [fed.run(asked, fed.clients, offer) for _ in range(MAX_OFFENCES + 1)]
    others = [client for client in range(12) if client != LIAR]
    assert all(reply.cohort.tolist() == others for reply in replies)
    assert [(entry.client, entry.reason) for entry in fed.rejected] == [
        *[(LIAR, "out of range")] * MAX_OFFENCES,
        (LIAR, "excluded"),
    ]
    assert fed.ledger.rounds[-1][2] == 11  # it was not asked any more


def test_a_lying_evaluation_neither_ends_a_run_nor_enters_its_checkpoint(tmp_path, caplog):
    method = make("fedavg")
    fed = make_flower(method, population(), Loopback(12, lie("evaluate", metric=10**6)))
    run = Experiment.over(fed, rounds=4, checkpoint=tmp_path / "saved", checkpoint_every=1)
    with caplog.at_level(logging.WARNING, "kinfed"):
        summary = run.run()
    assert summary["replies_out_of_range"] == 3 and summary["clients_excluded"] == 1
    assert summary["rejected_replies"] == 3 and 0 <= summary["accuracy"] <= 1 and summary["standard_error"] < 1
    assert [m for m in caplog.messages if "excluded" in m] == [
        "client 2 is excluded for the rest of the run: 3 of its replies were malformed or out of range"
    ]
    again = Experiment.over(make_flower(method, population(), Loopback(12)), rounds=5, checkpoint=tmp_path / "saved")
    again.run(resume=True)
    assert again.fed.excluded == {LIAR} and LIAR not in again.fed.sample().tolist()
    assert checkpoint.read_about(tmp_path / "saved")["round"] == 5


class Spy(Vectorised):
    """Notes the fields of all replies that have no range of their own."""

    def _check(self, name, cohort, send, ranges, offer):
        for field, value in send.items():
            is_weights = not isinstance(value, torch.Tensor) or field in SIGNATURES
            assert is_weights or field in ranges, f"{name}: '{field}' has no range"
        good = super()._check(name, cohort, send, ranges, offer)
        assert len(good) == len(cohort), f"{name}: an honest reply is out of range"
        return good


SIGNATURES = {"centroids", "statistics", "moments"}  # any numbers that are not too large


SOME = ("fednova", "ifca", "flis_hc", "pacfl", "flux")  # CI; the others on demand


@pytest.mark.parametrize(
    "name", [name if name in SOME else pytest.param(name, marks=pytest.mark.on_demand) for name in CASES]
)
def test_every_field_that_holds_no_weights_has_a_range_that_honest_clients_keep(name):
    method, roles = make(name), tuple(Role(holdout=client == 3) for client in range(12))
    fed = Spy(method, replace(population(), roles=roles), fraction=0.3)
    Experiment.over(fed, rounds=2).run()
    assert fed.ledger.rounds


def test_a_range_is_kept_by_all_numbers_of_a_client_and_by_their_sum():
    facts = Facts(None, torch.tensor([10, 20, 30, 40]), torch.tensor([0, 0, 0, 0]))
    counts = Range(0, lambda f: f.train, total=(lambda f: f.train, lambda f: f.train))
    given = torch.tensor([[4.0, 6.0], [21.0, -1.0], [15.0, 14.0], [40.0, torch.nan]])
    assert counts.contains(given, facts).tolist() == [True, False, False, False]
    assert FLAG.contains(torch.tensor([True, False]), facts).tolist() == [True, True]
    assert CHOICE.contains(torch.tensor([0, 1, 2, -1]), facts._replace(models=2)).tolist() == [True, True, False, False]
    assert NUMBERS.contains(torch.tensor([1e11, -1e13, torch.inf, 0.0]), facts).tolist() == [True, False, False, True]
