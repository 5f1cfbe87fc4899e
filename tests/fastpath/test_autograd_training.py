"""Training by autograd with graphs kept, as on a GPU, where every call is eager."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kinfed.engines import Sequential, Vectorised
from kinfed.fastpath import autograd_training
from kinfed.fastpath.autograd_training import TrainingGraphs, _groups, _phases
from kinfed.fastpath.optimiser import INPUTS_FIRST, WINDOWS_FIRST, RowLayout, find_orders
from kinfed.methods import FedAvg, Local, Scaffold
from kinfed.models import Model
from kinfed.models.batch_operations import RULES
from kinfed.models.convolutions import group_norm
from kinfed.training import LocalTraining
from tests.problems import assert_close, assert_same_bits, fit, tiny_population
from tests.zoo import ZOO, Called


@pytest.fixture
def kept(monkeypatch):
    """Graphs that are never captured."""
    graphs = TrainingGraphs()
    graphs.graphs.warm_up = 10**9
    plan = autograd_training.plan_autograd
    monkeypatch.setattr("kinfed.training.plan_autograd", lambda rule, device, how, *_: plan(rule, device, how, graphs))
    return graphs


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("name", ["dropout by function", "batch norm of vectors", "layer norm"])
def test_trainings_in_kept_memory_give_the_same_weights(name, optimiser, kept, monkeypatch):
    if optimiser == "adam" and name.startswith("batch norm"):
        return  # gradients of biases before it are rounding alone, which Adam magnifies
    method = FedAvg(Model(ZOO[name], classes=3), LocalTraining(2, 4, 0.05, optimiser=optimiser))
    population = tiny_population((3, 40, 9, 22, 5, 31, 12))
    with_graphs, _ = fit(method, Vectorised, population, 3)
    assert kept.trainings and len(kept.graphs.calls) > 1
    monkeypatch.undo()
    without, _ = fit(method, Vectorised, population, 3)
    assert_close(with_graphs.params, without.params)


def test_only_the_latest_trainings_are_kept(kept):
    for batch in (4, 5, 6):
        fit(Local(Model(ZOO["layer norm"], classes=3), LocalTraining(1, batch)), population=tiny_population(), rounds=1)
    assert len(kept.trainings) == autograd_training.MOST
    assert {shaped[0][0] for shaped in kept.graphs.calls} == {1, 2}


def test_lanes_drop_out_when_they_are_done():
    assert list(_phases([9, 7, 7, 2, 1], few_sizes=False)) == [(0, 1, 5), (1, 2, 4), (2, 9, 3)]
    assert list(_phases([9, 8, 5, 3, 3, 3, 1, 1], few_sizes=True)) == [(0, 3, 8), (3, 9, 4)]
    assert list(_phases([4, 1], few_sizes=True)) == [(0, 4, 2)]
    assert [(part.start, part.stop) for part in _groups(2, 9, 3)] == [(2, 5), (5, 8), (8, 9)]


def test_a_number_has_the_same_key_as_a_tensor():
    from kinfed.keys import fold

    key = torch.tensor([5, -3])
    for number in (0, 1, 77, 2**31, -4):
        assert torch.equal(fold(key, number), fold(key, torch.tensor(number)))


@pytest.mark.parametrize(("kind", "optimiser"), [(Scaffold, "sgd"), (FedAvg, "adam")])
def test_weights_of_convolutions_may_lie_as_kernels_read_them(monkeypatch, kind, optimiser):
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2),
                        nn.Conv2d(4, 6, (3, 1), bias=False), nn.Conv2d(6, 6, 1, groups=2), nn.Flatten(),
                        nn.Linear(48, 3))  # fmt: skip
    method = kind(Model(net, classes=3), LocalTraining(2, 4, 0.02, optimiser=optimiser))
    population = tiny_population((3, 40, 9, 22))
    expected, _ = fit(method, Sequential, population, 3)
    plan = autograd_training.plan_autograd
    monkeypatch.setattr("kinfed.training.plan_autograd", lambda *how: replace(plan(*how), in_turn=False))
    lay_out = autograd_training._lay_out
    orders = find_orders(net, is_cuda=True)
    assert orders == dict.fromkeys(("0.weight", "4.weight"), WINDOWS_FIRST)
    monkeypatch.setattr(autograd_training, "_lay_out", lambda *of: replace(lay_out(*of), orders=orders))
    monkeypatch.setitem(RULES, F.group_norm, lambda _, *of, **named: group_norm(*of, **named))
    assert_close(fit(method, Vectorised, population, 3)[0].params, expected.params, atol=1e-5)


def test_a_row_holds_every_weight_as_it_is_read():
    weights = {"a": torch.randn(3, 2, 5), "b": torch.randn(3, 4, 2, 3, 3), "c": torch.randn(3, 5, 2)}
    shapes = {name: w.shape[1:] for name, w in weights.items()}
    layout = RowLayout(shapes, {"b": WINDOWS_FIRST, "c": INPUTS_FIRST})
    own = layout.unpack(layout.pack(list(weights.values())))
    assert_same_bits(own, weights)
    assert own["b"].permute(WINDOWS_FIRST)[0].is_contiguous() and own["c"].mT[0].is_contiguous()


def test_gradients_of_matrices_come_as_rows_hold_them(monkeypatch):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    seen, pack = [], RowLayout.pack

    def note(layout, weights):
        seen.append({name: w.permute(layout.orders[name])[0].is_contiguous()
                     for name, w in zip(layout.names, weights, strict=True) if name in layout.orders})  # fmt: skip
        return pack(layout, weights)

    monkeypatch.setattr(RowLayout, "pack", note)
    fit(FedAvg(Model(net, classes=3), LocalTraining(1, 5)), Vectorised, tiny_population((9, 9, 9)), 1)
    assert seen[1:] and all(part == {"1.weight": True, "4.weight": True} for part in seen[1:])  # the first: the start


def test_a_gpu_trains_as_many_clients_at_once_as_in_the_first_round_until_memory_is_given_back(monkeypatch):
    gpu = SimpleNamespace(is_cuda=True, device=torch.device("cuda:0"), shape=torch.Size((50, 4)))
    steps = SimpleNamespace(x=gpu, pick=torch.zeros(100, 2, 5))
    plan = SimpleNamespace(rule="rule", optimiser="sgd", graphs=TrainingGraphs())
    room = [100 * 2**20]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(autograd_training, "_measure_lane", lambda *rest: 2**20)
    monkeypatch.setattr(autograd_training, "room_on", lambda device: room[0])
    assert autograd_training._lanes_at_once(plan, steps, {}, {}) == 50  # 60 fit: two parts
    room[0] //= 4
    assert autograd_training._lanes_at_once(plan, steps, {}, {}) == 50
    plan.graphs.clear()
    assert autograd_training._lanes_at_once(plan, steps, {}, {}) == 15  # 15 fit: seven parts


def test_networks_of_many_activations_train_one_client_after_the_other(monkeypatch):
    wide = nn.TransformerEncoderLayer(8, 2, 4096, dropout=0.0, batch_first=True)  # keeps 8 x 4096 numbers of a sample
    net = Called(lambda net, x: net.head(net.layer(x[:, 0]).mean(1)), layer=wide, head=nn.Linear(8, 3))
    plans, plan = [], autograd_training.plan_autograd
    monkeypatch.setattr("kinfed.training.plan_autograd", lambda *how: plans.append(plan(*how)) or plans[-1])
    people, model = tiny_population((21, 21, 21)), Model(lambda: net, classes=3)
    assert 4 * 8 * 4096 <= model.probe(model.template, people.x).activations < 4 * 4 * 8 * 4096
    for batch_size, in_turn in ((2, False), (20, True)):  # 2 MiB are 16 samples with one such tensor each
        slow, fast = (
            fit(FedAvg(model, LocalTraining(1, batch_size)), engine, people, 1)[0].params
            for engine in (Sequential, Vectorised)
        )
        assert plans[-1].in_turn == in_turn
        assert_close(fast, slow, atol=1e-4)  # sums of 4,096 terms: last bits differ from CPU to CPU
