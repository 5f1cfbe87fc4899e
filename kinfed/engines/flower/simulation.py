"""Flower's simulation: many nodes on this machine's cores, or on a Ray cluster's, behind the same Grid.

Ray and Flower's own loop run beside the experiment and end with it. Samples and method are handed to Ray's workers
once; everything else crosses as messages.
"""

import logging
import os
import secrets
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from subprocess import Popen
from typing import TYPE_CHECKING, NamedTuple

from kinfed.data.datasets import cache_folder
from kinfed.data.population import Population
from kinfed.engines.flower.messages import ConfigValues, NodeIdentity
from kinfed.engines.flower.network_federation import NetworkFederation
from kinfed.engines.flower.node import ClientData, ClientNode
from kinfed.engines.flower.patience import Patience
from kinfed.errors import ConfigError, NetworkError
from kinfed.method import Method
from kinfed.privacy import OPEN, Privacy
from kinfed.registry import is_installed

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid
    from ray import ObjectRef
    from ray.actor import ActorHandle

    from kinfed.engines.flower.transport import Transport

LOG = logging.getLogger("kinfed.engines")
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray warns unless it is said
}
NODES = "nodes"  # in a run folder: the memories of its clients
START_SECONDS = 600.0  # that Ray and the nodes have to start, or to end


class SimulatedRun(NamedTuple):
    """What the clients of a run have in common."""

    method: Method[object]
    population: Population
    memory_folder: Path | None  # None: memories are in Flower's context
    device: str
    privacy: Privacy = OPEN


LOADED: dict[str, SimulatedRun] = {}  # in a worker: the run it works for


def require_flower() -> None:
    """Raises unless Flower and Ray are installed."""
    missing = [name for name in ("flwr", "ray") if not is_installed(name)]
    if missing:
        raise ConfigError(
            f"engine 'flower' needs {' and '.join(missing)}, which {'are' if missing[1:] else 'is'} not installed: "
            "pip install 'kinfed[flower]'"
        )


def disable_telemetry() -> None:
    """Switches off all that Flower and Ray would report or install; also for the processes they start."""
    os.environ.setdefault("FLWR_HOME", str(cache_folder("flower")))  # it writes a file even when switched off
    os.environ.update(OFFLINE)


def bind_ray_to_loopback() -> None:
    """Lets a Ray that is started here listen on loopback alone, and ask for a token there: it runs what reaches it."""
    if "ray" not in sys.modules:  # it reads them when it is loaded, and never again
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    from ray._private import ray_constants

    vars(ray_constants)["ENABLE_RAY_CLUSTER"] = False  # as elsewhere than on Linux: its address is 127.0.0.1


class Simulation:
    """Flower's nodes, ready for messages; federations may use it one after the other."""

    def __init__(self, nodes: int, workers: int = 1, gpus: float = 0.0) -> None:
        require_flower()
        disable_telemetry()
        self.nodes, self.workers, self.gpus = nodes, workers, gpus
        self.over = threading.Event()
        self.grids: Queue[Grid | BaseException] = Queue()
        self.store = self._start_ray()
        self.thread = threading.Thread(target=self._serve, name="kinfed-flower", daemon=True)
        self.thread.start()
        vars(threading)["_register_atexit"](self.over.set)  # `atexit` is too late for Flower's threads
        try:
            grid = self.grids.get(timeout=START_SECONDS)
        except Empty:
            grid = NetworkError(f"Flower's simulation did not start within {START_SECONDS:.0f} s")
        if isinstance(grid, BaseException):
            self.close()
            raise NetworkError(f"Flower's simulation did not start: {grid}") from grid
        self.grid = grid

    def publish(self, token: str, run: SimulatedRun) -> None:
        """Hands workers what the clients of a run have and compute with."""
        import ray

        ray.get(self.store.put.remote(token, [ray.put(run)]))

    def close(self) -> None:
        """Ends all that was started, and waits for the end of it."""
        import ray

        processes = list_ray_processes()  # before Flower's own loop shuts Ray down
        self.over.set()
        self.thread.join(timeout=START_SECONDS)
        ray.shutdown()
        for process in processes:
            process.wait(timeout=START_SECONDS)

    def _start_ray(self) -> "ActorHandle":
        if "RAY_ADDRESS" not in os.environ:  # else on a cluster of the user's own
            bind_ray_to_loopback()
        import ray

        if not ray.is_initialized():
            path = os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])
            where = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": self.workers, "include_dashboard": False}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    ray.init(
                        logging_level=logging.ERROR, log_to_driver=False,
                        runtime_env={"env_vars": OFFLINE | {"PYTHONPATH": path}}, **where,
                    )  # fmt: skip
                except (ConnectionError, OSError, RuntimeError, ValueError) as error:
                    raise NetworkError(f"Ray did not start: {error}") from error
        return ray.remote(num_cpus=0)(RunStore).remote()

    def _serve(self) -> None:
        """Flower's own loop, until the simulation is over."""
        from flwr.simulation import run_simulation

        from kinfed.engines.flower.transport import build_client_app, build_server_app

        def main(grid: "Grid", context: "Context") -> None:
            self.grids.put(grid)
            self.over.wait()

        app = build_client_app(partial(load_node, self.store), partial(find_memory_folder, self.store))
        resources = {"num_cpus": 1, "num_gpus": self.gpus}
        with silence_flower():
            try:
                run_simulation(build_server_app(main), app, self.nodes, backend_config={"client_resources": resources})
            except BaseException as error:
                self.grids.put(error)


def list_ray_processes() -> list["Popen[bytes]"]:
    """The processes that Ray started here. Ray kills them and does not wait for all, which leaks their handles."""
    from ray._private import worker

    node = worker._global_node
    return [info.process for infos in node.all_processes.values() for info in infos] if node else []


class RunStore:
    """A Ray actor with what workers load once, by run."""

    def __init__(self) -> None:
        self.runs: dict[str, list[ObjectRef]] = {}

    def put(self, token: str, objects: "list[ObjectRef]") -> None:
        """Replaces the run: there is one at a time."""
        self.runs = {token: objects}

    def get(self, token: str) -> "list[ObjectRef]":
        """The objects of a run."""
        return self.runs[token]


@contextmanager
def silence_flower() -> Iterator[None]:
    """Inside it Flower logs errors only, neither its start nor that this way to start it is deprecated."""
    log = logging.getLogger("flwr")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def load_node(store: "ActorHandle", context: "Context", token: str) -> ClientNode:
    """In a worker: the client of a node."""
    run, number = load_run(store, token), int(context.node_config["partition-id"])
    role, data = run.population.role(number), partial(select_data, run.population, number)
    return ClientNode(
        str(number), run.method, data, number, role.labelled, role.holdout, run.device, privacy=run.privacy
    )


def find_memory_folder(store: "ActorHandle", context: "Context", token: str) -> Path | None:
    """In a worker: where clients of this run keep their memory; None: in Flower's context."""
    return load_run(store, token).memory_folder


def load_run(store: "ActorHandle", token: str) -> SimulatedRun:
    """In a worker: what was published of this run, loaded once."""
    import ray

    if token not in LOADED:
        run: SimulatedRun = ray.get(ray.get(store.get.remote(token))[0])
        LOADED.clear()
        LOADED[token] = run
    return LOADED[token]


def select_data(population: Population, client: int, round: int) -> ClientData:
    """The samples that a client has in a round."""
    train, test = population.train[client], population.test[client]
    for change in population.changes:
        at = (change.clients == client).nonzero()
        if change.round <= round and len(at):
            train, test = change.train[int(at[0])], change.test[int(at[0])]
    return ClientData(population.x[train], population.y[train], population.x[test], population.y[test])


class Flower(NetworkFederation):
    """Clients are nodes of Flower, simulated by Ray; the same messages reach deployed ones."""

    def __init__(
        self, method: Method[object], population: Population, *, fraction: float = 1.0, seed: int = 0,
        device: str = "cpu", timeout: float = 600.0, attempts: int = 2, workers: int = 1,
        simulation: Simulation | None = None,
    ) -> None:  # fmt: skip
        require_flower()
        super().__init__(
            method, population, fraction=fraction, seed=seed, device=device, patience=Patience(timeout, attempts)
        )
        self.workers = workers  # clients at once
        self.given = simulation
        self.running: tuple[Simulation, Transport] | None = None
        self.memory_folder: Path | None = None

    def settle(self, folder: Path) -> None:
        self.memory_folder = (folder / NODES).absolute()

    def open(self) -> None:
        LOG.info("starting Flower's simulation of %d clients, %d at once", self.count, self.workers)
        self._start()

    @property
    def transport(self) -> "Transport":
        return self._start()[1]

    def close(self) -> None:
        if self.running and self.given is None:
            self.running[0].close()
        self.running = None

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        super().load_state_dict(state_dict)
        if self.running:
            self._publish(self.running[0])  # under the id that the run had before
            self.wait_for_clients(self.count, START_SECONDS)

    def _start(self) -> "tuple[Simulation, Transport]":
        """The simulation, started and with all clients enrolled at the first call."""
        from kinfed.engines.flower.transport import Transport

        if self.running is None:
            gpus = 1 / self.workers if self.device.type == "cuda" else 0.0
            simulation = self.given or Simulation(self.count, self.workers, gpus)
            self._publish(simulation)
            self.running = simulation, Transport(simulation.grid)
            self.wait_for_clients(self.count, START_SECONDS)
        return self.running

    def _publish(self, simulation: Simulation) -> None:
        run = SimulatedRun(self.method, self.population, self.memory_folder, self.device.type, self.privacy)
        simulation.publish(self.token, run)

    def _find_client(self, enrolment: ConfigValues, node: int, identity: NodeIdentity) -> int | str:
        number = enrolment.get("number")
        return number if type(number) is int and 0 <= number < self.count else f"there is no client {number}"
