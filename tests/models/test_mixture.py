"""A mixture of networks: its output is that of its components, mixed as the task says."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from kinfed.client import Batch
from kinfed.learning_tasks import Classification, MultiLabel, NextToken, Regression
from kinfed.models import Model, make_mixture, mix_models
from kinfed.params import count, select, stack
from tests.problems import small_net

SHARES = torch.tensor([0.2, 0.5, 0.3])


def three(model: Model) -> dict[str, torch.Tensor]:
    return stack([model.init(seed) for seed in (1, 2, 3)])


@pytest.mark.parametrize(
    ("task", "predict"),
    [
        (Classification(), lambda out: out.softmax(-1)),
        (NextToken(), lambda out: out.softmax(-1)),
        (MultiLabel(), torch.sigmoid),
        (Regression(mean=2.0, std=3.0), lambda out: 3 * out + 2),
    ],
)
def test_predictions_are_mixed(task, predict):
    model = Model(lambda: nn.Linear(4, 3), classes=3, task=task)
    models, x = three(model), torch.randn(6, 4)
    output = make_mixture(model, 3).logits(mix_models(models, SHARES), x)
    wanted = sum(SHARES[m] * predict(model.logits(select(models, m), x)) for m in range(count(models)))
    assert_close(task.predict(output), wanted)


def test_one_component_has_its_own_output_and_a_share_of_zero_has_none():
    model, x = small_net(), torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8)
    models = three(model)
    for m in range(3):
        alone = make_mixture(model, 3).logits(mix_models(models, torch.eye(3)[m]), x)
        assert_close(alone, model.logits(select(models, m), x).log_softmax(1))


def test_it_has_the_weights_and_statistics_of_all_components():
    model = Model(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), classes=3)
    mixture, params = make_mixture(model, 3), mix_models(three(model), SHARES)
    assert mixture.init().keys() == params.keys() and len(mixture.buffers) == 3 * 2 + 1


def test_training_moves_components_and_not_shares():
    model = small_net()
    mixture, params = (
        make_mixture(model, 2),
        mix_models(stack([model.init(1), model.init(2)]), torch.tensor([0.4, 0.6])),
    )
    x, mask = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8), torch.ones(4, dtype=torch.bool)
    weights, buffers = mixture.gradient(params, Batch(x, torch.arange(4) % 3, mask, mask.any()))
    assert all(g.any() for g in weights.values()) and torch.equal(buffers["shares"], params["shares"])


def test_it_is_a_module_that_other_programs_can_load():
    model = small_net()
    mixture, params = make_mixture(model, 3), mix_models(three(model), SHARES)
    x = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    assert_close(mixture.module_with(params).eval()(mixture.inputs(x)), mixture.logits(params, x))
