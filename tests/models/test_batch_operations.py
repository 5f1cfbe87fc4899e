"""Dropout, normalisation, attention and recurrence on padded batches of clients in a block."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import vmap
from torch.nn import functional as F

from kinfed.client import Batch
from kinfed.models import Model, convolutions
from kinfed.models.batch_operations import BatchOperations
from tests.problems import assert_close, assert_same_bits
from tests.zoo import ZOO


def batch(size: int, real: int, exact: bool = False, key: int = 5, seed: int = 1) -> Batch:
    x = torch.rand(size, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(size) < real
    return Batch(x, torch.arange(size) % 3, mask, mask.any(), exact, torch.tensor(key))


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("real", [1, 5])
def test_padding_enters_no_gradient_and_no_buffer(name, real):
    model = Model(ZOO[name], classes=3)
    padded, exact = (model.gradient(model.init(), b) for b in (batch(9, real), batch(9, real, exact=True)._replace(
        **{part: getattr(batch(9, real), part)[:real] for part in ("x", "y", "mask")}
    )))  # fmt: skip
    assert_close(padded.weights, exact.weights, atol=2e-6)
    assert_close(dict(padded.buffers), dict(exact.buffers), atol=1e-6)


def test_batch_norm_on_padding_is_torchs_own_without_it():
    model = Model(ZOO["batch norm of images"], classes=3)
    module, few, padded = model.build_module(), batch(9, 9).x[:5], batch(9, 5)
    module.load_state_dict(model.init(), strict=False)
    F.cross_entropy(module(few), padded.y[:5]).backward()
    got = model.gradient(model.init(), padded)
    assert_close(got.weights, {name: w.grad for name, w in module.named_parameters()}, atol=1e-6)
    assert_close(dict(got.buffers), {f"1.{key}": getattr(module[1], key) for key in ("running_mean", "running_var")})


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_in_evaluation_is_torchs_own_though_a_block_does_not_call_it(affine, monkeypatch):
    layer = nn.BatchNorm2d(3, affine=affine).eval()
    layer.running_mean, layer.running_var = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([4.0, 0.25, 1.0])
    x = torch.randn(2, 5, 3, 4, 4)
    expected = torch.stack([layer(client) for client in x])
    monkeypatch.setattr(torch, "batch_norm", None)  # on a GPU it refuses to be in a vmap
    with BatchOperations():
        torch.testing.assert_close(vmap(layer)(x), expected)


def test_an_empty_batch_moves_no_buffer_and_stays_finite():
    model = Model(ZOO["batch norm twice"], classes=3)
    gradient = model.gradient(model.init(), batch(6, 0))
    assert all(not g.any() for g in gradient.weights.values())
    assert_same_bits(dict(gradient.buffers), {name: model.init()[name] for name in gradient.buffers})


def drop(key: int, size: int = 50, p: float = 0.3, shape: tuple[int, ...] = (40, 5)) -> torch.Tensor:
    mask = torch.ones(size, dtype=torch.bool)
    with BatchOperations(Batch(mask, mask, mask, mask.any(), key=torch.tensor(key))):
        return F.dropout(torch.ones(size, *shape), p)


def test_dropout_keeps_the_mean_and_drops_the_share():
    kept = drop(1)
    assert kept.unique().tolist() == [0.0, pytest.approx(1 / 0.7)]
    assert float((kept == 0).float().mean()) == pytest.approx(0.3, abs=0.02)  # 10,000 draws: four deviations
    assert not drop(1, p=1.0).any() and drop(1, p=0.0).all()


def test_masks_hang_on_the_key_and_the_sample_alone():
    assert torch.equal(drop(1), drop(1)) and not torch.equal(drop(1), drop(2))
    assert torch.equal(drop(1)[:7], drop(1, size=7))
    assert float((drop(1)[0] == drop(1)[1]).float().mean()) < 0.8  # by chance 0.58


def test_two_layers_of_a_pass_drop_differently_and_torchs_generator_is_left_alone():
    torch.manual_seed(3)
    before, mask = torch.get_rng_state(), torch.ones(50, dtype=torch.bool)
    with BatchOperations(Batch(mask, mask, mask, mask.any(), key=torch.tensor(1))):
        first, second = (F.dropout(torch.ones(50, 20), 0.5) for _ in range(2))
    assert not torch.equal(first, second) and torch.equal(before, torch.get_rng_state())


def test_samples_on_another_axis_keep_their_masks():
    many, few = (drop_second_axis(size) for size in (6, 4))
    assert torch.equal(many[:, :4], few)


def drop_second_axis(size: int) -> torch.Tensor:
    mask = torch.ones(size, dtype=torch.bool)
    with BatchOperations(Batch(mask, mask, mask, mask.any(), key=torch.tensor(1))):
        return F.dropout(torch.ones(7, size, 11), 0.5)


@pytest.mark.parametrize("stride", [1, 2, (2, 1)])
@pytest.mark.parametrize(("size", "padding", "dilation"), [(3, 1, 1), (1, 0, 1), ((2, 3), (0, 1), 2)])
def test_convolutions_as_products_are_convolutions(size, padding, dilation, stride):
    draw = torch.Generator().manual_seed(0)
    high, wide = size if isinstance(size, tuple) else (size, size)
    x = torch.randn(3, 4, 2, 9, 8, generator=draw, requires_grad=True)
    weight = torch.randn(3, 5, 2, high, wide, generator=draw, requires_grad=True)
    bias = torch.randn(3, 5, generator=draw)
    how = {"stride": stride, "padding": padding, "dilation": dilation}
    ours = vmap(lambda *lane: convolutions.conv2d(*lane, **how))(x, weight, bias)
    theirs = torch.stack([F.conv2d(*lane, **how) for lane in zip(x, weight, bias, strict=True)])
    assert_same_gradients(ours, theirs, x, weight)


@pytest.mark.parametrize("how", [{"stride": 2, "padding": 1}, {}, {"stride": 3, "output_padding": (1, 2)}])
def test_transposed_convolutions_as_products_are_transposed_convolutions(how):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, 2, 5, 4, generator=draw, requires_grad=True)
    weight = torch.randn(3, 2, 5, 4, 4, generator=draw, requires_grad=True)
    ours = vmap(lambda *lane: convolutions.conv_transpose2d(*lane, **how))(x, weight)
    theirs = torch.stack([F.conv_transpose2d(*lane, **how) for lane in zip(x, weight, strict=True)])
    assert_same_gradients(ours, theirs, x, weight)


@pytest.mark.parametrize("rows", [700, 1024, 1031])
def test_products_summed_in_parts_are_products(rows):
    draw = torch.Generator().manual_seed(0)
    left, right = (torch.randn(2, rows, width, generator=draw) for width in (5, 3))
    torch.testing.assert_close(convolutions.multiply_deep(left, right), left.mT @ right, atol=1e-4, rtol=0)


def assert_same_gradients(ours: torch.Tensor, theirs: torch.Tensor, *by: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    towards = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1))
    for mine, other in zip(*(torch.autograd.grad(y, by, towards) for y in (ours, theirs)), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=0)


LAYERS = {
    "linear": lambda: nn.Linear(6, 6),
    "dropout": lambda: nn.Dropout(0.4),
    "batch norm": lambda: nn.BatchNorm1d(6),
    "layer norm": lambda: nn.LayerNorm(6),
    "group norm": lambda: nn.GroupNorm(2, 6),
    "tanh": nn.Tanh,
    "branch": lambda: Sum(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.2)), nn.BatchNorm1d(6)),
}


class Sum(nn.Module):
    """x + a(x) + b(x)"""

    def __init__(self, a: nn.Module, b: nn.Module) -> None:
        super().__init__()
        self.a, self.b = a, b

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.a(x) + self.b(x)


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=5), st.sampled_from([1, 4, 5, 6]), st.integers(0, 9)
)
def test_networks_drawn_at_random_have_the_same_gradient_in_a_block_and_alone(names, real, key):
    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), *(LAYERS[name]() for name in names), nn.Linear(6, 3))

    model = Model(build, classes=3)
    params, padded = {name: w.double() for name, w in model.init().items()}, batch(7, real, key=key)
    padded = padded._replace(x=padded.x.double())  # gradients before a normalisation may cancel to 0, but for rounding
    exact = Batch(padded.x[:real], padded.y[:real], padded.mask[:real], padded.live, True, padded.key)
    block, alone = model.gradient(params, padded), model.gradient(params, exact)
    for ours, theirs in ((block.weights, alone.weights), (block.buffers, alone.buffers)):
        for name, wanted in theirs.items():
            torch.testing.assert_close(ours[name], wanted, atol=1e-7 * max(1, float(wanted.abs().max())), rtol=0)
