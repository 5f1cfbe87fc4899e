"""The papers' classifiers as plain torch modules (methods and sizes: FLT, FLIS, FL+HC, REPA, LEAF)."""

from math import prod

import torch
from torch import Tensor, nn

from kinfed.errors import ConfigError

Shape = tuple[int, int, int]  # channels, height, width
Sizes = tuple[int, ...]  # of a sample


def mlp_200(shape: Sizes, classes: int) -> nn.Module:
    """One hidden layer of 200 (FLT, IFCA), for samples of any shape; no dropout, the papers have none."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 200), nn.ReLU(), nn.Linear(200, classes))


def linear(shape: Sizes, classes: int) -> nn.Module:
    """One linear layer, for samples of any shape: logistic or linear regression (FLamby's baseline)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes))


def leaf_cnn(shape: Shape, classes: int, hidden: int = 2048) -> nn.Module:
    """LEAF's CNN: 5x5 convolutions to 32 and 64 channels, 2048 units (FLT, IFCA)."""
    channels, height, width = shape
    flat = 64 * (height // 4) * (width // 4)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU(), nn.Linear(hidden, classes),
    )  # fmt: skip


def flhc_cnn(shape: Shape, classes: int) -> nn.Module:
    """FL+HC's CNN: as LEAF's with 512 units ("same" padding, McMahan's network)."""
    return leaf_cnn(shape, classes, hidden=512)


def repa_cnn(shape: Shape, classes: int) -> nn.Module:
    """REPA's CNN for its clusters: as FL+HC's without padding (its authors' later code)."""
    channels, height, width = shape
    flat = 64 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(flat, 512), nn.ReLU(), nn.Linear(512, classes),
    )  # fmt: skip


def lenet5(shape: Shape, classes: int) -> nn.Module:
    """LeNet-5 for 1 or 3 channels (FLIS, FLT's CNN for CIFAR)."""
    channels, height, width = shape
    flat = 16 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(flat, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes),
    )  # fmt: skip


class Residual(nn.Module):
    """x + block(x)."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        residual: Tensor = self.block(x)
        return x + residual


def _block(channels: int, wider: int, pool: bool = False) -> nn.Sequential:
    parts = [nn.Conv2d(channels, wider, 3, padding=1), nn.GroupNorm(32, wider), nn.ReLU()]
    return nn.Sequential(*parts, nn.MaxPool2d(2)) if pool else nn.Sequential(*parts)


class Shortcut(nn.Module):
    """relu(block(x) + short(x))."""

    def __init__(self, block: nn.Module, short: nn.Module) -> None:
        super().__init__()
        self.block, self.short = block, short

    def forward(self, x: Tensor) -> Tensor:
        return (self.block(x) + self.short(x)).relu()  # type: ignore[no-any-return]


def _normalise(channels: int, wider: int, size: int, stride: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(channels, wider, size, stride, size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(wider))


def _shortcuts(channels: int, wider: int, count: int, stride: int) -> list[nn.Module]:
    """Some residual blocks with BatchNorm, the first with a stride."""
    blocks: list[nn.Module] = []
    for i in range(count):
        before, by = (channels, stride) if i == 0 else (wider, 1)
        block = nn.Sequential(_normalise(before, wider, 3, by), nn.ReLU(), _normalise(wider, wider, 3))
        same = before == wider and by == 1
        blocks.append(Shortcut(block, nn.Identity() if same else _normalise(before, wider, 1, by)))
    return blocks


def _resnet(shape: Shape, classes: int, widths: tuple[int, ...], count: int) -> nn.Module:
    blocks = []
    for i, (before, wider) in enumerate(zip((widths[0], *widths), widths, strict=False)):
        blocks += _shortcuts(before, wider, count, 1 if i == 0 else 2)
    first = _normalise(shape[0], widths[0], 3)
    return nn.Sequential(
        first, nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes)
    )


def resnet20(shape: Shape, classes: int) -> nn.Module:
    """ResNet-20 for small images with BatchNorm: 16, 32 and 64 channels, three blocks each (He et al. 2016)."""
    return _resnet(shape, classes, (16, 32, 64), 3)


def resnet18(shape: Shape, classes: int) -> nn.Module:
    """ResNet-18 with BatchNorm, its first layer 3x3 for small images: 64 to 512 channels, two blocks each."""
    return _resnet(shape, classes, (64, 128, 256, 512), 2)


class Patches(nn.Module):
    """Images as tokens: one for each patch, a class token before them, and learnt positions."""

    def __init__(self, shape: Shape, patch: int, width: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(shape[0], width, patch, patch)
        tokens = (shape[1] // patch) * (shape[2] // patch) + 1
        self.first, self.position = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.empty(1, tokens, width))
        nn.init.trunc_normal_(self.position, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.layer(x).flatten(2).transpose(1, 2)
        return torch.cat([self.first.expand(len(x), -1, -1), tokens], 1) + self.position


class FirstToken(nn.Module):
    """The first of all tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


def vit(shape: Shape, classes: int, width: int = 128, dropout: float = 0.1) -> nn.Module:
    """A small vision transformer: patches of 4x4, four layers, 128 wide, four heads, dropout 0.1."""
    if shape[1] % 4 or shape[2] % 4:
        raise ConfigError(f"vit needs image sides that 4 divides, got {shape[1]}x{shape[2]}: use another model")
    layers = [
        nn.TransformerEncoderLayer(width, 4, 2 * width, dropout, "gelu", batch_first=True, norm_first=True)
        for _ in range(4)
    ]
    ends = FirstToken(), nn.LayerNorm(width), nn.Linear(width, classes)
    return nn.Sequential(Patches(shape, 4, width), nn.Dropout(dropout), *layers, *ends)


class ReadRows(nn.Module):
    """An LSTM that reads an image row by row; its last output."""

    def __init__(self, shape: Shape, hidden: int) -> None:
        super().__init__()
        self.layer = nn.LSTM(shape[0] * shape[2], hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x.transpose(1, 2).flatten(2))[0]
        return outputs[:, -1]


def lstm(shape: Shape, classes: int, hidden: int = 128) -> nn.Module:
    """An LSTM of 128 units that reads an image row by row."""
    return nn.Sequential(ReadRows(shape, hidden), nn.Linear(hidden, classes))


def lenet5_dropout(shape: Shape, classes: int) -> nn.Module:
    """LeNet-5 with dropout of one half before its last two layers."""
    parts = list(lenet5(shape, classes).children())
    return nn.Sequential(*parts[:-3], nn.Dropout(), parts[-3], parts[-2], nn.Dropout(), parts[-1])


def resnet9(shape: Shape, classes: int) -> nn.Module:
    """ResNet-9 with GroupNorm (FLIS on CIFAR-100)."""
    channels, height, width = shape
    last = height // 8 if height == width else (height // 8, width // 8)
    return nn.Sequential(
        _block(channels, 64), _block(64, 128, pool=True),
        Residual(nn.Sequential(_block(128, 128), _block(128, 128))),
        _block(128, 256, pool=True), _block(256, 512, pool=True),
        Residual(nn.Sequential(_block(512, 512), _block(512, 512))),
        nn.MaxPool2d(last), nn.Flatten(), nn.Linear(512, classes),
    )  # fmt: skip


class SeriesConv(nn.Conv1d):
    """A convolution of series without padding; on a GPU, a product with the series' windows.

    The clients of a block have a weight each, and torch's convolution of so many groups is slow there.
    """

    def forward(self, input: Tensor) -> Tensor:
        return self.product(input) if input.is_cuda else super().forward(input)

    def product(self, input: Tensor) -> Tensor:
        """The same as a product."""
        seen = input.unfold(2, self.kernel_size[0], 1).movedim(1, 2).flatten(2)  # [b, length, channels · window]
        product = (seen @ self.weight.flatten(1).T).movedim(2, 1)
        return product if self.bias is None else product + self.bias[:, None]


def har_cnn(shape: Sizes, classes: int) -> nn.Module:
    """HAR-CNN of PFLlib and GPFL: convolutions over time to 32 and 64 channels, window 9, then 1024 and 512 units."""
    channels, length = shape
    flat = 64 * (((length - 8) // 2 - 8) // 2)
    if flat <= 0:
        raise ConfigError(f"har_cnn needs series of at least 28 samples, got {length}: use another model")
    return nn.Sequential(
        SeriesConv(channels, 32, 9), nn.ReLU(), nn.MaxPool1d(2),
        SeriesConv(32, 64, 9), nn.ReLU(), nn.MaxPool1d(2),
        nn.Flatten(), nn.Linear(flat, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, classes),
    )  # fmt: skip


class Transpose(nn.Module):
    """Embedded tokens [b, length, e] as series [b, e, length]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


def char_cnn(shape: Sizes, classes: int) -> nn.Module:
    """The next token of a window: embeddings of 32, a convolution over 5 tokens to 64 channels, then 256 units.

    Nothing is pooled: the next token depends on the order of the last ones.
    """
    (length,) = shape
    width = min(5, length)
    return nn.Sequential(
        nn.Embedding(classes, 32), Transpose(), SeriesConv(32, 64, width), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * (length - width + 1), 256), nn.ReLU(), nn.Linear(256, classes),
    )  # fmt: skip


class ReadTokens(nn.Module):
    """LSTM layers that read embedded tokens: their outputs after each, or after the last alone."""

    def __init__(self, tokens: int, width: int, hidden: int, layers: int, each: bool) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(tokens, width), nn.LSTM(width, hidden, layers, batch_first=True)
        self.each = each

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(self.embedding(x))[0]
        return outputs if self.each else outputs[:, -1]


def char_lstm(shape: Sizes, classes: int, each: bool = False) -> nn.Module:
    """LEAF's network for Shakespeare, the next token of a window: embeddings of 8, two LSTM layers of 256 units."""
    return nn.Sequential(ReadTokens(classes, 8, 256, 2, each), nn.Linear(256, classes))


def char_lstm_each(shape: Sizes, classes: int) -> nn.Module:
    """The same for the token after each of the window (FedEM): [b, length, classes]."""
    return char_lstm(shape, classes, each=True)
