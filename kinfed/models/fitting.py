"""A network trained on rows that the server itself has: plain torch; on a GPU a step is recorded once and replayed."""

from collections.abc import Iterable

import torch
from torch import nn

from kinfed.client import Batch
from kinfed.models.network import Network, weights_of
from kinfed.params import Params

EAGER = 3  # steps before one is recorded: they prepare what a recording must not meet


def fit(network: Network, start: Params, batches: Iterable[Batch], lr: float) -> Params:
    """The weights after a step of Adam on each of these batches; without padding, and on the weights' device."""
    fitting = Fitting(network, network.dressed(start), lr)
    for batch in batches:
        fitting.step(batch)
    return weights_of(fitting.module)


class Fitting:
    """A module on its way."""

    def __init__(self, network: Network, module: nn.Module, lr: float) -> None:
        self.network, self.module = network, module
        self.on_gpu = next(module.parameters()).is_cuda
        self.optimiser = torch.optim.Adam(module.parameters(), lr, fused=True, capturable=self.on_gpu)
        self.taken: dict[torch.Size, int] = {}  # steps, by the shape of their batch
        self.recording: tuple[Batch, torch.cuda.CUDAGraph] | None = None  # of the first shape that came often

    def step(self, batch: Batch) -> None:
        """One step of Adam."""
        shape = batch.x.shape
        self.taken[shape] = self.taken.get(shape, 0) + 1
        if self.on_gpu and self.recording is None and self.taken[shape] > EAGER:
            self.recording = self._recorded(batch)
        if self.recording is None or self.recording[0].x.shape != shape:
            self._move(batch)
            return
        place, graph = self.recording
        place.x.copy_(batch.x)
        place.y.copy_(batch.y)
        graph.replay()

    def _move(self, batch: Batch) -> None:
        self.module.train(not self.network.is_lonely(batch))
        self.optimiser.zero_grad()
        loss = self.network.loss_of(self.module(self.network.inputs(batch.x)), batch).mean()
        loss.backward()
        self.optimiser.step()

    def _recorded(self, batch: Batch) -> tuple[Batch, torch.cuda.CUDAGraph]:
        """The step of such a batch; recording it moves nothing."""
        place, graph = batch._replace(x=batch.x.clone(), y=batch.y.clone()), torch.cuda.CUDAGraph()
        self.optimiser.zero_grad()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._move(place)
        return place, graph
