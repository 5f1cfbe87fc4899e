import pytest
import torch
from torch import nn

from kinfed.errors import ModelError, SequentialOnly
from kinfed.models import Model, from_module
from tests.models.test_model import batch, batch_norm_net

IMAGES = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
WORDS = torch.zeros(2, 12, dtype=torch.long)


class Called(nn.Module):
    """Its forward is a function of its parts and the samples."""

    def __init__(self, forward, *parts):
        super().__init__()
        self.parts, self.call = nn.ModuleList(parts), forward

    def forward(self, x):
        return self.call(self.parts, x)


def images(forward, *parts):
    return Model(from_module(Called(forward, *parts)), classes=3), IMAGES


def sequence(*parts):
    return Model(from_module(nn.Sequential(*parts)), classes=3), IMAGES


def words(forward):
    return Model(lambda: Called(forward, nn.Embedding(2, 4), nn.Linear(4, 3)), classes=3), WORDS


class Silent(nn.Linear):
    """Says nothing at first."""

    def reset_parameters(self):
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


def last(parts, x):
    return parts[1](parts[0](x[:, 0])[0][:, -1])


MIXING = {
    "mean of samples": images(lambda parts, x: parts[0](x.flatten(1) - x.flatten(1).mean(0)), nn.Linear(64, 3)),
    "silent at first": images(lambda parts, x: parts[0](x.flatten(1) - x.flatten(1).mean(0)), Silent(64, 3)),
    "brightest of all": images(lambda parts, x: parts[0](x.flatten(1) / x.max()), nn.Linear(64, 3)),
    "darkest of all": images(lambda parts, x: parts[0](x.flatten(1) - x.min()), nn.Linear(64, 3)),
    "softmax over samples": images(lambda parts, x: parts[0](x.flatten(1)).softmax(0), nn.Linear(64, 3)),
    "samples before": images(lambda parts, x: parts[0](x.flatten(1)).cumsum(0), nn.Linear(64, 3)),
    "samples as time": images(last, nn.LSTM(8, 4), nn.Linear(4, 3)),
    "words": words(lambda parts, x: parts[1](parts[0](x).mean(1) - parts[0](x).mean((0, 1)))),
    "batch norm without memory": sequence(
        nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False), nn.Linear(64, 3)
    ),
}


@pytest.mark.parametrize(("model", "x"), MIXING.values(), ids=MIXING)
def test_a_network_whose_output_depends_on_other_samples_is_refused(model, x):
    with pytest.raises(ModelError, match="depends on the other samples of its batch"):
        model.check(x)


APART = {
    "dropout": sequence(nn.Flatten(), nn.Dropout(), nn.Linear(64, 3)),
    "dropout in evaluation": images(lambda parts, x: parts[0](nn.functional.dropout(x.flatten(1))), nn.Linear(64, 3)),
    "batch norm": (batch_norm_net(), IMAGES),
    "group norm": sequence(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 3)),
    "instance norm": sequence(nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4), nn.Flatten(), nn.Linear(144, 3)),
    "layer norm": sequence(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 3)),
    "lstm": images(last, nn.LSTM(8, 4, batch_first=True), nn.Linear(4, 3)),
    "words": words(lambda parts, x: parts[1](parts[0](x).mean(1))),
}


@pytest.mark.parametrize("name", APART)
def test_a_network_that_keeps_samples_apart_is_taken(name):
    model, x = APART[name]
    model.check(x)
    assert not model.probe(model.template, x).flaw


def test_a_network_that_mixes_samples_in_training_alone_refuses_padded_batches():
    class Centred(nn.Linear):
        def forward(self, x):
            return super().forward(x.flatten(1) - x.flatten(1).mean(0) if self.training else x.flatten(1))

    model = Model(lambda: Centred(64, 3), classes=3)
    model.check(IMAGES)
    with pytest.raises(SequentialOnly, match="mixes the samples of a batch"):
        model.gradient(model.init(), batch(6, 5))


class Counting(nn.Linear):
    """Counts its passes in a buffer."""

    def __init__(self):
        super().__init__(64, 3)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        self.passes += 1
        return super().forward(x.flatten(1))


def test_a_network_whose_buffers_change_refuses_padded_batches():
    model = Model(Counting, classes=3)
    with pytest.raises(SequentialOnly, match="buffers change in training"):
        model.gradient(model.init(), batch(6, 5))


def test_a_network_is_probed_once():
    calls = []
    model, _ = images(lambda parts, x: calls.append(len(x)) or parts[0](x.flatten(1)), nn.Linear(64, 3))
    model.check(IMAGES)
    model.check(IMAGES)
    expected = [2, 3, 3, 3, 1, 2, 1]
    assert calls == expected, "a check, two probes of padding, two of activations, one of weights, and one sample alone"


def test_probing_a_network_leaves_the_global_generator_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    APART["dropout in evaluation"][0].check_independence(IMAGES)
    assert torch.equal(torch.get_rng_state(), before)
