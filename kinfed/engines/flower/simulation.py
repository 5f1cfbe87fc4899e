"""Flower's simulation: many nodes on this machine's cores, or on a Ray cluster's, behind the same Grid.

Ray and Flower's own loop run beside the experiment and end with it. Rows and algorithm are handed to Ray's workers
once; everything else crosses as letters.
"""

import gc
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, NamedTuple

from kinfed.data.population import Population
from kinfed.engines.flower.networked import Networked
from kinfed.engines.flower.packing import Facts
from kinfed.engines.flower.site import Holding, Site
from kinfed.errors import ConfigError, NetworkError
from kinfed.method import Method
from kinfed.registry import is_installed

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid
    from ray import ObjectRef
    from ray.actor import ActorHandle

    from kinfed.engines.flower.messages import Post

LOG = logging.getLogger("kinfed.engines")
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray warns unless it is said
}
NODES = "nodes"  # in a run folder: what its clients remember
START = 180.0  # seconds that Ray and the nodes have to come up


class Hosted(NamedTuple):
    """What the clients of a run have in common."""

    method: Method[object]
    population: Population
    home: Path | None  # where they keep their memory; None: in Flower's context
    device: str


FETCHED: dict[str, Hosted] = {}  # in a worker: of the run it works for


def need_flower() -> None:
    """Raises unless Flower and Ray are installed."""
    missing = [name for name in ("flwr", "ray") if not is_installed(name)]
    if missing:
        raise ConfigError(
            f"engine 'flower' needs {' and '.join(missing)}, which {'are' if missing[1:] else 'is'} not installed: "
            "pip install 'kinfed[flower]'"
        )


def stay_offline() -> None:
    """Switches off all that Flower and Ray would tell others; also for the processes they start."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    os.environ.setdefault("FLWR_HOME", str(cache / "kinfed" / "flower"))  # it writes a file even when switched off
    os.environ.update(OFFLINE)


class Simulation:
    """Flower's nodes, ready to be sent letters; federations may use it one after the other."""

    def __init__(self, nodes: int, workers: int = 1, gpus: float = 0.0) -> None:
        need_flower()
        stay_offline()
        self.nodes, self.workers, self.gpus = nodes, workers, gpus
        self.over = threading.Event()
        self.grids: Queue[Grid | BaseException] = Queue()
        self.shelf = self._start_ray()
        self.thread = threading.Thread(target=self._serve, name="kinfed-flower", daemon=True)
        self.thread.start()
        threading._register_atexit(self.over.set)  # type: ignore[attr-defined]  # atexit is too late: Flower's threads
        try:
            grid = self.grids.get(timeout=START)
        except Empty:
            grid = NetworkError(f"Flower's simulation did not start within {START:.0f} s")
        if isinstance(grid, BaseException):
            self.close()
            raise NetworkError(f"Flower's simulation did not start: {grid}") from grid
        self.grid = grid

    def host(self, token: str, hosted: Hosted) -> None:
        """Hands workers what the clients of a run have and compute with, and where they keep their memory."""
        import ray

        ray.get(self.shelf.put.remote(token, [ray.put(hosted)]))

    def close(self) -> None:
        """Ends all that was started."""
        import ray

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # Ray does not wait for the processes that it ends
            self.over.set()
            if self.thread.is_alive():
                self.thread.join(timeout=30)
            ray.shutdown()
            gc.collect()

    def _start_ray(self) -> "ActorHandle":
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
        return ray.remote(num_cpus=0)(Shelf).remote()

    def _serve(self) -> None:
        """Flower's own loop, until the simulation is over."""
        from flwr.simulation import run_simulation

        from kinfed.engines.flower.messages import client_app, server_app

        def main(grid: "Grid", context: "Context") -> None:
            self.grids.put(grid)
            self.over.wait()

        app = client_app(partial(site_at, self.shelf), partial(home_at, self.shelf))
        resources = {"num_cpus": 1, "num_gpus": self.gpus}
        with quiet():
            try:
                run_simulation(server_app(main), app, self.nodes, backend_config={"client_resources": resources})
            except BaseException as error:
                self.grids.put(error)


class Shelf:
    """What workers fetch once, by run."""

    def __init__(self) -> None:
        self.runs: dict[str, list[ObjectRef]] = {}

    def put(self, token: str, things: "list[ObjectRef]") -> None:
        self.runs = {token: things}  # one run at a time

    def get(self, token: str) -> "list[ObjectRef]":
        return self.runs[token]


@contextmanager
def quiet() -> Iterator[None]:
    """Inside it Flower logs errors only: it would tell of its start, and that this way to start it is an old one."""
    log = logging.getLogger("flwr")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def site_at(shelf: "ActorHandle", context: "Context", token: str) -> Site:
    """In a worker: the client that a node stands for."""
    hosted, number = fetched(shelf, token), int(context.node_config["partition-id"])
    role, rows = hosted.population.role(number), partial(rows_of, hosted.population, number)
    return Site(str(number), hosted.method, rows, number, role.labelled, role.holdout, hosted.device)


def home_at(shelf: "ActorHandle", context: "Context", token: str) -> Path | None:
    """In a worker: where clients of this run keep their memory; None: in Flower's context."""
    return fetched(shelf, token).home


def fetched(shelf: "ActorHandle", token: str) -> Hosted:
    """In a worker: what `host` was given, fetched once."""
    import ray

    if token not in FETCHED:
        hosted: Hosted = ray.get(ray.get(shelf.get.remote(token))[0])
        FETCHED.clear()
        FETCHED[token] = hosted
    return FETCHED[token]


def rows_of(population: Population, client: int, round: int) -> Holding:
    """The rows that a client has in a round."""
    train, test = population.train[client], population.test[client]
    for change in population.changes:
        at = (change.clients == client).nonzero()
        if change.round <= round and len(at):
            train, test = change.train[int(at[0])], change.test[int(at[0])]
    return Holding(population.x[train], population.y[train], population.x[test], population.y[test])


class Flower(Networked):
    """Clients are nodes of Flower, simulated by Ray; the same letters reach deployed ones."""

    def __init__(
        self, method: Method[object], population: Population, *, fraction: float = 1.0, seed: int = 0,
        device: str = "cpu", timeout: float = 600.0, attempts: int = 2, workers: int = 1,
        simulation: Simulation | None = None,
    ) -> None:  # fmt: skip
        need_flower()
        super().__init__(
            method, population, fraction=fraction, seed=seed, device=device, timeout=timeout, attempts=attempts
        )
        self.workers = workers  # clients at once
        self.given = simulation
        self.running: tuple[Simulation, Post] | None = None
        self.home: Path | None = None

    def settle(self, folder: Path) -> None:
        self.home = (folder / NODES).absolute()

    def open(self) -> None:
        LOG.info("starting Flower's simulation of %d clients, %d at once", self.count, self.workers)
        assert self.post

    @property
    def post(self) -> "Post":
        if self.running is None:
            self.running = self._started()
            self.gather(self.count, START)
        return self.running[1]

    def close(self) -> None:
        if self.running and self.given is None:
            self.running[0].close()
        self.running = None

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        super().load_state_dict(state_dict)
        if self.running:
            self._host(self.running[0])  # under the name that the run had before
            self.gather(self.count, START)

    def _started(self) -> "tuple[Simulation, Post]":
        gpus = 1 / self.workers if self.device.type == "cuda" else 0.0
        simulation = self.given or Simulation(self.count, self.workers, gpus)
        from kinfed.engines.flower.messages import Post

        self._host(simulation)
        return simulation, Post(simulation.grid)

    def _host(self, simulation: Simulation) -> None:
        simulation.host(self.token, Hosted(self.method, self.population, self.home, self.device.type))

    def _seat(self, facts: Facts, node: int) -> int | None:
        number = facts.get("number")
        return number if type(number) is int and 0 <= number < self.count else None
