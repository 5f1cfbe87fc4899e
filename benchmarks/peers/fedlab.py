"""FedLab: its serial trainer of many clients and its synchronous server."""

import logging
import sys
import types
from collections.abc import Callable
from unittest.mock import MagicMock

from kinfed.bench.drivers import Job, drive, make_network


def without_torchvision() -> None:
    """Lets FedLab be imported without torchvision, which it imports for datasets that no workload uses."""
    for name in ("torchvision", "torchvision.datasets", "torchvision.transforms"):
        sys.modules.setdefault(name, MagicMock(spec=types.ModuleType(name), __name__=name, __path__=[]))


def start(job: Job) -> Callable[[int], object]:
    """A round: the trainer takes its clients one after the other, the server averages what they send."""
    import torch

    without_torchvision()
    from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
    from fedlab.contrib.algorithm.basic_server import SyncServerHandler

    torch.set_num_threads(job.threads)
    logging.disable(logging.CRITICAL)
    x, y = torch.from_numpy(job.floats()), torch.from_numpy(job.labels())

    class Samples:
        def get_dataloader(self, client: int, batch_size: int) -> object:
            samples = torch.utils.data.TensorDataset(x[client], y[client])
            return torch.utils.data.DataLoader(samples, batch_size=batch_size, shuffle=True)

    trainer = SGDSerialClientTrainer(make_network(job.network, job.classes), job.clients, cuda=False)
    trainer.setup_dataset(Samples())
    trainer.setup_optim(epochs=1, batch_size=job.batch, lr=job.lr)
    server = SyncServerHandler(make_network(job.network, job.classes), 10**9, job.cohort / job.clients)
    server.num_clients = job.clients

    def run(round: int) -> None:
        trainer.local_process(server.downlink_package, job.sample_cohort(round))
        for package in trainer.uplink_package:
            server.load(package)

    return run


if __name__ == "__main__":
    drive(start)
