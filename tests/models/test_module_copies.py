import torch
from torch import nn

from kinfed.models import Model
from kinfed.models.module_copies import copy_module
from tests.zoo import Called


class Holds(nn.Module):
    """Functions of every kind hold the network, or its parts."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(64, 8), nn.Linear(8, 3)
        fold = lambda x, times: x if not times else fold(self.first(x)[:, :1].expand(-1, 64), times - 1)  # noqa: E731
        self.steps = [lambda x, first=self.first: first(x), lambda x, *, head=self.head: head(x)]
        self.named = {"fold": lambda x: fold(x, 2), "double": lambda x: 2 * x}
        self.call = lambda x: self.steps[1](self.steps[0](self.named["fold"](x)))
        self.head.register_forward_pre_hook(lambda _, inputs: (inputs[0] * self.first.bias,))

    def forward(self, x):
        return self.call(x.flatten(1))


def test_functions_of_a_copy_use_its_own_parts():
    x, net = torch.rand(5, 1, 8, 8), Holds()
    before, own = net(x), copy_module(net)
    torch.testing.assert_close(own(x), before, rtol=0, atol=0)
    assert own.named["double"] is net.named["double"]  # it holds nothing
    with torch.no_grad():
        for w in net.parameters():
            w.zero_()
    torch.testing.assert_close(own(x), before, rtol=0, atol=0)
    twice = copy_module(own)
    own(x).sum().backward()
    assert all(w.grad is not None for w in own.parameters()) and all(w.grad is None for w in twice.parameters())


def test_a_function_of_a_network_that_has_no_value_yet_is_copied():
    def build():
        net = Called(lambda net, x: net.head(net.squash(x.flatten(1))), head=nn.Linear(64, 3))
        net.squash = lambda x: net.head.weight.mean() * x + (0 if net.training else 0 * len(later))
        if net.training:
            return net
        later = [1]
        return net

    own = copy_module(build())
    assert own(torch.rand(2, 1, 8, 8)).shape == (2, 3)


def test_a_module_that_is_handed_in_may_hold_itself_in_functions():
    net = Called(lambda net, x: net.call_head(x.flatten(1)), head=nn.Linear(64, 3))
    net.call_head = lambda x: net.head(x)
    model, x = Model(net, classes=3), torch.rand(4, 1, 8, 8)
    params = model.init()
    expected = x.flatten(1) @ params["head.weight"].T + params["head.bias"]
    torch.testing.assert_close(model.logits(params, x), expected)
