"""Flower's real simulation, on Ray: every method gives what it gives on the vectorised engine.

CI runs five methods that between them use all that an engine gives: KINFED_FLOWER=all runs all of them.
"""

import os
from contextlib import closing, suppress
from dataclasses import replace

import psutil
import pytest
import torch

from kinfed import checkpoint
from kinfed.capabilities import FindsClusters
from kinfed.data import Role, build_population, load
from kinfed.data.partitions import Natural
from kinfed.engines import Flower, Vectorised
from kinfed.engines.flower import simulation
from kinfed.errors import ConfigError
from kinfed.experiment import Evaluation, Experiment
from kinfed.methods import FLT, FedAvg
from kinfed.models import make_model
from kinfed.training import LocalTraining
from tests.methods.registry import CASES, make, population
from tests.problems import assert_close, real_data

FIVE = ("fedavg", "scaffold", "flt", "ifca", "repa")
CHOSEN = CASES if os.environ.get("KINFED_FLOWER") == "all" else FIVE
ROLES = tuple(Role(holdout=i == 2, joins={4: 2}.get(i, 0)) for i in range(12))


def run(method, engine, clients=None, **settings):
    clients = clients or replace(population(), roles=ROLES)
    experiment = Experiment.over(
        engine(method, clients, fraction=0.5, **settings), rounds=3, evaluation=Evaluation(every=3, adapt=True)
    )
    summary = experiment.run()
    tensors: dict[str, torch.Tensor] = {}
    checkpoint.take_apart(experiment.state, "state", tensors)
    return summary, tensors, experiment


@pytest.mark.flower
def test_simulated_nodes_give_what_the_vectorised_engine_gives():
    pytest.importorskip("flwr")
    with closing(simulation.Simulation(nodes=12, workers=2)) as nodes:  # Ray takes long to start: once for all methods
        processes = simulation.list_ray_processes()
        assert list_addresses() <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"} and len(list_addresses()) > 0
        for name in CHOSEN:
            try:
                compare(make(name), nodes)
            except AssertionError as difference:
                difference.add_note(f"the method is {name}")
                raise
    assert processes and all(process.returncode is not None for process in processes)  # waited for: none leaks


@pytest.mark.flower
@pytest.mark.on_demand
def test_sensors_of_thirty_subjects_give_the_same_on_simulated_nodes():
    pytest.importorskip("flwr")
    har = load("har", real_data("har"))
    subjects = build_population(har, Natural(), seed=0, train_samples=30, test_samples=20)
    with closing(simulation.Simulation(nodes=30, workers=2)) as nodes:
        for kind in (FedAvg, FLT):
            method = kind(make_model("har_cnn", (9, 128), 6), LocalTraining(epochs=1, batch_size=10, lr=0.01))
            compare(method, nodes, subjects)


def list_addresses() -> set[str]:
    """The addresses on which this process, and all that it started, wait for others to connect."""
    me, addresses = psutil.Process(), set()
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            sockets = process.net_connections("inet")
            addresses |= {one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN}
    return addresses


def compare(method, nodes, clients=None):
    wanted, there, reference = run(method, Vectorised, clients)
    summary, here, ours = run(method, Flower, clients, simulation=nodes)
    assert_close(here, there)
    if isinstance(method, FindsClusters):
        assert torch.equal(method.cluster_assignment(ours.state), method.cluster_assignment(reference.state))
    assert ours.fed.ledger.rounds == reference.fed.ledger.rounds
    for way in ("down", "up"):
        mine, theirs = getattr(ours.fed.ledger, way), getattr(reference.fed.ledger, way)
        assert mine.keys() == theirs.keys() and all(torch.equal(mine[task], theirs[task]) for task in mine)
    assert summary.keys() == wanted.keys() and not ours.fed.rejected
    assert summary["accuracy"] == pytest.approx(wanted["accuracy"], abs=1e-5)


def test_without_flower_the_engine_says_what_to_install(monkeypatch):
    monkeypatch.setattr(simulation, "is_installed", lambda name: False)
    with pytest.raises(ConfigError, match=r"flwr and ray, which are not installed: pip install 'kinfed\[flower\]'"):
        Flower(make("fedavg"), population())


def test_flower_and_ray_report_nothing(monkeypatch, tmp_path):
    for name in (*simulation.OFFLINE, "FLWR_HOME"):
        monkeypatch.setenv(name, "before")
    monkeypatch.delenv("FLWR_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    simulation.disable_telemetry()
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0" and os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert os.environ["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert os.environ["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert os.environ["FLWR_HOME"] == str(tmp_path / "kinfed" / "flower")
