"""Recurrent layers written out step by step, as `vmap` can take them; numerically those of torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import linear

from kinfed.errors import SequentialOnly

Dropout = Callable[[Tensor, float], Tensor]
State = tuple[Tensor, ...]  # h, and c of an LSTM: [b, hidden]
RECURRENT: dict[str, Callable[..., Any]] = {
    "lstm": torch.lstm, "gru": torch.gru, "rnn_tanh": torch.rnn_tanh, "rnn_relu": torch.rnn_relu,
}  # fmt: skip


@dataclass(frozen=True)
class Recurrence:
    """The settings of stacked recurrent layers, and their weights."""

    kind: str
    state: State  # [layers · directions, b, hidden]
    weights: tuple[Tensor, ...]
    biased: bool
    layers: int
    dropout: float
    training: bool
    directions: int
    batch_first: bool

    @classmethod
    def parse(cls, kind: str, x: Tensor, args: tuple[Any, ...]) -> "Recurrence":
        """From what torch's function takes behind the samples."""
        if is_packed(args):
            raise SequentialOnly("packed sequences are not vectorised")
        state, weights, biased, layers, dropout, training, both, batch_first = args
        state = tuple(state) if kind == "lstm" else (state,)
        return cls(kind, state, tuple(weights), biased, layers, dropout, training, 2 if both else 1, batch_first)

    def weights_of(self, cell: int) -> "CellWeights":
        """Those of one layer in one direction."""
        each = len(self.weights) // (self.layers * self.directions)
        own = self.weights[cell * each : (cell + 1) * each]
        input_bias, hidden_bias = own[2:4] if self.biased else (None, None)
        projection = own[-1] if each == (5 if self.biased else 3) else None
        return CellWeights(own[0], own[1], input_bias, hidden_bias, projection)


def is_packed(args: tuple[Any, ...]) -> bool:
    """Whether torch's function is called for packed sequences: then sizes of batches come first."""
    return isinstance(args[0], Tensor) and args[0].dtype == torch.long


@dataclass(frozen=True)
class CellWeights:
    """The weights of a cell."""

    by_input: Tensor
    by_hidden: Tensor
    input_bias: Tensor | None
    hidden_bias: Tensor | None
    projection: Tensor | None = None


def run_layers(layers: Recurrence, x: Tensor, drop: Dropout, *, native: bool = False) -> tuple[Tensor, ...]:
    """The outputs of the last layer, and the last states of all; each layer step by step, or by torch's function."""
    run = _run_native if native else _run_layer
    x = x.transpose(0, 1) if layers.batch_first else x
    ends: list[State] = []
    for layer in range(layers.layers):
        x, *end = run(layers, layer, x)
        ends.append(tuple(end))
        if layers.dropout and layers.training and layer < layers.layers - 1:
            x = drop(x.transpose(0, 1), layers.dropout).transpose(0, 1)  # the samples first, which have masks
    return (x.transpose(0, 1) if layers.batch_first else x, *(torch.cat(part) for part in zip(*ends, strict=True)))


def _run_native(layers: Recurrence, layer: int, x: Tensor) -> tuple[Tensor, ...]:
    """One layer by torch's own function: its outputs, and last states [directions, b, hidden]."""
    each = len(layers.weights) // layers.layers
    own = slice(layer * layers.directions, (layer + 1) * layers.directions)
    state, weights = tuple(part[own] for part in layers.state), layers.weights[layer * each : (layer + 1) * each]
    both, given = layers.directions == 2, state if layers.kind == "lstm" else state[0]
    return cast(
        "tuple[Tensor, ...]",
        RECURRENT[layers.kind](x, given, weights, layers.biased, 1, 0.0, layers.training, both, False),
    )


def _run_layer(layers: Recurrence, layer: int, x: Tensor) -> tuple[Tensor, ...]:
    """The same step by step."""
    outputs, ends = [], []
    for direction in range(layers.directions):
        cell = layer * layers.directions + direction
        seen, end = _run_cell(layers, cell, x.flip(0) if direction else x)
        outputs.append(seen.flip(0) if direction else seen)
        ends.append(end)
    seen = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
    return (seen, *(torch.stack(part) for part in zip(*ends, strict=True)))


def _run_cell(layers: Recurrence, cell: int, x: Tensor) -> tuple[Tensor, State]:
    """One layer in one direction over x: [steps, b, inputs]."""
    own, step = layers.weights_of(cell), STEPS[layers.kind]
    state = tuple(part[cell] for part in layers.state)
    seen = []
    for now in linear(x, own.by_input, own.input_bias).unbind(0):  # one product for all steps
        state = step(now, linear(state[0], own.by_hidden, own.hidden_bias), state)
        if own.projection is not None:
            state = (linear(state[0], own.projection), *state[1:])
        seen.append(state[0])
    return torch.stack(seen), state


def step_lstm(by_input: Tensor, by_hidden: Tensor, state: State) -> State:
    """The next h and c from the gates' sums."""
    if by_input.is_cuda:
        return cast("Callable[..., State]", _FusedLSTM.apply)(by_input, by_hidden, state[1])
    enter, forget, new, leave = (by_input + by_hidden).chunk(4, -1)
    c = forget.sigmoid() * state[1] + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * c.tanh(), c


def step_gru(by_input: Tensor, by_hidden: Tensor, state: State) -> State:
    """The next h from the gates' sums."""
    if by_input.is_cuda:
        return (cast("Callable[..., Tensor]", _FusedGRU.apply)(by_input, by_hidden, state[0]),)
    (reset, update, new), (reset_by, update_by, new_by) = (t.chunk(3, -1) for t in (by_input, by_hidden))
    keep = (update + update_by).sigmoid()
    new = (new + (reset + reset_by).sigmoid() * new_by).tanh()
    return (new + keep * (state[0] - new),)


STEPS: dict[str, Callable[[Tensor, Tensor, State], State]] = {
    "lstm": step_lstm,
    "gru": step_gru,
    "rnn_tanh": lambda by_input, by_hidden, state: ((by_input + by_hidden).tanh(),),
    "rnn_relu": lambda by_input, by_hidden, state: ((by_input + by_hidden).relu(),),
}


class _FusedLSTM(torch.autograd.Function):
    """torch's kernel of a whole LSTM cell, on a GPU; a `vmap` hands over all clients, as one large batch."""

    @staticmethod
    def forward(by_input: Tensor, by_hidden: Tensor, c: Tensor) -> State:
        raise SequentialOnly("a fused LSTM cell is for clients in a block")

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        """Autograd sees the kernel itself."""

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *parts: Tensor) -> tuple[State, tuple[int, int]]:
        flat = _fold_lanes(info.batch_size, dims, parts)
        h, c, _ = torch.ops.aten._thnn_fused_lstm_cell(*flat)
        lanes = (info.batch_size, -1)
        return (h.unflatten(0, lanes), c.unflatten(0, lanes)), (0, 0)


class _FusedGRU(torch.autograd.Function):
    """The same of a GRU."""

    @staticmethod
    def forward(by_input: Tensor, by_hidden: Tensor, h: Tensor) -> Tensor:
        raise SequentialOnly("a fused GRU cell is for clients in a block")

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        """Autograd sees the kernel itself."""

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *parts: Tensor) -> tuple[Tensor, int]:
        h, _ = torch.ops.aten._thnn_fused_gru_cell(*_fold_lanes(info.batch_size, dims, parts))
        return h.unflatten(0, (info.batch_size, -1)), 0


def _fold_lanes(lanes: int, dims: tuple[int | None, ...], parts: tuple[Tensor, ...]) -> list[Tensor]:
    """[lanes, b, ...] as [lanes · b, ...]."""
    first = (
        t.expand(lanes, *t.shape) if dim is None else t.movedim(dim, 0) for t, dim in zip(parts, dims, strict=True)
    )
    return [t.flatten(0, 1).to(parts[-1].dtype).contiguous() for t in first]


def _lstm_cell(x: Tensor, state: list[Tensor], *weights: Tensor | None) -> State:
    own = _cell_weights(weights)
    sums = linear(x, own.by_input, own.input_bias), linear(state[0], own.by_hidden, own.hidden_bias)
    return step_lstm(*sums, tuple(state))


def _cell(kind: str) -> Callable[..., Tensor]:
    def run(x: Tensor, h: Tensor, *weights: Tensor | None) -> Tensor:
        own = _cell_weights(weights)
        sums = linear(x, own.by_input, own.input_bias), linear(h, own.by_hidden, own.hidden_bias)
        return STEPS[kind](*sums, (h,))[0]

    return run


def _cell_weights(weights: tuple[Tensor | None, ...]) -> CellWeights:
    by_input, by_hidden, *biases = weights
    assert by_input is not None and by_hidden is not None
    input_bias, hidden_bias = biases if biases else (None, None)
    return CellWeights(by_input, by_hidden, input_bias, hidden_bias)


CELLS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {  # torch's own, and that for a `vmap`
    "lstm": (torch.lstm_cell, _lstm_cell),
    "gru": (torch.gru_cell, _cell("gru")),
    "rnn_tanh": (torch.rnn_tanh_cell, _cell("rnn_tanh")),
    "rnn_relu": (torch.rnn_relu_cell, _cell("rnn_relu")),
}
