import traceback

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kinfed.client import Batch
from kinfed.errors import ModelError
from kinfed.models import Model, from_module, is_last_layer
from tests.problems import small_net


def batch(size: int, real: int, exact: bool = False) -> Batch:
    x = torch.rand(size, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    mask = torch.arange(size) < real
    return Batch(x, torch.arange(size) % 3, mask, mask.any(), exact)


def test_weights_come_from_the_seed_alone():
    torch.manual_seed(1)
    a = small_net().init(4)
    torch.manual_seed(2)
    b = small_net().init(4)
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert not torch.equal(a["1.weight"], small_net().init(5)["1.weight"])


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU, whose generator is seeded too")
def test_weights_are_drawn_without_a_stack_trace_for_a_gpu_that_is_not_there(monkeypatch):
    written = []
    monkeypatch.setattr(traceback, "format_stack", lambda *_: written.append(1) or [])
    small_net().init()
    assert not written


class Shuffled(nn.Module):
    """Draws the order of its inputs, and a mask that is not even a buffer, when it is built."""

    def __init__(self):
        super().__init__()
        self.register_buffer("order", torch.randperm(64))
        self.kept = torch.rand(64) < 0.5
        self.layer = nn.Linear(64, 3)

    def forward(self, x):
        return self.layer(x.flatten(1)[:, self.order] * self.kept)


def test_what_a_network_draws_beside_its_weights_comes_from_the_seed_too():
    model, samples = Model(Shuffled, seed=4, classes=3), batch(6, 6, exact=True)
    torch.manual_seed(4)
    module = Shuffled()
    assert all(torch.equal(w, module.state_dict()[name]) for name, w in model.init().items())
    torch.testing.assert_close(model.logits(model.init(), samples.x), module(samples.x))
    nn.functional.cross_entropy(module(samples.x), samples.y).backward()
    torch.testing.assert_close(model.gradient(model.init(), samples).weights["layer.weight"], module.layer.weight.grad)


def test_building_a_network_leaves_the_global_generator_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    Model(Shuffled, classes=3).build_module()
    assert torch.equal(torch.get_rng_state(), before)


def test_padding_has_no_gradient():
    model = small_net()
    params = model.init()
    padded, real = (
        model.gradient(params, batch(9, 5)).weights,
        model.gradient(params, batch(5, 5, exact=True)).weights,
    )
    for name in params:
        torch.testing.assert_close(padded[name], real[name], atol=1e-7, rtol=0)


def test_bytes_become_unit_interval_and_are_normalised():
    model = Model(nn.Flatten, mean=(0.5,), std=(0.25,), classes=64)
    x = torch.tensor([0, 255], dtype=torch.uint8).repeat(32).view(1, 1, 8, 8)
    assert model.logits({}, x).unique().tolist() == [-2.0, 2.0]


@pytest.mark.parametrize(("last", "warned"), [(nn.Softmax(1), True), (nn.LogSoftmax(1), False), (nn.ReLU(), False)])
def test_a_network_that_ends_with_a_softmax_is_warned_of(last, warned, caplog):
    Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3), last), classes=3).check(batch(2, 2).x)
    assert ("as after a softmax" in caplog.text) == warned


@pytest.mark.parametrize(
    "draw", [lambda net, x: F.dropout(x, 0.5), lambda net, x: F.dropout(x, 0.5, net.training),
             lambda net, x: x + torch.rand(1)],
)  # fmt: skip
def test_a_network_that_draws_in_evaluation_is_warned_of(draw, caplog):
    class Drawn(nn.Linear):
        def forward(self, x):
            return super().forward(draw(self, x))

    Model(lambda: Drawn(4, 3), classes=3).check(torch.ones(2, 4))
    draws_always = not torch.equal(draw(nn.Linear(1, 1).eval(), torch.ones(9)), torch.ones(9))
    assert ("draws random numbers when it is evaluated" in caplog.text) == draws_always


def test_nothing_is_said_of_outputs_where_there_are_no_samples(caplog):
    small_net().check(batch(2, 2).x[:0])  # a server that plans a deployment has none
    assert not caplog.text


def test_a_model_whose_output_does_not_fit_the_classes_is_refused():
    wrong = Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), classes=3)
    with pytest.raises(ModelError, match=r"\(2, 4\), wanted \(2, 3\)"):
        wrong.check(torch.zeros(2, 1, 8, 8))


@pytest.mark.parametrize("dtype", [torch.float, torch.long])
def test_a_forward_pass_that_writes_into_its_samples_leaves_the_users_alone_when_it_is_checked(dtype):
    class Shifted(nn.Linear):
        def forward(self, x):
            x -= 3
            return super().forward(x.float())

    x, model = torch.arange(12).view(3, 4).to(dtype), Model(lambda: Shifted(4, 3), classes=3)
    model.check(x)
    model.check_sequences(x, torch.zeros(3, dtype=torch.long))
    assert x.flatten().tolist() == list(range(12))


def test_a_model_that_does_not_take_the_samples_is_refused():
    with pytest.raises(ModelError, match=r"samples of shape \(1, 9, 9\)"):
        small_net().check(torch.zeros(2, 1, 9, 9))


def batch_norm_net() -> Model:
    return Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), classes=3)


def test_batch_norm_statistics_are_weights_and_move_as_torch_moves_them():
    model, samples = batch_norm_net(), batch(6, 6, exact=True)
    params = model.init()
    gradient = model.gradient(params, samples)
    module = model.build()
    module.load_state_dict(params, strict=False)
    module.train()(samples.x)
    assert set(gradient.buffers) == {"2.running_mean", "2.running_var"}
    torch.testing.assert_close(gradient.buffers["2.running_mean"], module[2].running_mean)
    torch.testing.assert_close(gradient.buffers["2.running_var"], module[2].running_var)
    assert torch.equal(params["2.running_mean"], torch.zeros(4)), "the received weights must not change"


def test_a_batch_of_one_sample_uses_the_running_statistics():
    model = batch_norm_net()
    gradient = model.gradient(model.init(), batch(1, 1, exact=True))
    assert torch.equal(gradient.buffers["2.running_mean"], torch.zeros(4))
    assert gradient.weights["3.weight"].abs().sum() > 0


def test_a_users_module_is_copied_and_drawn_anew():
    mine = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    before = mine[1].weight.clone()
    model = Model(from_module(mine), classes=3)
    assert torch.equal(model.init(1)["1.weight"], model.init(1)["1.weight"])
    assert not torch.equal(model.init(1)["1.weight"], model.init(2)["1.weight"])
    assert torch.equal(mine[1].weight, before)


def test_a_module_given_directly_is_copied_and_drawn_anew():
    mine = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    before, model = mine[1].weight.clone(), Model(mine, classes=3)
    wanted = Model(from_module(mine), classes=3)
    assert all(torch.equal(w, wanted.init(1)[name]) for name, w in model.init(1).items())
    assert not torch.equal(model.init(1)["1.weight"], model.init(2)["1.weight"])
    assert torch.equal(mine[1].weight, before)
    assert model.logits(model.init(), torch.zeros(2, 1, 8, 8)).shape == (2, 3)


class Stubborn(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3))


def test_a_module_that_cannot_be_drawn_anew_is_refused():
    with pytest.raises(ModelError, match="part"):
        from_module(nn.ModuleDict({"part": Stubborn()}))


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_a_network_that_holds_what_was_computed_from_weights_is_refused_with_what_to_do():
    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(64, 3)))

    advice = r"^1\.weight was computed from weights .* torch\.nn\.utils\.parametrizations\.weight_norm"
    with pytest.raises(ModelError, match=advice):
        Model(build, classes=3).check(torch.zeros(2, 1, 8, 8))
    with pytest.raises(ModelError, match=advice):
        from_module(build())


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_weight_norm_as_a_parametrization_is_taken():
    layer = nn.utils.parametrizations.weight_norm
    model = Model(lambda: nn.Sequential(nn.Flatten(), layer(nn.Linear(64, 3))), classes=3)
    model.check(torch.zeros(2, 1, 8, 8))
    padded, real = (model.gradient(model.init(), b).weights for b in (batch(9, 5), batch(5, 5, exact=True)))
    assert {"1.parametrizations.weight.original0", "1.parametrizations.weight.original1"} < set(padded)
    for name, gradient in padded.items():
        torch.testing.assert_close(gradient, real[name], atol=1e-7, rtol=0)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_a_parametrised_layer_is_one_layer():
    layer = nn.utils.parametrizations.weight_norm
    model = Model(lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), layer(nn.Linear(5, 3))), classes=3)
    inner = {"2.parametrizations.weight.original0", "2.parametrizations.weight.original1"}
    assert {name for name in model.weights if is_last_layer(model, name)} == inner | {"2.bias"}
    x, params = torch.randn(4, 6), model.init()
    torch.testing.assert_close(model.features(params, x), (x @ params["0.weight"].T + params["0.bias"]).relu())
    assert model.features_width() == 5
    whole = Model(lambda: layer(nn.Linear(5, 3)), classes=3)
    assert all(is_last_layer(whole, name) for name in whole.weights)


def test_frozen_batch_norm_keeps_its_statistics():
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3), nn.BatchNorm1d(3))
    for norm in (net[1], net[3]):
        norm.running_mean.fill_(5.0)
    net[1].requires_grad_(False)
    params = Model(net, classes=3).init()
    assert params["1.running_mean"].tolist() == [5.0] * 5 and params["3.running_mean"].tolist() == [0.0] * 3


def test_hits_count_real_samples_only_and_never_a_nan():
    logits = torch.tensor([[9.0, 0, 0], [0, 9.0, 0], [0, 0, 9.0], [torch.nan, 0, 0]])
    mask = torch.tensor([True, True, False, True])
    assert small_net().scores_of(logits, Batch(logits, torch.tensor([0, 2, 2, 0]), mask, mask.any())).tolist() == [
        True,
        False,
        False,
        False,
    ]


def test_a_builder_that_gives_the_same_module_each_time_does_not_mix_training_with_evaluation():
    module = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3))
    model = Model(lambda: module, classes=3)
    params, samples = model.init(), batch(5, 5, exact=True)
    for _ in range(2):  # in training samples are dropped out, and after an evaluation, too
        assert model.training_pass(params, samples)[0] != model.loss(params, samples)
