import os
import signal
import threading
import time

import pytest
import torch
from torch import nn

from kinfed.engines import Vectorised
from kinfed.engines.workers import run_at_once, use_one_thread
from kinfed.errors import ConfigError, raise_if_cancelled
from kinfed.fastpath import explain
from kinfed.methods import FedAvg, Local
from kinfed.models import Model, make_model
from kinfed.training import LocalTraining
from tests.problems import assert_close, fit, tiny_population

LOCAL = LocalTraining(epochs=2, batch_size=5, lr=0.05, momentum=0.9, mu=0.1)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_results_come_in_the_order_of_the_items_and_each_meets_one_thread_of_torch(threads):
    threads(2)
    seen = run_at_once(lambda item: (item, torch.get_num_threads(), threading.get_ident()), range(20), 2)
    assert [item for item, _, _ in seen] == list(range(20))
    assert {count for _, count, _ in seen} == {1}
    assert threading.get_ident() not in {thread for _, _, thread in seen}
    assert torch.get_num_threads() == 2


def test_one_worker_or_one_item_stays_in_this_thread(threads):
    threads(2)
    for items, workers in (([1, 2], 1), ([1], 2)):
        seen = run_at_once(lambda item: (threading.get_ident(), torch.get_num_threads()), items, workers)
        assert set(seen) == {(threading.get_ident(), 1)}
    assert torch.get_num_threads() == 2


def test_the_number_of_threads_comes_back_after_an_error(threads):
    threads(2)
    with pytest.raises(ZeroDivisionError), use_one_thread():
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2


def idle_until(ended: threading.Event) -> None:
    try:
        for _ in range(6000):  # a minute
            time.sleep(0.01)
            raise_if_cancelled()  # as every batch does
    finally:
        ended.set()


def test_an_error_of_one_item_ends_the_others():
    ended = threading.Event()

    def work(item: int) -> None:
        if item:
            raise KeyError("broken")
        idle_until(ended)

    began = time.monotonic()
    with pytest.raises(KeyError, match="broken"):
        run_at_once(work, [1, 0, 0, 0], 2)
    assert time.monotonic() - began < 30 and threading.active_count() < 10


@pytest.mark.parametrize("name", ["mlp_200", "lenet5", "own"])
def test_a_training_is_cancelled_at_its_next_batch(name):
    population = tiny_population((40,) * 4, shape=(1, 28, 28))
    for sequential in (False, True):
        method = FedAvg(nets()[name], LocalTraining(epochs=500, batch_size=5))
        fed = Vectorised(method, population, workers=2, sequential=sequential)
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            fed.run(method.train, fed.clients, method.offer(method.init(fed), fed.clients, fed))
        assert time.monotonic() - began < 30


def test_a_model_that_fails_in_every_worker_ends_with_its_error():
    population = tiny_population((9,) * 8)  # 64 numbers in a sample, where the model wants 784
    fedavg = FedAvg(nets()["own"], LOCAL)
    for _ in range(20):
        fed = Vectorised(fedavg, population, workers=4)
        with pytest.raises(RuntimeError, match=r"Expected size .* 64.* but got.* 784"):
            fedavg.round(fedavg.init(fed), 0, fed)


def test_an_interrupt_ends_all_workers_at_once():
    ended = threading.Event()
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_at_once(lambda item: idle_until(ended), [0, 1, 2], 2)
    assert ended.is_set() and time.monotonic() - began < 30
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kinfed")]


class OwnForward(nn.Module):
    """Nothing that the fast path supports."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(784, 3)

    def forward(self, x):
        return self.layer(x.flatten(1)).tanh()


def nets() -> dict[str, Model]:
    named = {name: make_model(name, (1, 28, 28), 3) for name in ("mlp_200", "lenet5")}
    return named | {"own": Model(OwnForward, classes=3)}


def test_the_engine_says_how_it_cut_a_cohort_and_the_fast_path_how_a_model_is_trained():
    population = tiny_population((9,) * 7, shape=(1, 28, 28))
    _, fed = fit(FedAvg(nets()["own"], LOCAL), Vectorised, population, rounds=1, workers=2)
    assert fed.layouts["train"] == "2 blocks of up to 4 clients, 2 at once"
    ways = {name: explain(model).split(":")[0] for name, model in nets().items()}
    assert ways == {
        "mlp_200": "fast path, a block in one product",
        "lenet5": "fast path, one client after the other",
        "own": "autograd, a block in one vmap",
    }


@pytest.mark.parametrize(
    ("kind", "name"),
    [(FedAvg, "mlp_200"), (FedAvg, "lenet5"), (FedAvg, "own"), (Local, "mlp_200"), (Local, "own")],
)
def test_the_number_of_workers_hardly_changes_what_clients_answer(kind, name):
    population = tiny_population((7, 23, 12, 31, 9, 18, 22, 8, 30), shape=(1, 28, 28))
    answers = []
    for workers in (1, 2, 4):
        method = kind(nets()[name], LOCAL)
        _, fed = fit(method, Vectorised, population, rounds=1, workers=workers)
        offer = method.offer(method.init(fed), fed.clients, fed)
        sent = fed.run(method.train, fed.clients, offer).send
        answers.append(dict(sent.get("params", fed.memory)))
    for other in answers[1:]:
        assert_close(answers[0], other, atol=1e-4)  # mostly equal bits; 8e-6 was seen, see docs/performance.md


def test_a_negative_number_of_workers_is_refused():
    with pytest.raises(ConfigError, match="or 0 to autotune, got 0 and -1"):
        Vectorised(FedAvg(nets()["own"]), tiny_population(), workers=-1)
