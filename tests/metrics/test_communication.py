"""The papers' formulas of communication."""

import pytest
import torch

from kinfed.ledger import Ledger
from kinfed.metrics import fedavg_parameters, flt_parameters, megabits_per_client, method_bytes


def test_communication_of_the_papers():
    assert fedavg_parameters(20, 159_010, 100) == 636_040_000
    assert flt_parameters(100, 25_956, 5, 128, 20, 159_010, 100) == 100 * (25_956 + 640) + 636_040_000
    # FLIS: 19 rounds of LeNet-5, a tenth of 100 clients, two models each
    assert megabits_per_client(4 * fedavg_parameters(10, 62_006, 19), 100) == pytest.approx(7.54, abs=0.005)
    assert megabits_per_client(4 * fedavg_parameters(10, 6_621_540, 47), 100) == pytest.approx(1991.76, abs=0.005)


def test_evaluation_is_not_the_methods_cost():
    ledger = Ledger(2)
    clients = torch.tensor([0, 1])
    ledger.count(0, "train", clients, 100, clients, 10)
    ledger.count(0, "evaluate", clients, 100, clients, 12)
    assert method_bytes(ledger) == 220
