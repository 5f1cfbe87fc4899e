from dataclasses import dataclass

import pytest
import torch

from kinfed import checkpoint
from kinfed.data import Role
from kinfed.per_client import Contributors, Each, Labels, LastTrained, Members, Pairs, cut_to
from tests.methods import registry
from tests.problems import fit


@dataclass(frozen=True)
class Inner:
    points: Each


@dataclass(frozen=True)
class State:
    models: torch.Tensor
    labels: Labels
    contributors: Contributors
    pairs: Pairs
    members: Members
    last_trained: LastTrained
    inner: Inner


def test_a_state_is_cut_to_some_clients_and_a_blank_one():
    state = State(
        torch.tensor([7.0, 8.0]), torch.tensor([0, 1, 1]), torch.tensor([[True, False, False], [False, True, True]]),
        torch.eye(3).bool(), torch.tensor([2, 0]), {"w": torch.ones(3)}, Inner(torch.tensor([[1.0], [2.0], [3.0]])),
    )  # fmt: skip
    cut = cut_to(state, torch.tensor([0, 2]))
    assert cut.models.tolist() == [7, 8] and cut.labels.tolist() == [0, 1, -1]
    assert cut.contributors.tolist() == [[True, False, False], [False, True, False]]
    assert cut.pairs.tolist() == [[True, False, False], [False, True, False], [False, False, False]]
    assert cut.members.tolist() == [1, 0] and cut.last_trained == {}
    assert cut.inner.points.tolist() == [[1], [3], [0]]


@pytest.mark.parametrize("method", [name for name in registry.CASES if name not in ("local", "oracle")])
def test_whatever_a_method_knows_by_client_is_said_to_be_so(method):
    roles = tuple(Role(holdout=client in (4, 9)) for client in range(12))
    method = registry.make(method)
    state, fed = fit(method, population=registry.population(roles=roles), rounds=2, fraction=0.5)
    tensors: dict[str, torch.Tensor] = {}
    checkpoint.take_apart(method.export_state(state, fed.clients, fed.sizes), "state", tensors)
    assert not [name for name, tensor in tensors.items() if 12 in tensor.shape], "mark them as in kinfed/per_client.py"
