"""Networks that few people train: both engines agree to 1e-5, or one line says why they cannot."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from kinfed.client_tasks import evaluate
from kinfed.engines import Sequential, Vectorised
from kinfed.errors import ModelError
from kinfed.fastpath import autograd_training, explain
from kinfed.federation import Offer
from kinfed.methods import METHODS, FedAvg, FedRep
from kinfed.models import Model
from kinfed.params import to_flat
from kinfed.training import LocalTraining
from tests.problems import assert_close, assert_same_bits, fit, small_net, tiny_population
from tests.zoo import Called, convolve, flat, sequence

LOCAL = LocalTraining(2, 5, 0.05, 0.5, weight_decay=0.01)


def tokens(x: Tensor) -> Tensor:
    return (3 * x).long().clamp(0, 3).flatten(1)


def read_words(words: nn.Module) -> nn.Module:
    return Called(lambda net, x: net.head(net.words(tokens(x)).mean(1)), words=words, head=nn.Linear(5, 3))


def read_bag(**how: object) -> nn.Module:
    words = nn.EmbeddingBag(4, 5, **how)  # type: ignore[arg-type]
    return Called(lambda net, x: net.head(net.words(tokens(x)).tanh()), words=words, head=nn.Linear(5, 3))


def freeze() -> nn.Module:
    net = convolve(nn.BatchNorm2d(4))
    net[0].weight.requires_grad_(False)
    return net


def tie() -> nn.Module:
    words, back = nn.Embedding(4, 5, padding_idx=0), nn.Linear(5, 4, bias=False)
    back.weight = words.weight
    forward = lambda net, x: net.head(net.back(net.words(tokens(x)).mean(1)))  # noqa: E731
    return Called(forward, words=words, back=back, head=nn.Linear(4, 3))


class Scaled(nn.Module):
    """A temperature, and weights of a spectrum after an odd number of others."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.zeros(()))
        self.spectrum = nn.Parameter(torch.ones(8, 5, 2) / 4)
        self.head = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        seen = torch.fft.rfft2(x[:, 0]) * torch.view_as_complex(self.spectrum)
        return self.head(torch.fft.irfft2(seen, s=(8, 8)).flatten(1)) * self.temperature.exp()


class Counted(nn.Module):
    """Steps are counted in a buffer, in place or by another tensor, and change the output."""

    def __init__(self, dtype: torch.dtype, in_place: bool, always: bool = False) -> None:
        super().__init__()
        self.head, self.in_place, self.always = nn.Linear(64, 3), in_place, always
        self.register_buffer("steps", torch.zeros((), dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        counts = self.training or self.always
        if counts and self.in_place:
            self.steps += 1
        elif counts:
            self.steps = self.steps + 1
        return self.head(x.flatten(1)) / (1 + 0.1 * self.steps)


def pack() -> nn.Module:
    def forward(net: nn.Module, x: Tensor) -> Tensor:
        lengths = (x[:, 0].sum(2) > 0).sum(1).clamp(min=1)
        return net.head(net.layer(pack_padded_sequence(x[:, 0], lengths, True, False))[1][-1])

    return Called(forward, layer=nn.GRU(8, 6, batch_first=True), head=nn.Linear(6, 3))


class Skipped(nn.Module):
    """Stochastic depth by hand: a sample skips the second convolution by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        kept = x.new_empty(len(x), 1, 1, 1).bernoulli_(0.7) / 0.7 if self.training else 1.0
        return self.head((x + kept * self.second(x).relu()).mean((2, 3)))


def normalise_weights() -> nn.Module:
    return flat(nn.utils.parametrizations.weight_norm(nn.Linear(64, 8)), nn.Tanh(), width=8)


def flatten_then(forward: Callable[[nn.Module, Tensor], Tensor]) -> nn.Module:
    return Called(lambda net, x: net.head(forward(net, x.flatten(1))), head=nn.Linear(64, 3))


def add_in_place(net: nn.Module, x: Tensor) -> Tensor:
    h = torch.zeros(len(x), 64)
    h += x
    return h


class Hooked(nn.Module):
    """A forward hook keeps what the first layer gives, and another scales it: both hold the network itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head, self.scale = nn.Linear(64, 8), nn.Linear(8, 3), nn.Parameter(torch.ones(8))
        self.kept: dict[str, Tensor] = {}
        self.first.register_forward_hook(lambda _, inputs, output: self.kept.update(first=output))
        self.first.register_forward_hook(lambda _, inputs, output: output * self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x.flatten(1)).relu()) + self.kept["first"].mean(1, keepdim=True)


class Sign(torch.autograd.Function):
    """Its gradient goes straight through."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient


def forget_layers() -> nn.Module:
    hidden = [nn.Linear(64, 8)]
    return Called(lambda net, x: net.head(hidden[0](x.flatten(1)).relu()), head=nn.Linear(8, 3))


VECTORISED: dict[str, Callable[[], nn.Module]] = {
    "frozen convolution": freeze,
    "padding token": lambda: read_words(nn.Embedding(4, 5, padding_idx=-3)),
    "sparse embedding": lambda: read_words(nn.Embedding(4, 5, sparse=True)),
    "bag": lambda: read_bag(),
    "bag with padding": lambda: read_bag(mode="sum", padding_idx=1),
    "largest of a bag": lambda: read_bag(mode="max", padding_idx=1),
    "tied embedding": tie,
    "scalar and spectrum": Scaled,
    "weight norm": normalise_weights,
    "hooks that hold it": Hooked,
    "linear on rows": lambda: sequence(nn.Linear(8, 5), nn.ReLU(), nn.Flatten(), nn.Linear(40, 3)),
    "linear on channels": lambda: sequence(
        nn.Conv2d(1, 2, 3, padding=1), nn.Linear(8, 5), nn.Flatten(), nn.Linear(80, 3)
    ),
}
SEQUENTIAL: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "whole counter": (lambda: Counted(torch.long, in_place=True), "buffers change"),
    "other counter": (lambda: Counted(torch.float, in_place=False), "buffers change"),
    "cumulative batch norm": (lambda: flat(nn.Linear(64, 8), nn.BatchNorm1d(8, momentum=None), width=8), "buffers"),
    "draws of its own": (Skipped, "draws random numbers of its own in training"),
    "packed sequences": (pack, "packed sequences are not vectorised"),
    "counted tokens": (lambda: read_words(nn.Embedding(4, 5, scale_grad_by_freq=True)), "scale_grad_by_freq"),
    "sums in place": (lambda: flatten_then(add_in_place), "in-place operations on new tensors"),
    "branches": (lambda: flatten_then(lambda _, x: x if x.sum() > 1e9 else -x), "deciding by values of samples"),
    "numbers": (lambda: flatten_then(lambda _, x: x + 0 * x.sum().item()), "reading numbers out of tensors"),
    "NumPy": (lambda: flatten_then(lambda _, x: x + 0 * float(x.numpy()[0, 0])), "reading tensors as NumPy arrays"),
    "masks": (lambda: flatten_then(lambda _, x: x + 0 * x[x > 0].sum()), "shapes that depend on values"),
    "experts by index": (
        lambda: flatten_then(lambda _, x: x.index_add(0, (x > 9).nonzero(as_tuple=True)[0], x[:0])),
        "shapes that depend on values",
    ),
    "recomputed": (
        lambda: Called(
            lambda net, x: net.head(checkpoint(net.inner, x.flatten(1), use_reentrant=False)),
            inner=nn.Sequential(nn.Linear(64, 8), nn.Tanh()),
            head=nn.Linear(8, 3),
        ),
        r"computed again in the backward pass \(torch.utils.checkpoint\), are not vectorised",
    ),
    "gradients of samples": (
        lambda: flatten_then(lambda _, x: x.clone().requires_grad_()),
        r"requires_grad_\(\) of a tensor in forward is not vectorised",
    ),
    "function of its own": (lambda: flatten_then(lambda _, x: Sign.apply(x)), "an autograd.Function without"),
    "data": (lambda: flatten_then(lambda _, x: x.data), r"reading \.data of a tensor is not vectorised"),
    "comparisons": (
        lambda: flatten_then(lambda _, x: x + 0 * torch.allclose(x, x)),
        "torch.allclose is not vectorised",
    ),
}
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "tuple": (lambda: Called(lambda net, x: (net.head(x.flatten(1)), x), head=nn.Linear(64, 3)), "returns a tuple"),
    "dict, with buffers": (
        lambda: Called(
            lambda net, x: {"y": net.head(net.norm(x.flatten(1)))}, norm=nn.BatchNorm1d(64), head=nn.Linear(64, 3)
        ),
        "returns a dict",
    ),
    "no weights": (lambda: Called(lambda net, x: x.flatten(1)[:, :3]), "no weights to train"),
    "lost samples": (lambda: Called(lambda net, x: net.a(x).squeeze(), a=nn.Conv2d(1, 3, 8)), "1 sample has shape"),
    "lazy": (
        lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(3)),
        r"1\.weight, 1\.bias have no shape .* give their layers",
    ),
    "complex": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3, dtype=torch.cfloat)),
        r"1\.weight, 1\.bias are complex",
    ),
    "double weights": (
        lambda: flat(nn.Linear(64, 8), width=8).double(),
        r"are torch\.float32 where its weights are torch\.float64",
    ),
    "layers in a list": (forget_layers, r"weights that are not its own and would not train, of shape \[8, 64\], \[8\]"),
    "max norm": (lambda: read_words(nn.Embedding(4, 5, max_norm=1.0)), "max_norm of words"),
}


@pytest.mark.parametrize("name", VECTORISED)
def test_unusual_networks_train_side_by_side(name, monkeypatch):
    method, population = FedAvg(Model(VECTORISED[name], classes=3), LOCAL), tiny_population((3, 14, 9, 6))
    slow = fit(method, Sequential, population, 2)[0].params
    plan = autograd_training.plan_autograd
    monkeypatch.setattr("kinfed.training.plan_autograd", lambda *how: replace(plan(*how), in_turn=False))
    assert_close(fit(method, Vectorised, population, 2)[0].params, slow)


@pytest.mark.filterwarnings("ignore:.*clients run 'eval")
@pytest.mark.parametrize("name", SEQUENTIAL)
def test_what_cannot_says_why_and_trains_sequentially(name):
    build, reason = SEQUENTIAL[name]
    method, population = FedAvg(Model(build, classes=3), LOCAL), tiny_population((3, 14, 9, 6))
    slow = fit(method, Sequential, population, 2)[0].params
    assert re.search(f"sequentially: .*{reason}", explain(method.model, population.x[:4]))
    with pytest.warns(UserWarning, match=f"{reason}.*: clients train sequentially"):
        assert_same_bits(fit(method, Vectorised, population, 2)[0].params, slow)


def repeat() -> nn.Module:
    def forward(net: nn.Module, x: Tensor) -> Tensor:
        counts = (x[:, 0].sum(2) > 0).sum(1)
        owner = torch.arange(len(x)).repeat_interleave(counts)
        return net.head(x.flatten(1)) + torch.zeros(len(x)).index_add(0, owner, torch.ones_like(owner) * 1.0)[:, None]

    return Called(forward, head=nn.Linear(64, 3))


@pytest.mark.parametrize(
    ("build", "reason"), [(pack, "packed sequences are not vectorised"), (repeat, "shapes that depend on values")]
)
def test_lengths_that_differ_between_clients_are_evaluated_sequentially(build, reason):
    p = tiny_population((20, 20, 20, 20))
    x = p.x.where(torch.arange(8)[:, None] < torch.arange(len(p.x))[:, None, None, None] % 7 + 1, 0)
    method = FedAvg(Model(build, classes=3), LOCAL)
    slow, fast = (engine(method, replace(p, x=x, train=p.test, test=p.train)) for engine in (Sequential, Vectorised))
    offer = Offer({"params": method.init(slow).params})
    expected = slow.run(evaluate, slow.clients, offer)
    with pytest.warns(UserWarning, match=f"{reason}.*: clients run 'evaluate' sequentially"):
        found = fast.run(evaluate, fast.clients, offer)
    assert_same_bits(found.send, expected.send)


@pytest.mark.filterwarnings("ignore:.*clients (train sequentially|run 'eval)")
def test_a_counter_that_forward_replaces_begins_anew_with_every_client():
    ends = []
    for in_place in (True, False):
        model = Model(lambda way=in_place: Counted(torch.long, in_place=way), classes=3)
        ends.append(fit(FedAvg(model, LOCAL), Sequential, tiny_population((3, 14, 9)), 2)[0].params)
    assert_same_bits(*ends)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_buffer_that_evaluation_changes_begins_anew_with_every_client(in_place):
    method = FedAvg(Model(lambda: Counted(torch.float, in_place, always=True), classes=3), LOCAL)
    slow, fast = (engine(method, tiny_population()) for engine in (Sequential, Vectorised))
    served = method.init(slow).params
    first, second, found = (
        fed.run(evaluate, fed.clients, Offer({"params": served})).send for fed in (slow, slow, fast)
    )
    assert_same_bits(first, second)
    assert_close(found, first)
    assert served["steps"] == 0
    outputs = (method.model.logits(served, slow.x[:3]) for _ in range(2))
    torch.testing.assert_close(*outputs, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*clients train sequentially")
@pytest.mark.parametrize("engine", [Sequential, Vectorised])
def test_what_a_network_draws_is_each_clients_own(engine):
    alike, method = tiny_population((9, 9)), FedAvg(Model(Skipped, classes=3), LocalTraining(1, 9, 0.05))
    twice = replace(alike, train=(alike.train[0], alike.train[0]))  # two clients of the same samples, in one batch
    fed = engine(method, twice)
    trained = fed.run(method.train, fed.clients, Offer({"params": method.init(fed).params})).stack("params")
    assert not torch.allclose(trained["head.weight"][0], trained["head.weight"][1], rtol=1e-3)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_train_is_refused_in_one_line(name):
    build, reason = REFUSED[name]
    with pytest.raises(ModelError, match=reason) as refusal:
        fit(FedAvg(Model(build, classes=3), LOCAL), Vectorised, tiny_population((3, 4)), 1)
    assert "\n" not in str(refusal.value)


def test_frozen_weights_stay_as_they_are():
    net = freeze()
    model = Model(net, classes=3)  # a module: the others are drawn anew
    assert_same_bits({"w": model.init()["0.weight"]}, {"w": net[0].weight})
    end = fit(FedAvg(model, LOCAL), Vectorised, tiny_population((3, 9)), 2)[0].params
    assert_same_bits({"w": end["0.weight"]}, {"w": net[0].weight})
    assert not torch.equal(end["0.bias"], model.init()["0.bias"])


def test_fixed_layers_may_have_buffers():
    net = lambda: flat(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), width=8)  # noqa: E731
    method, population = FedRep(Model(net, classes=3), LOCAL), tiny_population((1, 14, 6))  # with batches of one sample
    slow, fast = (fit(method, engine, population, 2) for engine in (Sequential, Vectorised))
    assert_close(to_flat(fast[0].shared), to_flat(slow[0].shared))
    assert_close(fast[1].memory, slow[1].memory)


@pytest.mark.parametrize("name", ["apfl", "fedem", "fedgroup", "stocfl"])
def test_networks_may_be_of_double_precision(name):
    people = tiny_population((9, 14, 6), classes=3)
    people = replace(people, x=people.x.double() / 255)
    more = {"clusters": 2} if name == "fedgroup" else {}
    model = Model(lambda: flat(nn.Linear(64, 8), nn.LayerNorm(8), width=8).double(), classes=3)
    state, fed = fit(METHODS[name](model, LOCAL, **more), Vectorised, people, 1)
    served = METHODS[name](model, LOCAL, **more).offer(state, fed.everyone, fed)
    models = [w for field, w in to_flat({**served.shared, **served.each}).items() if "/" in field]
    assert models and all(w.dtype == torch.double for w in models)


def test_widths_are_asked_for_once_not_by_every_client(monkeypatch):
    asked, width = [], Sequential.width
    monkeypatch.setattr(Sequential, "width", lambda fed, part: asked.append(1) or width(fed, part))
    fit(FedAvg(small_net(), LOCAL), Sequential, tiny_population((3, 4, 5, 6)), 1)
    assert len(asked) == 2 * 2  # to train, and to evaluate
