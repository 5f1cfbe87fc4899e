"""pfl-research: its simulated backend, in as many processes as there are threads, which is its own way to use cores."""

import os
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from kinfed.bench.drivers import Clock, Job, exit_without, make_network, read_job

if TYPE_CHECKING:
    import torch

FOREVER = 10**6  # rounds; the process is ended from outside


def be_many(count: int) -> None:
    """Makes this the first of `count` processes as torch's launcher would start them."""
    if "RANK" in os.environ:
        threading.Thread(target=leave_with, args=(os.getppid(),), daemon=True).start()
    if "RANK" in os.environ or count == 1:
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "bench"}
    shared = {"WORLD_SIZE": str(count), **place}
    for rank in range(count - 1, -1, -1):
        mine = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count)}
        if rank:
            command = [sys.executable, "-m", "peers.pfl", *sys.argv[1:]]
            subprocess.Popen(command, env=os.environ | mine, stdin=subprocess.DEVNULL)
        else:
            os.environ.update(mine)


def leave_with(parent: int) -> None:
    """Ends this process when the one that started it is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(0)


def main(job: Job) -> None:
    """Its FedAvg, round by round."""
    be_many(job.threads)
    try:
        race(job)
    except ImportError as error:
        exit_without(error)


def race(job: Job) -> None:
    """Rounds until the race is over."""
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)
    clients, net = clients_of(job), net_of(job)
    server = torch.optim.SGD(net.parameters(), lr=1.0)
    FederatedAveraging().run(
        NNAlgorithmParams(FOREVER, evaluation_frequency=FOREVER, train_cohort_size=job.cohort, val_cohort_size=0),
        SimulatedBackend(training_data=clients, val_data=clients),
        PyTorchModel(net, local_optimizer_create=torch.optim.SGD, central_optimizer=server),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=job.lr, local_batch_size=job.batch),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[turns()],
    )


def net_of(job: Job) -> "torch.nn.Module":
    """The network with the loss and metrics that pfl asks of it."""
    import torch
    from pfl.metrics import Weighted

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_network(job.network, job.classes)

        def loss(self, x: torch.Tensor, labels: torch.Tensor, eval: bool = False) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.net(x), labels)

        def metrics(self, x: torch.Tensor, labels: torch.Tensor, eval: bool = True) -> dict[str, object]:
            return {"loss": Weighted(float(self.loss(x, labels)) * len(labels), len(labels))}

    return Net()


def clients_of(job: Job) -> object:
    """The clients, drawn round by round as for all contenders."""
    import torch
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset

    x, y = torch.from_numpy(job.floats()), torch.from_numpy(job.labels())

    def samples_of(client: int) -> object:
        order = torch.randperm(job.samples)  # it takes samples in their order
        return Dataset(raw_data=[x[client][order], y[client][order]], user_id=str(client))

    cohorts = (client for round in range(FOREVER) for client in job.sample_cohort(round))
    return FederatedDataset(samples_of, lambda: next(cohorts), user_id_to_weight=dict.fromkeys(range(job.clients), 1))


def turns() -> object:
    """A callback that lets the other contenders run between two rounds."""
    import torch
    from pfl.callback.base import TrainingProcessCallback
    from pfl.metrics import Metrics

    clock = Clock() if os.environ.get("RANK", "0") == "0" else None

    def wait() -> None:
        if clock:
            clock.begin()
        if torch.distributed.is_initialized():
            torch.distributed.barrier()  # no process begins before the turn

    class Turns(TrainingProcessCallback):
        def on_train_begin(self, *, model: object) -> object:
            wait()
            return Metrics()

        def after_central_iteration(self, metrics: object, model: object, *, central_iteration: int) -> object:
            if clock:
                clock.end()
            wait()
            return False, Metrics()

    return Turns()


if __name__ == "__main__":
    main(read_job())
