import pytest
import torch
from torch import nn

from kinfed.models import Model, evaluation, make_model
from tests.problems import small_net


class Seen(nn.Module):
    """A convolution that notes how many samples it is given."""

    def __init__(self, seen: list[int]):
        super().__init__()
        self.inner, self.last, self.seen = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(256, 3), seen

    def forward(self, x):
        self.seen.append(len(x))
        return self.last(self.inner(x).flatten(1))

    def __deepcopy__(self, memo):
        own = Seen(self.seen)
        own.load_state_dict(self.state_dict())
        return own.train(self.training)


LARGE = 4 * 8 * 8 * 4  # bytes of a sample's largest activation in it


def test_on_a_cpu_samples_are_evaluated_in_parts_that_its_caches_hold(monkeypatch):
    seen = []
    model, x = Model(lambda: Seen(seen), classes=3), torch.rand(20, 1, 8, 8)
    whole = model.logits(model.init(), x)
    assert model.probe(model.evaluation_template, x).largest == LARGE
    monkeypatch.setattr(evaluation, "LARGEST", 7 * LARGE + 1)
    seen.clear()
    torch.testing.assert_close(model.logits(model.init(), x), whole)
    assert seen == [7, 7, 6]
    seen.clear()
    with torch.enable_grad():
        weights = {name: w.requires_grad_() for name, w in model.init().items()}
        model.logits(weights, x).sum().backward()
    assert seen == [20] and weights["last.weight"].grad is not None, "autograd is left alone"


def test_clients_are_evaluated_side_by_side_unless_their_activations_are_large(monkeypatch):
    seen = []
    model, x = Model(lambda: Seen(seen), classes=3), torch.rand(3, 20, 1, 8, 8)
    models = {name: torch.stack([w, 2 * w, 3 * w]) for name, w in model.init().items()}
    model.logits(model.init(), x[0])
    seen.clear()
    side_by_side = torch.func.vmap(model.logits)(models, x)
    assert seen == [20]
    monkeypatch.setattr(evaluation, "SIDE_BY_SIDE", 20 * LARGE - 1)
    monkeypatch.setattr(evaluation, "LARGEST", 10 * LARGE)
    seen.clear()
    torch.testing.assert_close(torch.func.vmap(model.logits)(models, x), side_by_side)
    assert seen == [10] * 6
    shared = torch.func.vmap(model.logits, in_dims=(None, 0))(model.init(), x)
    torch.testing.assert_close(shared[1], model.logits(model.init(), x[1]))
    torch.testing.assert_close(shared[0], side_by_side[0])


def test_a_gradient_through_an_evaluation_is_that_of_the_whole(monkeypatch):
    model, x = small_net(), torch.rand(20, 1, 8, 8)
    rise = torch.func.grad(lambda weights, x: model.logits(weights, x).square().sum())
    want = rise(model.init(), x)
    for name in ("LARGEST", "SIDE_BY_SIDE"):
        monkeypatch.setattr(evaluation, name, 1)
    torch.testing.assert_close(rise(model.init(), x), want)
    torch.testing.assert_close(
        torch.func.vmap(rise, in_dims=(None, 0))(model.init(), x[None])["1.weight"][0], want["1.weight"]
    )


@pytest.mark.parametrize("name", ["vit", "lstm"])
def test_attention_and_recurrent_layers_are_evaluated_by_torchs_own_functions(name, monkeypatch):
    model, x = make_model(name, (3, 32, 32), 3), torch.rand(2, 5, 3, 32, 32)
    own = [model.logits(model.init(seed), x[seed]) for seed in range(2)]
    monkeypatch.setattr(evaluation, "BatchOperations", None)  # what a vmap needs
    models = {key: torch.stack([model.init(0)[key], model.init(1)[key]]) for key in model.init()}
    torch.testing.assert_close(torch.func.vmap(model.logits)(models, x), torch.stack(own))
