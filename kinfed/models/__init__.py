"""Networks: classifiers and auto-encoders, built-in ones by name and any `torch.nn.Module` a user brings."""

from collections.abc import Callable
from functools import partial

from torch import nn

from kinfed.errors import ConfigError
from kinfed.learning_tasks import Classification, LearningTask
from kinfed.models.autoencoders import conv_ae, repa_ae, residual_ae
from kinfed.models.model import (
    AutoEncoder,
    EncoderNetwork,
    FixedGradient,
    Model,
    SupervisedAutoEncoder,
    encoder_of,
    fix_weights,
    has_decoder,
    is_last_layer,
    is_normalisation,
)
from kinfed.models.module_checks import from_module
from kinfed.models.network import Gradient, GradientFn, Network, NetworkGradient
from kinfed.models.networks import (
    Shape,
    Sizes,
    char_cnn,
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
from kinfed.registry import look_up

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
}
IMAGES = "images [channels, height, width]"
TAKES = {"mlp_200": "", "linear": "", "har_cnn": "series [channels, length]", "char_cnn": "token ids [length]"}
AUTOENCODERS: dict[str, Callable[[Shape, int], nn.Module]] = {"conv_ae": conv_ae, "residual_ae": residual_ae}


def make_model(name: str, shape: Sizes, classes: int, seed: int = 0, task: LearningTask | None = None) -> Model:
    """The built-in network of this name for samples of this shape, and so many classes or numbers; a classifier."""
    build = look_up(name, MODELS, "model")
    wanted = TAKES.get(name, IMAGES)
    if wanted and len(shape) != wanted.count(",") + 1:
        raise ConfigError(
            f"model '{name}' is for {wanted}, got samples of shape {list(shape)}: take mlp_200, or a model of your own"
        )
    return Model(partial(build, shape, classes), seed=seed, classes=classes, task=task or Classification())


def make_autoencoder(name: str, shape: Shape, latent: int = 128, seed: int = 0) -> AutoEncoder:
    """The built-in auto-encoder of this name; `auto` takes the one FLT used for so many channels."""
    if name == "auto":
        name = "conv_ae" if shape[0] == 1 else "residual_ae"
    if shape[1] % 4 or shape[2] % 4:
        raise ConfigError(f"auto-encoders need image sides that 4 divides, got {shape[1]}x{shape[2]}")
    return AutoEncoder(partial(look_up(name, AUTOENCODERS, "auto-encoder"), shape, latent), seed=seed)


__all__ = [
    "AUTOENCODERS", "MODELS", "AutoEncoder", "EncoderNetwork", "FixedGradient", "Gradient", "GradientFn", "Model",
    "Network", "NetworkGradient", "Shape", "SupervisedAutoEncoder", "encoder_of", "fix_weights", "from_module",
    "has_decoder", "is_last_layer", "is_normalisation", "make_autoencoder", "make_model", "repa_ae",
]  # fmt: skip
