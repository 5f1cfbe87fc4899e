"""A network trained by Adam on samples that the server itself has; on a GPU, steps become CUDA graphs."""

from collections.abc import Iterable

import torch
from torch import nn

from kinfed.client import Batch
from kinfed.cuda_graphs import CudaGraphs
from kinfed.models import Network
from kinfed.models.module_checks import weights_of
from kinfed.params import Params

WARM_UP = 3  # eager steps before one is captured
MOST = 4  # shapes of batches whose steps are captured


def fit(network: Network, start: Params, batches: Iterable[Batch], lr: float) -> Params:
    """The weights after a step of Adam on each of these batches; without padding, and on the weights' device."""
    trainer = AdamTrainer(network, network.module_with(start), lr)
    for batch in batches:
        trainer.step(batch)
    return weights_of(trainer.module)


class AdamTrainer:
    """A module in training."""

    def __init__(self, network: Network, module: nn.Module, lr: float) -> None:
        self.network, self.module = network, module
        self.on_gpu = next(module.parameters()).is_cuda
        self.optimiser = torch.optim.Adam(module.parameters(), lr, fused=True, capturable=self.on_gpu)
        self.graphs = CudaGraphs(MOST, WARM_UP)

    def step(self, batch: Batch) -> None:
        """One step of Adam."""
        inputs = batch._asdict()
        exact = inputs.pop("exact")

        def take(tensors: Params) -> Params:
            self._step(Batch(**tensors, exact=exact))
            return {}

        if self.on_gpu:
            self.graphs.run("step", take, inputs)
        else:
            take(inputs)

    def _step(self, batch: Batch) -> None:
        self.module.train(not self.network.needs_evaluation_mode(batch))
        loss = self.network.loss_of(self.module(self.network.inputs(batch.x)), batch).mean()
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad()  # last: a capture must not free what eager steps left
