"""REPA's way to describe a client: an encoder that clients learn together, and statistics of the rows it embeds."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from kinfed.aggregation import average
from kinfed.client import Client, Task
from kinfed.clustering.kmeans import Part
from kinfed.errors import ConfigError
from kinfed.federation import Federation, Offer
from kinfed.models import Model, SupervisedAutoEncoder, encoder_of, repa_ae
from kinfed.params import Params, each_leaf
from kinfed.signatures.pretraining import from_file
from kinfed.signatures.statistics import STATISTICS, Statistic, summarise
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class EmbeddingStatistics:
    """Which statistics a client sends, and how the clients come to the encoder."""

    statistics: tuple[Statistic, ...] = ("mean", "quartiles")  # what a client says of its embedded rows
    reconstruction: float = 0.1  # λ, its share of the encoder's loss; 0: CLF, 1: AE, between: SAE
    encoder: str = ""  # a .safetensors file with its weights; empty: learnt by the training clients
    encoder_rounds: int = 30  # of the encoder's own federated training
    training: LocalTraining = LocalTraining(epochs=2, batch_size=32, lr=1e-3, optimiser="adam")  # of the encoder

    def __post_init__(self) -> None:
        unknown = [name for name in self.statistics if name not in STATISTICS]
        if unknown or not self.statistics:
            raise ConfigError(f"statistics must be some of {', '.join(STATISTICS)}, got {self.statistics}")
        if self.encoder_rounds < 0 or not 0 <= self.reconstruction <= 1:
            got = f"{self.encoder_rounds} and {self.reconstruction}"
            raise ConfigError(f"wanted encoder_rounds >= 0 and reconstruction in [0, 1], got {got}")

    def network(self, model: Model, shape: tuple[int, ...]) -> SupervisedAutoEncoder:
        """The encoder and its heads, for the images and classes of this classifier."""
        if len(shape) != 3:
            raise ConfigError(
                f"REPA's encoder needs images [channels, height, width], got rows of shape {tuple(shape)}"
            )
        return SupervisedAutoEncoder(
            partial(repa_ae, (shape[0], shape[1], shape[2]), model.classes, self.reconstruction),
            model.seed, model.mean, model.std, model.classes, self.reconstruction,
        )  # fmt: skip

    def learn(self, model: Model, task: Task, fed: Federation) -> Params:
        """The encoder's weights: FedAvg of the whole network among the training clients, or a file's."""
        whole = self.network(model, tuple(fed.x.shape[1:])).init()
        if self.encoder:
            return from_file(Path(self.encoder), encoder_of(whole), fed.device)
        whole = each_leaf(lambda w: w.to(fed.device), whole)
        for _ in range(self.encoder_rounds):
            replies = fed.run(task, fed.sample(), Offer(shared={"params": whole}))
            if len(replies.cohort):
                whole = average(replies.stack("params"), fed.sizes[replies.cohort])
        return encoder_of(whole)

    def train(self, model: Model, client: Client, params: Params) -> Params:
        """The weights of encoder and heads after some epochs on the client's rows."""
        return self.training(client, params, self.network(model, tuple(client.train.x.shape[1:])).gradient)[0]

    def describe(self, model: Model, client: Client, encoder: Params) -> Tensor:
        """Statistics of the client's embedded rows: [numbers]. It needs neither labels nor training."""
        network = self.network(model, tuple(client.train.x.shape[1:]))
        parts = [Part(network.embed(encoder, batch.x), batch.mask) for batch in client.train.in_order()]
        return summarise(parts, self.statistics)
