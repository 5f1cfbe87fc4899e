"""A real federation: Flower's SuperLink and SuperNodes as processes, over TLS, with nodes that prove who they are.

One story for all tests, since it takes minutes. FLT and REPA run side by side over clients 0, 1, 3 and 4; client 5 has
a key that nobody registered. FLT's server is killed after its first round. After REPA's first, client 4's node is
killed, client 2 comes, and FLT's run is started again. Then SuperLink is killed and started again.
"""

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

pytest.importorskip("flwr")

from kinfed.config import DEMO, load_config, make_population
from kinfed.deployment.folder import new_folder
from kinfed.runs import CHECKPOINT, SUMMARY
from tests.deployment.loopback_town import Town, foreign_peers, island
from tests.problems import same_clusters

pytestmark = [pytest.mark.flower, pytest.mark.slow, pytest.mark.xdist_group("federation")]

STARTERS = ("client-00", "client-01", "client-03", "client-04")
KILLED, LATE, STRANGER = "client-04", "client-02", "client-05"
SERVER = "flwr-serverapp"  # in the command line of a process that is a run's server
ROUNDS = {"flt": 2, "repa": 3}  # FLT's second start waits for who is late; REPA trains with it in its third round
SMALL = ["fraction=1.0", "partition.clients=6", "partition.clusters=2", "checkpoint_every=1", "evaluation.every=9",
         "engine.timeout=90"]  # fmt: skip
CASES = {
    "flt": [],
    "repa": ["methods.repa.clusters=2", "methods.repa.signature.encoder_rounds=1",
             "methods.repa.signature.training.epochs=1"],
}  # fmt: skip


@dataclass(frozen=True)
class Story:
    """What was seen."""

    town: Town
    unregistered: "subprocess.CompletedProcess[str]"
    without_tls: "subprocess.CompletedProcess[str]"
    in_plain_text: "subprocess.CompletedProcess[str]"
    peers: set[str]  # beyond loopback, of all sockets, at all looks
    attempts: int  # to reach anything but loopback, of all processes
    left: set[int]  # processes after the end

    def table(self, method: str, name: str) -> list[dict[str, str]]:
        with open(self.town.folder / "runs" / method / f"{name}.csv", newline="") as file:
            return list(csv.DictReader(file))

    def planted(self) -> list[dict[str, str]]:
        with open(self.town.folder / "data" / "planted.csv", newline="") as file:
            return list(csv.DictReader(file))

    def events(self, method: str) -> list[dict[str, object]]:
        lines = (self.town.folder / "runs" / method / "events.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    parent = tmp_path_factory.mktemp("federation")
    for method, settings in CASES.items():
        config = load_config(DEMO, [f"method={method}", f"rounds={ROUNDS[method]}", *SMALL, *settings])
        new_folder(config, parent / method, make_population(config))
        plan = parent / method / "kinfed_app" / "plan.toml"
        plan.write_text(plan.read_text().replace("wait_for = 6", "wait_for = 4"))
    with island() as net:
        town = Town(parent / "flt", net)
        try:
            told = told_by(town)
        finally:
            town.call("./try.sh", "down")
        yield Story(town, *told, attempts=net.attempts() if net.holder else 0, left=town.processes())


def told_by(town: Town) -> tuple[object, ...]:
    """What happened, in order."""
    town.script("server")
    for name in STARTERS:
        town.script("node", name)
    submit(town, "flt")
    town.until(lambda: bool(town.processes(SERVER)), "FLT's server")
    server = town.processes(SERVER)
    submit(town, "repa")
    refused = unregistered(town), without_tls(town), in_plain_text(town)
    town.until(lambda: town.has("flt", CHECKPOINT), "FLT's first round")
    for pid in server:
        os.kill(pid, signal.SIGKILL)
    town.until(lambda: town.has("repa", CHECKPOINT), "REPA's first round")
    town.kill(KILLED)
    town.script("node", LATE)
    submit(town, "flt")
    town.until(lambda: "resumed" in (town.folder / "runs/flt/events.jsonl").read_text(), "FLT's second start")
    town.kill("superlink")
    town.script("server")
    peers: set[str] = set()
    town.until(lambda: ended(town, peers), "the end of both runs")
    return *refused, peers


def submit(town: Town, method: str) -> None:
    """Starts a run as a user would; what it is given besides is where the run is written."""
    result = town.call("flwr", "run", f"../{method}", "here", "--run-config", f'out="runs/{method}"')
    assert result.returncode == 0, result.stdout


def ended(town: Town, peers: set[str]) -> bool:
    """Whether both runs have; notes whom processes are connected to meanwhile, if they could be to anybody."""
    if not town.island.holder:
        peers |= foreign_peers(town.processes())
    return all(town.has(method, SUMMARY) for method in CASES)


def unregistered(town: Town) -> "subprocess.CompletedProcess[str]":
    """A node whose key the server does not know."""
    return town.call(
        "flower-supernode", "--superlink", town.address(), "--root-certificates", "certificates/ca.crt",
        "--auth-supernode-private-key", f"keys/{STRANGER}", "--port", town.free_port(), "--max-retries", "1",
    )  # fmt: skip


def without_tls(town: Town) -> "subprocess.CompletedProcess[str]":
    """A node that speaks plain HTTP."""
    return town.call(
        "flower-supernode", "--superlink", town.address(), "--insecure", "--port", town.free_port(),
        "--max-retries", "1", "--max-wait-time", "5",
    )  # fmt: skip


def in_plain_text(town: Town) -> "subprocess.CompletedProcess[str]":
    """Somebody who sends one line of HTTP without TLS, and prints what comes back."""
    host, _, port = town.address().partition(":")
    code = (
        f"import socket; s = socket.create_connection(('{host}', {port}), 20); s.sendall(b'GET / HTTP/1.1\\r\\nHost: x"
    )
    return town.call(sys.executable, "-c", code + "\\r\\n\\r\\n'); print('got', s.recv(99))")


@pytest.mark.parametrize("method", CASES)
def test_the_planted_clusters_are_found(story: Story, method: str):
    names = [row["name"] for row in story.table(method, "roster")]
    planted = {row["name"]: int(row["cluster"]) for row in story.planted()}
    last = story.table(method, "clusters")
    found = {int(row["client"]): int(row["cluster"]) for row in last if row["round"] == last[-1]["round"]}
    assert set(STARTERS) <= set(names)
    assert same_clusters(torch.tensor([found[i] for i in range(len(names))]), torch.tensor([planted[n] for n in names]))


@pytest.mark.parametrize("method", CASES)
def test_who_came_late_was_placed_and_trained(story: Story, method: str):
    late = next(row for row in story.table(method, "roster") if row["name"] == LATE)
    assert int(late["joins"]) >= 1
    trained = {row["client"] for row in story.table(method, "ledger_clients") if row["task"] == "train"}
    assert late["client"] in trained


def test_the_killed_node_stopped_nobody(story: Story):
    gone = next(row["client"] for row in story.table("repa", "roster") if row["name"] == KILLED)
    missing = [event for event in story.events("repa") if event["event"] == "missing reply"]
    assert {str(event["client"]) for event in missing} == {gone}
    for method in CASES:
        assert [int(row["round"]) for row in story.table(method, "rounds")] == [*range(1, ROUNDS[method] + 1)]
        assert float(story.table(method, "rounds")[-1]["accuracy"]) > 0.8


def test_the_killed_server_went_on_from_its_checkpoint(story: Story):
    assert [e["event"] for e in story.events("flt") if e["event"] in ("started", "resumed", "ended")] == [
        "started", "resumed", "ended",
    ]  # fmt: skip


def test_a_node_with_an_unregistered_key_is_refused(story: Story):
    assert story.unregistered.returncode != 0 and "2004" in story.unregistered.stdout


def test_plain_text_is_refused(story: Story):
    assert story.without_tls.returncode != 0
    assert "HTTP/1.1" not in story.in_plain_text.stdout


def test_nothing_left_loopback(story: Story):
    assert story.attempts == 0 and not story.peers


def test_nothing_is_left_running(story: Story):
    assert not story.left
