"""Every task over Flower: what nodes answer is what the engine in this process computes."""

import pytest

pytest.importorskip("flwr")

from kinfed.engines import Vectorised
from kinfed.experiment import Experiment
from kinfed.methods import IFCA, Auto, Ditto, FedAvg
from tests.engines.flower.loopback import Loopback, make_flower
from tests.test_learning_tasks import LOCAL, TASKS, model_of, samples_of

METHODS = {
    "fedavg": FedAvg,
    "ditto": Ditto,
    "ifca": lambda model, local: IFCA(model, local, clusters=2),
    "auto": Auto,
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("task", TASKS, ids=repr)
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
