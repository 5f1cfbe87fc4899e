"""Convolutions and GroupNorm of a block of clients beside torch's own."""

import pytest
import torch
from torch.func import vmap
from torch.nn import functional as F

from kinfed.models import convolutions
from kinfed.models.convolutions import Windows2d, conv1d, conv2d, convolve_lanes, group_norm, norm_lanes


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(("groups", "channels"), [(1, 6), (3, 6), (6, 6)])
def test_lanes_are_normalised_as_by_torch(groups, channels, channels_last):
    draw = torch.Generator().manual_seed(0)
    x = 3 + torch.randn(3, 4, 5, 7, channels, generator=draw, dtype=torch.double)
    x = x.permute(0, 1, 4, 2, 3) if channels_last else x.permute(0, 1, 4, 2, 3).contiguous()
    affine = [torch.randn(3, channels, generator=draw, dtype=torch.double) for _ in range(2)]
    seen = torch.randn(x.shape, generator=draw, dtype=torch.double)
    ends = []
    for rule in (lambda *a: torch.stack([F.group_norm(t, groups, w, b, 1e-5) for t, w, b in zip(*a, strict=True)]),
                 lambda *a: norm_lanes(*a, groups, 1e-5)):  # fmt: skip
        leaves = [t.clone().requires_grad_() for t in (x, *affine)]
        y = rule(*leaves)
        ends.append((y, *torch.autograd.grad((y * seen).sum(), leaves)))
    for expected, got in zip(*ends, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
    assert not channels_last or ends[1][0].permute(0, 1, 3, 4, 2).is_contiguous()


@pytest.mark.parametrize("shape", [(4, 6, 5, 5), (4, 6, 9), (4, 6)])
def test_in_a_vmap_with_and_without_weights(shape):
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    weight, bias = torch.arange(6.0).add(1).expand(3, 6), torch.ones(6)
    whole = vmap(lambda x, w: group_norm(x, 2, w, bias))(x, weight)
    torch.testing.assert_close(whole, torch.stack([F.group_norm(t, 2, weight[0], bias) for t in x]))
    bare = vmap(lambda x: group_norm(x, 3))(x)
    torch.testing.assert_close(bare, torch.stack([F.group_norm(t, 3) for t in x]))


@pytest.mark.parametrize("lanes", [2, 3, 7, 8])
def test_windows_are_gathered_a_few_lanes_at_a_time_unless_a_gradient_needs_them(lanes, monkeypatch):
    draw = torch.Generator().manual_seed(0)
    x, weight = torch.randn(lanes, 4, 2, 9, 9, generator=draw), torch.randn(lanes, 5, 2, 3, 3, generator=draw)
    windows = Windows2d((3, 3), (2, 2), (1, 1), (1, 1))
    gather, gathered = convolutions.gather_windows, []
    monkeypatch.setattr(convolutions, "GATHERED", 2 * 4 * 5 * 5 * 18)  # two lanes, but fewer than three never go alone
    monkeypatch.setattr(
        convolutions,
        "gather_windows",
        lambda images, windows: gathered.append(len(images) // 4) or gather(images, windows),
    )
    got = convolve_lanes(x, weight, windows)
    torch.testing.assert_close(got, torch.stack([F.conv2d(a, b, None, 2, 1) for a, b in zip(x, weight, strict=True)]))
    assert gathered == {2: [2], 3: [3], 7: [4, 3], 8: [4, 4]}[lanes]
    gathered.clear()
    assert torch.equal(convolve_lanes(x, weight.requires_grad_(), windows), got) and gathered == [lanes]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("how", [{}, {"stride": 2, "padding": (1, 0)}, {"dilation": 2, "padding": 2}])
def test_clients_with_the_same_weights_are_one_convolution(how, dim, monkeypatch):
    draw = torch.Generator().manual_seed(0)
    x, weight = torch.randn(3, 4, 2, 9, 8, generator=draw), torch.randn(5, 2, 3, 3, generator=draw)
    bias, calls = torch.randn(5, generator=draw), []
    monkeypatch.setattr(convolutions, "gather_windows", lambda *_: pytest.fail("windows were gathered"))
    monkeypatch.setattr(F, "conv2d", lambda *a, own=F.conv2d: calls.append(len(a[0])) or own(*a))
    got = vmap(lambda own: conv2d(own, weight, bias, **how), in_dims=dim)(x.movedim(0, dim).contiguous())
    assert calls == [12]
    monkeypatch.undo()
    torch.testing.assert_close(got, torch.stack([F.conv2d(own, weight, bias, **how) for own in x]))
    series = vmap(lambda own: conv1d(own, weight[..., 0]))(x[..., 0])
    torch.testing.assert_close(series, torch.stack([F.conv1d(own, weight[..., 0]) for own in x[..., 0]]))
