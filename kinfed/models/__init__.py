"""Networks: classifiers and auto-encoders, built-in ones by name and any `torch.nn.Module` a user brings."""

from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from typing import cast

from torch import nn

from kinfed.errors import ConfigError
from kinfed.learning_tasks import Classification, LearningTask
from kinfed.models.autoencoders import conv_ae, is_series, repa_ae, repa_series, residual_ae, series_ae, vector_ae
from kinfed.models.inputs import TOKEN_SHAPE, TOKENS, count_tokens, encoder_shape, encoder_shapes
from kinfed.models.mixture import make_mixture, mix_models
from kinfed.models.model import (
    AutoEncoder,
    EncoderNetwork,
    FixedGradient,
    Model,
    SupervisedAutoEncoder,
    encoder_of,
    fix_weights,
    is_last_layer,
    is_normalisation,
)
from kinfed.models.module_checks import from_module
from kinfed.models.network import Gradient, GradientFn, Network, NetworkGradient
from kinfed.models.networks import (
    Shape,
    Sizes,
    char_cnn,
    char_lstm,
    char_lstm_each,
    flhc_cnn,
    har_cnn,
    leaf_cnn,
    lenet5,
    lenet5_dropout,
    linear,
    lstm,
    mlp_200,
    repa_cnn,
    resnet9,
    resnet18,
    resnet20,
    vit,
)
from kinfed.registry import import_function, look_up

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp_200": mlp_200,
    "leaf_cnn": leaf_cnn,
    "lenet5": lenet5,
    "flhc_cnn": flhc_cnn,
    "repa_cnn": repa_cnn,
    "resnet9": resnet9,
    "lenet5_dropout": lenet5_dropout,
    "resnet20": resnet20,
    "resnet18": resnet18,
    "vit": vit,
    "lstm": lstm,
    "linear": linear,
    "har_cnn": har_cnn,
    "char_cnn": char_cnn,
    "char_lstm": char_lstm,
    "char_lstm_each": char_lstm_each,
}
IMAGES = "images [channels, height, width]"
CHANNELS = (1, 3)  # of images
LEAST = {  # sides of images
    "leaf_cnn": 4, "flhc_cnn": 4, "vit": 4, "resnet9": 8, "lenet5": 16, "lenet5_dropout": 16, "repa_cnn": 16,
}  # fmt: skip
TOKEN_MODELS = ("char_cnn", "char_lstm", "char_lstm_each")
TAKES = {"mlp_200": "", "linear": "", "har_cnn": "series [channels, length]"}
TAKES |= dict.fromkeys(TOKEN_MODELS, "token ids [length]")
AUTOENCODERS: dict[str, Callable[..., nn.Module]] = {
    "conv_ae": conv_ae,
    "residual_ae": residual_ae,
    "series_ae": series_ae,
    "vector_ae": vector_ae,
}


def make_model(name: str, shape: Sizes, classes: int, seed: int = 0, task: LearningTask | None = None) -> Model:
    """The built-in network of this name for samples of this shape, and so many classes or numbers; a classifier."""
    build = look_up(name, MODELS, "model")
    wanted = TAKES.get(name, IMAGES)
    if wanted and len(shape) != wanted.count(",") + 1:
        remedy = "give grey images as x[:, None], " if wanted == IMAGES and len(shape) == 2 else ""
        raise ConfigError(
            f"model '{name}' is for {wanted}, got samples of shape {list(shape)}: {remedy}take mlp_200, or a model of "
            "your own"
        )
    if min(shape[1:], default=0) < LEAST.get(name, 0):
        remedy = explain_layout(name, shape) or "take mlp_200, or a model of your own"
        raise ConfigError(
            f"model '{name}' needs image sides of at least {LEAST[name]}, got {shape[1]}x{shape[2]}: {remedy}"
        )
    return Model(partial(build, shape, classes), seed=seed, classes=classes, task=task or Classification())


def explain_layout(name: str, shape: Sizes) -> str:
    """What to do where samples look like images [height, width, channels], and the network wants others; else empty."""
    if TAKES.get(name, IMAGES) != IMAGES or ":" in name or len(shape) != 3:
        return ""
    is_last = shape[2] in CHANNELS and shape[0] not in CHANNELS
    return f"{list(shape)} looks like [height, width, channels], so give x.transpose(0, 3, 1, 2)" if is_last else ""


def make_autoencoder(name: str, shape: Sizes, latent: int = 128, seed: int = 0) -> AutoEncoder:
    """The auto-encoder of this name, or a function (shape, latent) of one's own; `auto` chooses by the shape."""
    name = choose_autoencoder(shape) if name == "auto" else name
    build = find_autoencoder(name)
    if ":" in name:
        return _share_network(seed, build_own, name, build, tuple(shape), latent)
    if name in ("conv_ae", "residual_ae") and (len(shape) != 3 or shape[1] % 4 or shape[2] % 4):
        raise ConfigError(
            f"auto-encoder '{name}' needs images whose sides 4 divides, got samples of shape {list(shape)}: use 'auto'"
        )
    if name == "series_ae" and not is_series(shape):
        raise ConfigError(f"series_ae needs series [channels, 28 or more], got samples of shape {list(shape)}")
    return _share_network(seed, build, tuple(shape), latent)


def find_autoencoder(name: str) -> Callable[..., nn.Module]:
    """What builds the auto-encoder of this name; ConfigError where there is none of it."""
    if ":" in name:
        return cast("Callable[..., nn.Module]", import_function(name, "auto-encoder"))
    return look_up(name, AUTOENCODERS, "auto-encoder")


@lru_cache(maxsize=8)
def _share_network(seed: int, build: Callable[..., nn.Module], *parts: Hashable) -> AutoEncoder:
    """The same network for the same call: CUDA graphs of its steps, and what was found out of it, are kept by it."""
    return AutoEncoder(partial(build, *parts), seed=seed)


def choose_autoencoder(shape: Sizes) -> str:
    """The auto-encoder that FLT used for images of so many channels; for other samples, one that takes them."""
    if len(shape) == 3 and shape[1] % 4 == shape[2] % 4 == 0:
        return "conv_ae" if shape[0] == 1 else "residual_ae"
    return "series_ae" if is_series(shape) else "vector_ae"


def build_own(name: str, build: Callable[..., object], shape: Sizes, latent: int) -> nn.Module:
    """What a function of the user's own builds; it must have parts `encoder` and `decoder`."""
    found = build(shape, latent)
    if not (isinstance(found, nn.Module) and hasattr(found, "encoder") and hasattr(found, "decoder")):
        raise ConfigError(
            f"auto-encoder '{name}' must be a function (shape, latent) -> torch.nn.Module with parts encoder and "
            f"decoder, got a {type(found).__name__}"
        )
    return found


__all__ = [
    "AUTOENCODERS", "LEAST", "MODELS", "TAKES", "TOKENS", "TOKEN_SHAPE", "AutoEncoder", "EncoderNetwork",
    "FixedGradient", "Gradient", "GradientFn", "Model", "Network", "NetworkGradient", "Shape", "Sizes",
    "SupervisedAutoEncoder", "choose_autoencoder", "count_tokens", "encoder_of", "encoder_shape", "encoder_shapes",
    "explain_layout", "find_autoencoder", "fix_weights", "from_module", "is_last_layer", "is_normalisation",
    "make_autoencoder", "make_mixture", "make_model", "mix_models", "repa_ae", "repa_series",
]  # fmt: skip
