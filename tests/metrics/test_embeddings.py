"""How methods see their clients: the update of local training, unless a method knows better."""

from dataclasses import replace

import pytest
import torch

from kinfed.engines import Vectorised
from kinfed.experiment import Evaluation, Experiment
from kinfed.methods import FedAvg, Local
from kinfed.metrics.dry_runs import compute_signatures
from kinfed.params import flatten
from kinfed.training import LocalTraining
from tests.methods.registry import make, population
from tests.problems import ENGINES, small_net, tiny_population

WHOLE = LocalTraining(epochs=1, batch_size=64, lr=0.1)  # one step on all samples: the order of samples does not matter


@pytest.mark.parametrize("engine", ENGINES)
def test_an_embedding_is_what_training_changes_in_the_served_model(engine):
    method = FedAvg(small_net(), WHOLE)
    fed = engine(method, tiny_population())
    state = method.init(fed)
    trained = fed.run(method.train, fed.clients, method.offer(state, fed.clients, fed))
    wanted = flatten(trained.stack("params")) - flatten({name: w[None] for name, w in state.params.items()})
    torch.testing.assert_close(compute_signatures(method, state, fed), wanted, atol=1e-6, rtol=0)


def test_a_client_remembers_nothing_of_being_looked_at():
    method = Local(small_net(), WHOLE)
    fed = Vectorised(method, tiny_population())
    state = method.round(method.init(fed), 0, fed)
    before = {name: w.clone() for name, w in fed.memory.items()}
    first, second = compute_signatures(method, state, fed), compute_signatures(method, state, fed)
    assert all(torch.equal(w, before[name]) for name, w in fed.memory.items())
    torch.testing.assert_close(first, second, atol=1e-6, rtol=0)


def test_a_client_that_sends_no_number_has_none_and_the_others_are_compared():
    base = population()
    sick = base.x.float() / 255
    sick[base.train[3]] = torch.nan
    method = make("fedavg")
    fed = Vectorised(method, replace(base, x=sick))
    seen = compute_signatures(method, method.init(fed), fed)
    assert seen.isnan().all(1).tolist() == [client == 3 for client in range(12)]
    summary = Experiment.over(fed, rounds=1, evaluation=Evaluation(correlation=True)).run()
    assert -1 <= summary["correlation_labels"] <= 1
