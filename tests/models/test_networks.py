import re

import pytest
import torch
from torch.testing import assert_close

from kinfed.config import load_config
from kinfed.config.assembly import model_for
from kinfed.data import OwnSettings, from_arrays
from kinfed.errors import ConfigError, ModelError
from kinfed.learning_tasks import NextToken
from kinfed.models import LEAST, MODELS, TAKES, TOKEN_SHAPE, count_tokens, make_autoencoder, make_model
from kinfed.models.autoencoders import Tiles, Windows
from kinfed.models.networks import SeriesConv


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("mlp_200", (1, 28, 28), 10, 159_010),
        ("mlp_200", (1, 28, 28), 47, 166_447),
        ("mlp_200", (1, 28, 28), 62, 169_462),
        ("leaf_cnn", (1, 28, 28), 62, 6_603_710),
        ("leaf_cnn", (1, 28, 28), 47, 6_572_975),
        ("lenet5", (1, 28, 28), 10, 44_426),
        ("lenet5", (3, 32, 32), 10, 62_006),
        ("flhc_cnn", (1, 28, 28), 10, 1_663_370),
        ("flhc_cnn", (1, 28, 28), 62, 1_690_046),
        ("repa_cnn", (1, 28, 28), 10, 582_026),
        ("repa_cnn", (1, 28, 28), 62, 608_702),
        ("repa_cnn", (3, 32, 32), 10, 878_538),
        ("resnet9", (3, 32, 32), 100, 6_621_540),
    ],
)
def test_networks_have_the_papers_number_of_parameters(name, shape, classes, parameters):
    assert make_model(name, shape, classes).parameters() == parameters


@pytest.mark.parametrize(
    ("shape", "latent", "encoder", "decoder"),
    [((1, 28, 28), 128, 25_956, 25_621), ((3, 32, 32), 128, 439_064, 438_659), ((3, 32, 32), 64, 406_232, 405_891)],
)
def test_autoencoders_have_the_papers_number_of_parameters(shape, latent, encoder, decoder):
    module = make_autoencoder("auto", shape, latent).build()
    sizes = {part: sum(p.numel() for p in getattr(module, part).parameters()) for part in ("encoder", "decoder")}
    assert sizes == {"encoder": encoder, "decoder": decoder}


def test_the_same_autoencoder_is_one_network():
    one = make_autoencoder("auto", (1, 8, 8), 4, 1)
    assert make_autoencoder("conv_ae", torch.Size((1, 8, 8)), 4, 1) is one
    others = [
        ("vector_ae", (1, 8, 8), 4, 1),
        ("auto", (1, 12, 8), 4, 1),
        ("auto", (1, 8, 8), 5, 1),
        ("auto", (1, 8, 8), 4),
    ]
    assert all(make_autoencoder(*other) != one for other in others)
    own = "kinfed.models.autoencoders:conv_ae"
    assert make_autoencoder(own, (1, 8, 8), 4) is make_autoencoder(own, (1, 8, 8), 4)


def test_samples_embedded_alone_are_normalised_by_their_own_statistics():
    network, x = make_autoencoder("auto", (3, 16, 16), 5), torch.rand(4, 3, 16, 16)
    weights = {name: w + 0.1 * torch.rand(w.shape) for name, w in network.init().items()}
    module = network.module_with(weights).train()
    one_by_one = torch.cat([module.encoder(image[None]) for image in x])
    assert_close(network.embed(weights, x, alone=True), one_by_one.detach(), atol=1e-4, rtol=0)
    several = torch.func.vmap(lambda part: network.embed(weights, part, alone=True))(x.view(2, 2, 3, 16, 16))
    assert_close(several.flatten(0, 1), one_by_one.detach(), atol=1e-4, rtol=0)
    assert not torch.allclose(network.embed(weights, x), one_by_one, atol=1e-2)


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 8, 8), (3, 32, 32), (1, 32, 32), (3, 28, 28)])
def test_autoencoders_give_images_back_in_their_shape(shape):
    network = make_autoencoder("auto", shape, 16)
    x = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    assert network.apply(network.init(), x).shape == x.shape
    assert network.embed(network.init(), x).shape == (2, 16)


@pytest.mark.parametrize("name", [name for name in MODELS if not TAKES.get(name)])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_every_classifier_takes_grey_and_colour_images(name, shape):
    make_model(name, shape, 7).check(torch.zeros(2, *shape, dtype=torch.uint8))


def test_a_token_network_sees_every_token_of_its_window():
    model = make_model("char_cnn", (80,), 63)
    x = torch.arange(81).remainder(63).repeat(81, 1)
    x[torch.arange(80), torch.arange(80)] += 1  # one token is another one in each sample; the last is as it was
    output = model.apply(model.init(), (x % 63)[:, :80])
    assert bool((output[:80] != output[80]).any(1).all())


def test_an_lstm_predicts_the_token_after_each_from_those_before():
    x = torch.arange(12).view(2, 6)
    model = make_model("char_lstm_each", (6,), 63, task=NextToken())
    model.check(x)
    later = x.clone()
    later[:, 4:] += 20
    one, other = (model.apply(model.init(), tokens) for tokens in (x, later))
    assert one.shape == (2, 6, 63) and torch.equal(one[:, :4], other[:, :4]) and not torch.equal(one[:, 4], other[:, 4])
    assert_close(make_model("char_lstm", (6,), 63).apply(model.init(), x), one[:, -1])


def test_targets_of_each_token_need_outputs_for_each():
    x = torch.arange(12).view(2, 6)
    with pytest.raises(ModelError, match=r"targets are the token after each of 6, .* take char_lstm_each"):
        make_model("char_cnn", (6,), 63, task=NextToken()).check_sequences(x, x)
    with pytest.raises(ModelError, match=r"targets are the next token alone, .* take char_lstm or char_cnn"):
        make_model("char_lstm_each", (6,), 63, task=NextToken()).check_sequences(x, x[:, 0])
    make_model("char_lstm_each", (6,), 63, task=NextToken()).check_sequences(x, x)


def test_a_series_network_takes_series_and_a_token_network_tokens():
    make_model("har_cnn", (9, 128), 6).check(torch.zeros(2, 9, 128))
    for name in ("char_cnn", "char_lstm"):
        make_model(name, (3,), 63).check(torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ConfigError, match=r"'har_cnn' is for series \[channels, length\], got samples of shape \[80\]"):
        make_model("har_cnn", (80,), 6)


def test_a_convolution_of_series_equals_its_product():
    layer, series = SeriesConv(3, 4, 5), torch.rand(2, 3, 20)
    assert torch.allclose(layer.product(series), layer(series), atol=1e-6)


def test_an_unknown_model_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'lenet5'"):
        make_model("lenet", (1, 28, 28), 10)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("cnn", "'lenet5' or 'leaf_cnn' or 'flhc_cnn' or 'repa_cnn'"),
        ("mlp", "'mlp_200'"),
        ("rnn", "'lstm'"),
        ("LogReg", "'linear'"),
    ],
)
def test_a_kind_of_network_names_those_of_the_kind(name, meant):
    with pytest.raises(ConfigError, match=rf"^unknown model '{name}': did you mean {meant}\?; known: "):
        make_model(name, (1, 28, 28), 10)


def test_a_convolutional_autoencoder_needs_sides_that_four_divides():
    with pytest.raises(ConfigError, match=r"shape \[1, 30, 30\]: use 'auto'"):
        make_autoencoder("conv_ae", (1, 30, 30))


@pytest.mark.parametrize("shape", [(1, 30, 30), (13,), (9, 128), (2, 5)])
def test_an_autoencoder_gives_samples_of_any_shape_back(shape):
    network = make_autoencoder("auto", shape, 8)
    x = torch.rand(2, *shape)
    assert network.apply(network.init(), x).shape == x.shape and network.embed(network.init(), x).shape == (2, 8)


def test_an_autoencoder_takes_tokens_as_frequencies():
    network, x = make_autoencoder("auto", TOKEN_SHAPE, 8), torch.tensor([[0, 0, 1, 2]])
    assert network.embed(network.init(), x).shape == (1, 8)
    counts = count_tokens(x)
    assert counts[0, :3].tolist() == [1.0, 0.5, 0.5] and counts.shape == (1, *TOKEN_SHAPE)
    assert float(counts[0, 256:].sum()) == pytest.approx(3 / 3**0.5)


@pytest.mark.parametrize("bias", [True, False])
def test_convolutions_as_products_are_the_same_convolutions(bias):
    images = torch.rand(3, 2, 8, 6, generator=torch.Generator().manual_seed(0))
    for layer in (Windows(2, 5, 3, padding=1, bias=bias), Tiles(2, 5, 2, stride=2, bias=bias)):
        torch.testing.assert_close(layer.product(images), layer(images))


def test_gradients_flow_through_products_as_through_convolutions():
    draw = torch.Generator().manual_seed(0)
    images, layer = torch.rand(4, 3, 2, 8, 6, generator=draw), Windows(2, 5, 3, padding=1)
    weights = [torch.rand(4, *w.shape, generator=draw) for w in layer.parameters()]
    gradients = []
    for call in (layer.product, layer.forward):
        leaves = [t.clone().requires_grad_() for t in (images, *weights)]

        def made(image, weight, bias, call=call):
            layer.forward = call
            try:
                return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (image,))
            finally:
                del layer.forward

        made_by_all = torch.func.vmap(made)(*leaves)
        gradients.append(torch.autograd.grad(made_by_all.square().sum(), leaves))
    torch.testing.assert_close(*gradients)


def test_samples_that_are_no_images_are_for_the_plain_network_alone():
    make_model("mlp_200", (9,), 2).check(torch.rand(2, 9))
    with pytest.raises(ConfigError, match=r"'lenet5' is for images .* got samples of shape \[9\]: take mlp_200"):
        make_model("lenet5", (9,), 2)


@pytest.mark.parametrize(("name", "least"), LEAST.items())
def test_image_networks_take_all_sides_from_their_least_on_and_no_smaller_ones(name: str, least: int):
    sides = [least, least + 4, least + 8] if name == "vit" else [least, least + 1, least + 2, least + 3, 2 * least]
    for side in sides:
        make_model(name, (1, side, sides[-1]), 3).check(torch.rand(2, 1, side, sides[-1]))
    with pytest.raises(
        ConfigError, match=rf"'{name}' needs image sides of at least {least}, got \d+x{least - 1}: take"
    ):
        make_model(name, (1, 2 * least, least - 1), 3)


@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 32, 3)])
def test_images_with_channels_last_are_told_to_be_transposed(shape: tuple[int, ...], caplog: pytest.LogCaptureFixture):
    said = r"looks like \[height, width, channels\], so give x\.transpose\(0, 3, 1, 2\)"
    for name in LEAST:
        with pytest.raises(ConfigError, match=said):
            make_model(name, shape, 3)
    x = torch.rand(20, *shape)
    samples = from_arrays(x, torch.arange(20) % 2, [0] * 10 + [1] * 10)
    model_for(load_config(None, ["model=resnet18"]), samples)
    assert re.search(said, caplog.text)
    caplog.clear()
    model_for(load_config(None, ["model=mlp_200"]), samples)
    assert not caplog.text


@pytest.mark.parametrize("model", ["char_cnn", "char_lstm", "mlp_200", "linear"])
def test_token_ids_and_numbers_are_told_apart_in_kinfeds_words(model: str):
    x, y, owner = torch.arange(100).view(20, 5) % 7, torch.arange(20) % 2, [0] * 10 + [1] * 10
    wants_tokens = model.startswith("char")
    samples = from_arrays(x, y, owner, OwnSettings(tokens=not wants_tokens, classes=7))
    got, wanted = ("numbers", "token ids") if wants_tokens else ("token ids", "numbers")
    with pytest.raises(ConfigError, match=f"model '{model}' is for {wanted}, and samples are 5 {got}: take "):
        model_for(load_config(None, [f"model={model}"]), samples)


def test_grey_images_without_an_axis_of_channels_are_told_to_get_one():
    with pytest.raises(ConfigError, match=r"got samples of shape \[28, 28\]: give grey images as x\[:, None\], take"):
        make_model("leaf_cnn", (28, 28), 2)
