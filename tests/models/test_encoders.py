import math

import pytest
import torch

from kinfed.client import Batch
from kinfed.errors import ConfigError
from kinfed.models import SupervisedAutoEncoder, make_model, repa_ae


def parameters(module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("shape", "classes", "sizes"),
    [
        ((1, 28, 28), 10, (78_688, 78_705, 25_290)),
        ((3, 32, 32), 10, (78_976, 79_219, 25_290)),
        ((1, 28, 28), 62, (78_688, 78_705, 28_670)),
    ],
)
def test_its_parts_have_the_authors_number_of_parameters(shape, classes, sizes):
    module = repa_ae(shape, classes)
    assert (parameters(module.encoder), parameters(module.decoder), parameters(module.classifier)) == sizes


@pytest.mark.parametrize("side", [28, 32])
def test_the_decoder_of_published_sides_goes_the_published_way(side):
    x, sides = torch.zeros(1, 96, 2, 2), []
    for layer in list(repa_ae((1, side, side), 10).decoder)[1:]:
        x = layer(x)
        sides.append(x.shape[-1])
    assert sides == [3, 7, 13 if side == 28 else 15, side]


@pytest.mark.parametrize(
    "shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (1, 16, 16), (3, 64, 64), (1, 30, 20), (1, 4, 6)]
)
def test_it_gives_images_back_in_their_shape_beside_the_logits(shape):
    module, x = repa_ae(shape, 7), torch.rand(2, *shape)
    embedding = module.encoder(x)
    assert embedding.dim() == 2 and embedding.shape[1] >= 384
    assert module.decoder(embedding).shape == x.shape
    assert torch.equal(module(x)[:, -7:], module.classifier(embedding))
    assert torch.equal(module(x)[:, :-7], module.decoder(embedding).flatten(1))


@pytest.mark.parametrize(("share", "wanted"), [(0.0, math.log(4)), (1.0, 0.5), (0.1, 0.05 + 0.9 * math.log(4))])
def test_the_loss_weighs_both_heads(share, wanted):
    # by hand: pixels off by 1 and 0 have an error of 1/2, four equal logits a surprise of log 4
    network = SupervisedAutoEncoder(torch.nn.Identity, classes=4, reconstruction=share)
    x, heads = torch.tensor([[[[0.0, 1.0]]]]), [torch.tensor([[1.0, 1.0]]), torch.zeros(1, 4)]
    output = torch.cat(heads[(1 if share == 0 else 0) : (1 if share == 1 else 2)], 1)
    batch = Batch(x, torch.tensor([2]), torch.tensor([True]), torch.tensor(True))
    assert network.loss_of(output, batch).tolist() == pytest.approx([wanted])


@pytest.mark.parametrize(("share", "missing"), [(0.0, "decoder"), (1.0, "classifier")])
def test_a_head_without_a_share_of_the_loss_is_left_out(share, missing):
    module = repa_ae((1, 8, 8), 3, share)
    assert not any(name.startswith(missing) for name, _ in module.named_parameters())


@pytest.mark.parametrize("shape", [(1, 27, 28), (1, 2, 2)])
def test_other_sides_are_refused(shape):
    with pytest.raises(ConfigError, match=f"{shape[1]}x{shape[2]}"):
        repa_ae(shape, 10)


def test_the_classifier_needs_sides_of_sixteen():
    with pytest.raises(ConfigError, match="at least 16, got 8x8"):
        make_model("repa_cnn", (1, 8, 8), 10).init()
    make_model("repa_cnn", (1, 16, 16), 10).check(torch.zeros(2, 1, 16, 16))


def test_an_encoder_takes_samples_of_a_model_of_double_precision():
    encoder = SupervisedAutoEncoder(lambda: repa_ae((1, 8, 8), 3), classes=3)
    x = torch.rand(2, 1, 8, 8)
    torch.testing.assert_close(encoder.embed(encoder.init(), x.double()), encoder.embed(encoder.init(), x))
