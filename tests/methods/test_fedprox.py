import pytest

from kinfed.errors import ConfigError
from kinfed.methods import FedProx
from kinfed.metrics import fedavg_parameters, method_bytes
from kinfed.training import LocalTraining
from tests.methods.by_hand import QUADRATIC, client_with, weight
from tests.methods.registry import make, population
from tests.problems import fit, small_net


@pytest.mark.parametrize(("own", "mu"), [(0.0, 2.0), (0.5, 1.5)])
def test_the_pull_by_hand_and_pulls_add_up(own, mu):
    # w1 = 0.3; g2 = (0.3 - 3) + 2 * (0.3 - 0) = -2.1, w2 = 0.51
    prox = FedProx(QUADRATIC, LocalTraining(2, 2, 0.1, momentum=0, mu=own), mu=mu)
    assert float(prox.train(client_with(2, 4), weight(0.0)).send["params"]["w"]) == pytest.approx(0.51)


def test_it_costs_what_fedavg_costs():
    _, fed = fit(make("fedprox"), population=population(), rounds=3, fraction=0.5)
    assert method_bytes(fed.ledger) == 4 * fedavg_parameters(6, small_net().parameters(), 3)


def test_a_negative_pull_is_refused():
    with pytest.raises(ConfigError, match="mu must be at least 0, got -1"):
        make("fedprox", mu=-1)
