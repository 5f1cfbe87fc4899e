"""What is measured: clients, samples and networks. Samples are random: their content does not change the time."""

from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from kinfed.bench.drivers import NETWORKS, Job
from kinfed.errors import ConfigError

WEIGHTS = {  # of networks for 10 classes
    "dropout": 62_006, "batchnorm": 272_474, "vit": 546_186, "lstm": 117_002, "resnet9": 6_575_370, "tuning": 877_723,
}  # fmt: skip


@dataclass(frozen=True)
class Workload:
    """Rounds of FedAvg: some epochs of SGD on every client of the cohort."""

    network: str  # mlp: 784-200-classes; cnn: two 5x5 convolutions with "same" padding, 512 units; see `NETWORKS`
    clients: int
    samples: int  # of each client, or of the one with most
    classes: int
    cohort: int  # clients in a round
    batch: int = 10
    lr: float = 0.01
    epochs: int = 1
    momentum: float = 0.0
    fewest: int = 0  # samples of the client with fewest; 0: all have as many
    optimiser: str = "sgd"  # or adam

    @property
    def is_common(self) -> bool:
        """Whether other simulators' drivers support it: an epoch of plain SGD, equal clients, 28x28 pixels."""
        is_plain = self.epochs == 1 and not self.momentum and not self.fewest and self.optimiser == "sgd"
        return is_plain and self.network in ("mlp", "cnn")

    @property
    def lengths(self) -> list[int]:
        """Samples of each client; they grow by the same factor from client to client."""
        return [round(n) for n in np.geomspace(self.fewest or self.samples, self.samples, self.clients)]

    @property
    def steps_each(self) -> float:
        """Steps of a client in a round, on average."""
        return self.epochs * sum(-(-n // self.batch) for n in self.lengths) / self.clients

    @property
    def steps(self) -> float:
        """Steps of all clients in a round, on average."""
        return self.cohort * self.steps_each

    @property
    def weights(self) -> int:
        """Parameters of the network."""
        if self.network in WEIGHTS:
            return WEIGHTS[self.network]
        if self.network == "mlp":
            return 785 * 200 + 201 * self.classes
        if self.network == "lenet":
            return 76 * 6 + 151 * 16 + 401 * 120 + 121 * 84 + 85 * self.classes
        return 26 * 32 + (25 * 32 + 1) * 64 + 3137 * 512 + 513 * self.classes

    @property
    def least_bytes(self) -> float:
        """Bytes a round must move: every step reads each weight to use it, and reads and writes it to change it.

        Momentum is as large as the weights, and is read and written too.
        """
        return (5 if self.momentum else 3) * 4 * self.weights * self.steps

    def scale(self, share: float) -> "Workload":
        """The same with this share of the clients, in all and in a round."""
        if not 0 < share <= 1:
            raise ConfigError(f"--scale: wanted a share above 0 and at most 1, got {share}")
        clients, cohort = (max(1, round(share * number)) for number in (self.clients, self.cohort))
        return replace(self, clients=clients, cohort=cohort)

    def make_job(self, folder: Path, threads: int, device: str) -> Job:
        """Writes the samples into the folder; gives back what drivers need to know."""
        draw = np.random.default_rng(0)
        labels = draw.integers(0, self.classes, (self.clients, self.samples))
        pixels = prod(NETWORKS[self.network][1])
        images = draw.integers(0, 256, (self.clients, self.samples, pixels), dtype=np.uint8)
        np.save(folder / "x.npy", images)
        np.save(folder / "y.npy", labels)
        shared = {name: value for name, value in asdict(self).items() if name != "fewest"}
        return Job(str(folder), **shared, lengths=self.lengths, threads=threads, device=device)


WORKLOADS = {
    "mlp": Workload("mlp", clients=100, samples=600, classes=10, cohort=20),
    "cnn": Workload("cnn", clients=100, samples=600, classes=10, cohort=20),
    "flt4": Workload("mlp", 2400, 50, classes=47, cohort=480, epochs=5, momentum=0.5),  # the shapes of FLT's scenario 4
    "leaf": Workload("cnn", 120, 200, classes=47, cohort=120, momentum=0.5),
    "lenet": Workload("lenet", 20, 500, classes=10, cohort=20, epochs=5, momentum=0.5),
    "uneven": Workload("lenet", 100, 2000, classes=10, cohort=10, momentum=0.5, fewest=15),
    "dropout": Workload("dropout", 20, 500, classes=10, cohort=20, batch=20, momentum=0.5),
    "batchnorm": Workload("batchnorm", 20, 500, classes=10, cohort=20, batch=20, momentum=0.5),
    "vit": Workload("vit", 20, 500, classes=10, cohort=20, batch=20, momentum=0.5),
    "lstm": Workload("lstm", 20, 500, classes=10, cohort=20, batch=20, momentum=0.5),
    "resnet9": Workload("resnet9", 20, 500, classes=10, cohort=20, batch=20, momentum=0.5),
    "tuning": Workload("tuning", 100, 100, classes=10, cohort=100, lr=1e-3, optimiser="adam"),  # FLT's residual encoder
}
