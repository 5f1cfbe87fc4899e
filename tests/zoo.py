"""Small networks of every kind that people train, for samples of 1x8x8 and three classes."""

from collections.abc import Callable

from torch import Tensor, nn, tensor
from torch.nn import functional as F


class Called(nn.Module):
    """Its forward is a function of its parts, the samples and whether it trains."""

    def __init__(self, forward: Callable[..., Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.call = forward
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


def sequence(*parts: nn.Module) -> nn.Module:
    return nn.Sequential(*parts)


def flat(*parts: nn.Module, width: int = 64) -> nn.Module:
    return sequence(nn.Flatten(), *parts, nn.Linear(width, 3))


def convolve(*parts: nn.Module, channels: int = 4) -> nn.Module:
    return sequence(nn.Conv2d(1, channels, 3), *parts, nn.ReLU(), nn.Flatten(), nn.Linear(36 * channels, 3))


def recur(kind: type[nn.RNNBase], width: int = 6, **settings: object) -> nn.Module:
    layer = kind(8, width, batch_first=True, **settings)  # type: ignore[arg-type]
    out = (2 if layer.bidirectional else 1) * (layer.proj_size or width)
    return Called(lambda net, x: net.head(net.layer(x[:, 0])[0][:, -1]), layer=layer, head=nn.Linear(out, 3))


def time_first() -> nn.Module:
    def forward(net: nn.Module, x: Tensor) -> Tensor:
        first = tensor([0.5, -0.5], device=x.device)[:, None, None].expand(2, len(x), 6)  # of each layer
        return net.head(net.layer(x[:, 0].transpose(0, 1), (first, first))[0][-1])

    return Called(forward, layer=nn.LSTM(8, 6, 2, dropout=0.3), head=nn.Linear(6, 3))


def cells() -> nn.Module:
    def forward(net: nn.Module, x: Tensor) -> Tensor:
        state = h = tanh = None
        for now in x[:, 0].unbind(1):
            state, h, tanh = net.lstm(now, state), net.gru(now, h), net.rnn(now, tanh)
        return net.head(state[0] + h + tanh)

    parts = {"lstm": nn.LSTMCell(8, 6), "gru": nn.GRUCell(8, 6), "rnn": nn.RNNCell(8, 6)}
    return Called(forward, **parts, head=nn.Linear(6, 3))


def attend(**how: object) -> nn.Module:
    def forward(net: nn.Module, x: Tensor) -> Tensor:
        seen = x[:, 0] if net.layer.batch_first else x[:, 0].transpose(0, 1)
        out = net.layer(seen, seen, seen, **how)[0]
        return net.head((out if net.layer.batch_first else out.transpose(0, 1)).flatten(1))

    layer = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first="need_weights" not in how)
    return Called(forward, layer=layer, head=nn.Linear(64, 3))


def attend_by_function(**how: object) -> nn.Module:
    def forward(net: nn.Module, x: Tensor) -> Tensor:
        q, k, v = net.layer(x[:, 0]).unflatten(2, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return net.head(F.scaled_dot_product_attention(q, k, v, **how).flatten(1))

    return Called(forward, layer=nn.Linear(8, 24), head=nn.Linear(64, 3))


def encode() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return Called(lambda net, x: net.head(net.layer(x[:, 0]).flatten(1)), layer=layer, head=nn.Linear(64, 3))


def embed_words() -> nn.Module:
    words = nn.Embedding(4, 5)
    return Called(
        lambda net, x: net.head(net.words((3 * x).long().flatten(1)).mean(1)), words=words, head=nn.Linear(5, 3)
    )


def share_weights() -> nn.Module:
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.weight = first.weight
    forward = lambda net, x: net.head(net.second(net.first(x.flatten(1)).relu()).relu() + x.flatten(1))  # noqa: E731
    return Called(forward, first=first, second=second, head=nn.Linear(64, 3))


def call_twice() -> nn.Module:
    norm = nn.BatchNorm1d(8)
    return sequence(nn.Flatten(), nn.Linear(64, 8), norm, nn.ReLU(), nn.Linear(8, 8), norm, nn.Linear(8, 3))


def drop_by_function() -> nn.Module:
    return Called(lambda net, x: net.head(F.dropout(x.flatten(1), 0.3, net.training)), head=nn.Linear(64, 3))


ZOO: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: flat(nn.Linear(64, 8), nn.Dropout(0.5), nn.ReLU(), width=8),
    "dropout of channels": lambda: convolve(nn.Dropout2d(0.5)),
    "alpha dropout": lambda: flat(nn.Linear(64, 8), nn.SELU(), nn.AlphaDropout(0.2), width=8),
    "dropout by function": drop_by_function,
    "batch norm of vectors": lambda: flat(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), width=8),
    "batch norm of images": lambda: convolve(nn.BatchNorm2d(4)),
    "batch norm without weights": lambda: convolve(nn.BatchNorm2d(4, affine=False)),
    "batch norm twice": call_twice,
    "instance norm": lambda: convolve(nn.InstanceNorm2d(4, affine=True, track_running_stats=True)),
    "layer norm": lambda: flat(nn.LayerNorm(64)),
    "group norm": lambda: convolve(nn.GroupNorm(2, 4)),
    "lstm": lambda: recur(nn.LSTM),
    "lstm both ways": lambda: recur(nn.LSTM, num_layers=2, bidirectional=True, dropout=0.3),
    "lstm with projection": lambda: recur(nn.LSTM, proj_size=3),
    "lstm, time first": time_first,
    "gru": lambda: recur(nn.GRU, num_layers=2),
    "rnn": lambda: recur(nn.RNN, nonlinearity="relu", bias=False),
    "cells": cells,
    "attention": attend,
    "attention with weights": lambda: attend(need_weights=True),
    "causal attention": lambda: attend_by_function(is_causal=True, dropout_p=0.0),
    "transformer": encode,
    "embedding": embed_words,
    "shared weights": share_weights,
    "transposed convolution": lambda: sequence(
        nn.Conv2d(1, 4, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(4, 2, 4, 2, 1), nn.Flatten(), nn.Linear(128, 3)
    ),
    "convolution of sequences": lambda: sequence(
        nn.Flatten(1, 2), nn.Conv1d(8, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)
    ),
}
