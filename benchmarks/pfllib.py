"""PFLlib's own clients and servers on kinfed's split: what `kinfed reproduce pfllib-code` is held against.

    git clone https://github.com/TsingZ0/PFLlib && git -C PFLlib checkout d832e76
    python -m benchmarks.pfllib --code PFLlib --column fmnist-pat --data-dir DATA --device cuda --out pat.json
    python -m benchmarks.pfllib --code PFLlib --column few-pat --algorithms FedAvg Ditto --data-dir DATA --out few.json

It trains one client after the other, and its Python takes longer than its kernels: run several processes at once on a
GPU, each with some algorithms and a file of its own.

An algorithm starts from the first model of kinfed's run, and its clients see their training samples in the same order
in every round, so that the same algorithm has the same numbers up to rounding. PFLlib's files are not changed; replaced
at run time are where samples come from (the device, not files), its losses on training samples, which are shown and
used nowhere, and what it writes to disk. The file has the accuracies that PFLlib reports before the first
round and after each, FedBABU's last one after tuning; what is there is not run again.
"""

import argparse
import copy
import itertools
import json
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kinfed.client import Samples
from kinfed.config import Config
from kinfed.config.assembly import make_population, model_for
from kinfed.cuda_graphs import finish_before_exit
from kinfed.data import Population
from kinfed.keys import base_key, fold
from kinfed.recipes import Wanted, cells_of, load_recipe

ROWS = {  # of the table, by PFLlib's algorithm
    "FedAvg": "fedavg", "FedProx": "fedprox", "PerAvg": "per_fedavg", "Ditto": "ditto", "APFL": "apfl-pfllib",
    "FedPer": "fedper", "FedRep": "fedrep", "FedBABU": "fedbabu-last", "Local": "local", "pFedMe": "pfedme-w",
}  # fmt: skip
MODULES = {name: f"server{name.removeprefix('Fed').lower()}" for name in ROWS} | {"pFedMe": "serverpFedMe"}
SPLIT = {"FedAvg", "FedPer", "FedRep", "FedBABU"}  # whose network main.py cuts into body and head
UNUSED = ("h5py", "utils.dlg")  # modules that its servers import, and that nothing here needs
SETTINGS = {
    "dataset": "split", "num_classes": 10, "local_epochs": 1, "batch_size": 10,
    "join_ratio": 1.0, "random_join_ratio": False, "few_shot": 0, "time_select": False, "goal": "test",
    "time_threthold": 10000, "save_folder_name": "items", "top_cnt": 100, "auto_break": False, "eval_gap": 1,
    "client_drop_rate": 0.0, "train_slow_rate": 0.0, "send_slow_rate": 0.0, "dlg_eval": False, "dlg_gap": 100,
    "batch_num_per_client": 2, "num_new_clients": 0, "fine_tuning_epoch_new": 0, "learning_rate_decay": False,
    "learning_rate_decay_gamma": 0.99, "beta": 1.0, "lamda": 15.0, "K": 5, "mu": 0.001,
    "plocal_epochs": 1, "alpha": 0.5, "fine_tuning_epochs": 10,
}  # fmt: skip
OWN = {"Ditto": {"mu": 1.0}}
TESTED_AT_ONCE = 4096


class Over(Exception):
    """All wanted rounds have been tested."""


class Loader:
    """Mini-batches of a client's samples, which are on the device already, in an order that is asked for each pass."""

    def __init__(self, x: Tensor, y: Tensor, size: int, order: Callable[[], Tensor], drop_last: bool) -> None:
        self.x, self.y, self.size, self.order, self.drop_last = x, y, size, order, drop_last

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = self.order()
        order = order[: len(order) // self.size * self.size] if self.drop_last else order
        return iter(list(zip(self.x[order].split(self.size), self.y[order].split(self.size), strict=True)))


def order_samples(key: int, client: int, epoch: int, count: int, device: torch.device) -> Tensor:
    """The order of its samples in which kinfed's client trains in an epoch of the task of this key."""
    own = fold(torch.tensor(key), torch.tensor(client))
    position, n = torch.arange(count, device=device), torch.tensor(count, device=device)
    return Samples(position, position, position, n, exact=True).shuffle(fold(own.to(device), epoch))


class Driver:
    """One algorithm of PFLlib on the clients of a population."""

    def __init__(self, name: str, config: Config, population: Population, first: list[Tensor], device: str) -> None:
        self.name, self.rounds, self.seed, self.lr = name, config.rounds, config.seed, config.training.lr
        self.device = torch.device(device)
        x = (population.x.float() / 255 - 0.5) / 0.5
        self.train, self.test = (
            [(x[at].to(self.device), population.y[at].to(self.device)) for at in part]
            for part in (population.train, population.test)
        )
        self.selections = 0
        self.server = self.make_server(first)

    @property
    def round(self) -> int:
        """How many rounds have ended; PFLlib's Local selects clients twice a round."""
        return (self.selections - 1) // (2 if self.name == "Local" else 1)

    @property
    def accuracies(self) -> list[float]:
        """Those that PFLlib reports; its Ditto has those of the common model in between."""
        if self.name == "pFedMe":
            return list(self.server.rs_test_acc_per)
        return list(self.server.rs_test_acc[1::2] if self.name == "Ditto" else self.server.rs_test_acc)

    def make_network(self, first: list[Tensor]) -> nn.Module:
        """PFLlib's network with these weights."""
        models = import_module("flcore.trainmodel.models")
        channels, side = self.train[0][0].shape[1:3]
        network = models.FedAvgCNN(in_features=channels, num_classes=10, dim=1024 if side == 28 else 1600)
        for weight, value in zip(network.parameters(), first, strict=True):
            weight.data = value.clone().view_as(weight)
        if self.name in SPLIT:
            head, network.fc = copy.deepcopy(network.fc), nn.Identity()
            network = models.BaseHeadSplit(network, head)
        return network.to(self.device)

    def make_server(self, first: list[Tensor]) -> Any:
        """PFLlib's server and clients, with samples from here."""
        kept = self.rounds - 1 if self.name == "FedBABU" else self.rounds  # which tunes after its last round
        settings = SETTINGS | OWN.get(self.name, {})
        args = types.SimpleNamespace(
            **settings, model=self.make_network(first), device=self.device, num_clients=len(self.train),
            global_rounds=kept, algorithm=self.name, local_learning_rate=self.lr, p_learning_rate=self.lr,
        )  # fmt: skip
        for module in ("flcore.clients.clientbase", "flcore.servers.serverbase"):
            import_module(module).read_client_data = self.read_labels
        with redirect_stdout(StringIO()):
            server = getattr(import_module(f"flcore.servers.{MODULES[self.name]}"), self.name)(args, 0)
        server.save_results = server.save_global_model = lambda: None
        self.select, server.select_clients = server.select_clients, self.select_clients
        for client in server.clients:
            self.prepare(client)
        return server

    def prepare(self, client: Any) -> None:
        """Gives a client its samples, and an end."""
        client.load_train_data = lambda size=None: self.load_train(client, size)
        client.load_test_data = lambda size=None: Loader(
            *self.test[client.id], TESTED_AT_ONCE, lambda: torch.arange(len(self.test[client.id][1])), False
        )
        no_losses = (0, 0.0, 1) if self.name == "pFedMe" else (0.0, 1)
        client.train_metrics = client.train_metrics_personalized = lambda *_: no_losses
        client.passes, client.is_tuning = 0, False
        for name in ("train", "ptrain", "fine_tune", "train_one_step"):
            if hasattr(client, name):
                setattr(client, name, self.limit(client, getattr(client, name), name))

    def limit(self, client: Any, task: Callable[[], None], name: str) -> Callable[[], None]:
        """The same task of a client, until all rounds are over."""

        def run() -> None:
            client.is_tuning = name in ("fine_tune", "train_one_step")
            if self.round >= self.rounds and not client.is_tuning:
                raise Over
            task()
            client.passes += name == "train"

        return run

    def select_clients(self) -> Any:
        self.selections += 1
        for client in self.server.clients:
            client.passes = 0
        return self.select()

    def read_labels(self, dataset: str, client: int, is_train: bool = True, few_shot: int = 0) -> Tensor:
        return (self.train if is_train else self.test)[client][1]

    def load_train(self, client: Any, size: int | None) -> Loader:
        """A client's training samples; Per-FedAvg's second pass of a round has another order.

        Tuning, or the one step before Per-FedAvg's tests, has the orders of kinfed's evaluation, an epoch each.
        """
        x, y = self.train[client.id]
        epochs = itertools.count()

        def order() -> Tensor:
            if client.is_tuning:
                evaluation = self.round if self.name == "PerAvg" else 1  # FedBABU tunes once
                key = base_key(self.seed, "evaluate", evaluation)
                return order_samples(key, client.id, next(epochs), len(y), self.device)
            epoch, key = client.passes if self.name == "PerAvg" else 0, base_key(self.seed, "train", self.round + 1)
            return order_samples(key, client.id, epoch, len(y), self.device)

        return Loader(x, y, size or client.batch_size, order, True)

    def run(self) -> list[float]:
        """Takes the algorithm to its end: the accuracies it reports."""
        torch.manual_seed(self.seed)
        np.random.seed(self.seed)
        with redirect_stdout(StringIO()), suppress(Over):
            self.server.train()
        return self.accuracies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--code", type=Path, required=True, help="PFLlib's folder")
    parser.add_argument("--column", default="fmnist-pat", help="of the table pfllib-code")
    parser.add_argument("--algorithms", nargs="*", default=[*ROWS], choices=[*ROWS], help="some of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir", default="", help="folder with the datasets")
    parser.add_argument("--out", type=Path, default=Path("pfllib.json"))
    options = parser.parse_args()
    sys.path.insert(0, str(options.code / "system"))
    for name in UNUSED:
        sys.modules[name] = types.ModuleType(name)
    sys.modules["utils.dlg"].DLG = None
    torch.backends.cudnn.allow_tf32 = False  # as in kinfed
    if torch.device(options.device).type == "cuda":
        finish_before_exit(torch.device(options.device))
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.algorithms:
        if name not in found:
            found[name] = run_algorithm(name, options)
            options.out.write_text(json.dumps(found))
            print(options.column, name, found[name], flush=True)


def run_algorithm(name: str, options: argparse.Namespace) -> list[float]:
    """The accuracies of an algorithm, in percent, with the split, the rounds and the learning rate of its cell."""
    wanted = Wanted(rows=(ROWS[name],), columns=(options.column,), data_dir=options.data_dir)
    (config,) = cells_of(load_recipe("pfllib-code"), wanted)[0].configs((options.seed,))
    population = make_population(config)
    first = list(model_for(config, population).init().values())
    driver = Driver(name, config, population, first, options.device)
    return [round(100 * each, 2) for each in driver.run()]


if __name__ == "__main__":
    main()
