"""Every task over Flower: what nodes answer is what the engine in this process computes."""

import pytest
import torch

pytest.importorskip("flwr")

from kinfed.engines import Vectorised
from kinfed.experiment import Experiment
from kinfed.federation import Offer
from kinfed.methods import IFCA, Auto, Ditto, FedAvg
from tests.engines.flower.loopback import Loopback, make_flower
from tests.methods.registry import KERNEL, make, population, signature
from tests.problems import repeat_samples, tiny_model, tiny_population
from tests.test_learning_tasks import LOCAL, TASKS, model_of, samples_of

METHODS = {
    "fedavg": FedAvg,
    "ditto": Ditto,
    "ifca": lambda model, local: IFCA(model, local, clusters=2),
    "auto": Auto,
}


def case_of(task, name: str):
    """In every run each task with one method, and each method with the first task."""
    later = name != "fedavg" and task is not TASKS[0]
    return pytest.param(task, name, id=f"{task}-{name}", marks=[pytest.mark.on_demand] if later else [])


@pytest.mark.parametrize(("task", "name"), [case_of(task, name) for task in TASKS for name in METHODS])
def test_nodes_and_simulation_agree_on_every_task(task, name):
    population = samples_of(task)
    method = METHODS[name](model_of(task, population.classes), LOCAL)
    summaries = [
        Experiment.over(fed, rounds=2).run()
        for fed in (Vectorised(method, population), make_flower(method, population, Loopback(4)))
    ]
    measured = [{key: summary[key] for key in task.measured() if key in summary} for summary in summaries]
    assert measured[0] and measured[1] == pytest.approx(measured[0], abs=1e-5)
    assert summaries[1]["rejected_replies"] == 0


@pytest.mark.filterwarnings("ignore:no clear clusters")
def test_nodes_and_simulation_agree_on_an_encoder_that_is_tuned_in_turn():
    falling = signature(tuning="sequential", tuning_epochs=3, tuning_decay=0.1, tuning_decay_epochs=1)
    method, people = make(KERNEL, signature=falling), population()
    feds = Vectorised(method, people), make_flower(method, people, Loopback(12))
    known = [method.collect(method.no_signatures(fed), falling.encoder(fed), fed.clients, fed)[0] for fed in feds]
    torch.testing.assert_close(known[1].centroids, known[0].centroids, atol=1e-4, rtol=0)
    calls = [[call[:2] + call[3:] for call in fed.ledger.rounds] for fed in feds]
    assert calls[0] == calls[1] and "tune_in_turn" in calls[0][0]


def test_nodes_and_simulation_agree_where_clients_have_copies():
    method, people = Auto(tiny_model(), LOCAL, hold_out=3), repeat_samples(tiny_population((12, 9, 20)), 3)
    feds, found = (Vectorised(method, people), make_flower(method, people, Loopback(3))), []
    for fed in feds:
        known = method.collect(method.no_signatures(fed), method.signature.encoder(fed), fed.clients, fed)[0]
        first = {name: weight.to(fed.device) for name, weight in method.model.init().items()}
        reply = fed.run(method.train_and_judge, fed.everyone, Offer({"params": first}))
        found.append((known, reply["hits"]))
    assert found[0][0].shares.sum(1).tolist() == found[1][0].shares.sum(1).tolist() == [12, 9, 20]
    torch.testing.assert_close(found[1][0].centroids, found[0][0].centroids)
    assert found[0][1][:, -1, 0].tolist() == found[1][1][:, -1, 0].tolist() == [4, 3, 6]
