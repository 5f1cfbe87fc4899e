"""A real federation: Flower's SuperLink and SuperNodes as processes, over TLS, with authenticated nodes.

One story for all tests, since it takes minutes. FLT and REPA run side by side over clients 0, 1, 3 and 4; client 5 has
a key that is not registered. Client 2 joins when both have begun. FLT's server is killed after its first round. After
REPA's first, client 4's node is killed, and FLT's run is started again. Then SuperLink is killed and started again.
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
from kinfed.deployment.app_folder import write_app_folder
from kinfed.engines.flower.deployed import ROSTER
from kinfed.runs import CHECKPOINT, SUMMARY
from tests.deployment.loopback_federation import LoopbackFederation, foreign_peers, isolate_network
from tests.problems import same_clusters

pytestmark = [pytest.mark.flower, pytest.mark.slow, pytest.mark.on_demand, pytest.mark.xdist_group("federation")]

STARTERS = ("client-00", "client-01", "client-03", "client-04")
KILLED, LATE, UNREGISTERED = "client-04", "client-02", "client-05"
SERVER = "flwr-serverapp"  # in the command line of a process that is a run's server
ROUNDS = {"flt": 2, "repa": 3}  # FLT's second start waits for the late client; REPA trains with it in its third round
SMALL = ["fraction=1.0", "partition.clients=6", "partition.clusters=2", "checkpoint_every=1", "evaluation.every=9",
         "engine.timeout=300"]  # fmt: skip
CASES = {
    "flt": [],
    "repa": ["methods.repa.clusters=2", "methods.repa.signature.encoder_rounds=1",
             "methods.repa.signature.training.epochs=1"],
}  # fmt: skip


@dataclass(frozen=True)
class Story:
    """What the tests look at."""

    fed: LoopbackFederation
    unregistered: "subprocess.CompletedProcess[str]"
    without_tls: "subprocess.CompletedProcess[str]"
    in_plain_text: "subprocess.CompletedProcess[str]"
    peers: set[str]  # beyond loopback, of all sockets, whenever looked at
    attempts: int  # to reach anything but loopback, of all processes
    left: set[int]  # processes after the end

    def table(self, method: str, name: str) -> list[dict[str, str]]:
        with open(self.fed.folder / "runs" / method / f"{name}.csv", newline="") as file:
            return list(csv.DictReader(file))

    def read_planted(self) -> list[dict[str, str]]:
        with open(self.fed.folder / "data" / "planted.csv", newline="") as file:
            return list(csv.DictReader(file))

    def events(self, method: str) -> list[dict[str, object]]:
        lines = (self.fed.folder / "runs" / method / "events.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    parent = tmp_path_factory.mktemp("federation")
    for method, settings in CASES.items():
        config = load_config(DEMO, [f"method={method}", f"rounds={ROUNDS[method]}", *SMALL, *settings])
        write_app_folder(config, parent / method, make_population(config))
        plan = parent / method / "kinfed_app" / "plan.toml"
        plan.write_text(plan.read_text().replace("wait_for = 6", "wait_for = 4"))
    with isolate_network() as net:
        fed = LoopbackFederation(parent / "flt", net)
        try:
            outcome = play(fed)
        finally:
            fed.call("./try.sh", "down")
        yield Story(fed, *outcome, attempts=net.attempts() if net.holder else 0, left=fed.processes())


def play(fed: LoopbackFederation) -> tuple[object, ...]:
    """What happened, in order."""
    fed.script("server")
    for name in STARTERS:
        fed.script("node", name)
    submit(fed, "flt")
    fed.until(lambda: bool(fed.processes(SERVER)), "FLT's server")
    server = fed.processes(SERVER)
    submit(fed, "repa")
    refused = connect_unregistered(fed), connect_without_tls(fed), send_plain_text(fed)
    fed.until(lambda: fed.has("repa", ROSTER), "the clients of REPA's run")
    fed.script("node", LATE)  # now: on a busy machine a node takes as long to start as a round
    fed.until(lambda: fed.has("flt", CHECKPOINT), "FLT's first round")
    for pid in server:
        os.kill(pid, signal.SIGKILL)
    fed.until(lambda: fed.has("repa", CHECKPOINT), "REPA's first round")
    fed.kill(KILLED)
    submit(fed, "flt")
    fed.until(lambda: "resumed" in (fed.folder / "runs/flt/events.jsonl").read_text(), "FLT's second start")
    fed.kill("superlink")
    fed.script("server")
    peers: set[str] = set()
    fed.until(lambda: have_ended(fed, peers), "the end of both runs")
    return *refused, peers


def submit(fed: LoopbackFederation, method: str) -> None:
    """Starts a run as a user would; what it is given besides is where the run is written."""
    result = fed.call("flwr", "run", f"../{method}", "here", "--run-config", f'out="runs/{method}"')
    assert result.returncode == 0, result.stdout


def have_ended(fed: LoopbackFederation, peers: set[str]) -> bool:
    """Whether both runs have ended; notes the peers of processes meanwhile, if they could have any."""
    if not fed.network.holder:
        peers |= foreign_peers(fed.processes())
    return all(fed.has(method, SUMMARY) for method in CASES)


def connect_unregistered(fed: LoopbackFederation) -> "subprocess.CompletedProcess[str]":
    """A node whose key is not registered."""
    return fed.call(
        "flower-supernode", "--superlink", fed.address(), "--root-certificates", "certificates/ca.crt",
        "--auth-supernode-private-key", f"keys/{UNREGISTERED}", "--port", fed.free_port(), "--max-retries", "1",
    )  # fmt: skip


def connect_without_tls(fed: LoopbackFederation) -> "subprocess.CompletedProcess[str]":
    """A node that speaks plain HTTP."""
    return fed.call(
        "flower-supernode", "--superlink", fed.address(), "--insecure", "--port", fed.free_port(),
        "--max-retries", "1", "--max-wait-time", "5",
    )  # fmt: skip


def send_plain_text(fed: LoopbackFederation) -> "subprocess.CompletedProcess[str]":
    """A process that sends one line of HTTP without TLS, and prints the response."""
    host, _, port = fed.address().partition(":")
    code = (
        f"import socket; s = socket.create_connection(('{host}', {port}), 20); s.sendall(b'GET / HTTP/1.1\\r\\nHost: x"
    )
    return fed.call(sys.executable, "-c", code + "\\r\\n\\r\\n'); print('got', s.recv(99))")


@pytest.mark.parametrize("method", CASES)
def test_the_planted_clusters_are_found(story: Story, method: str):
    names = [row["name"] for row in story.table(method, "roster")]
    planted = {row["name"]: int(row["cluster"]) for row in story.read_planted()}
    last = story.table(method, "clusters")
    found = {int(row["client"]): int(row["cluster"]) for row in last if row["round"] == last[-1]["round"]}
    assert set(STARTERS) <= set(names)
    assert same_clusters(torch.tensor([found[i] for i in range(len(names))]), torch.tensor([planted[n] for n in names]))


@pytest.mark.parametrize("method", CASES)
def test_the_late_client_was_assigned_and_trained(story: Story, method: str):
    late = next(row for row in story.table(method, "roster") if row["name"] == LATE)
    assert int(late["joins"]) >= 1
    trained = {row["client"] for row in story.table(method, "ledger_clients") if row["task"] == "train"}
    assert late["client"] in trained


def test_the_killed_node_stopped_no_other(story: Story):
    gone = next(row["client"] for row in story.table("repa", "roster") if row["name"] == KILLED)
    missing = [event for event in story.events("repa") if event["event"] == "missing reply"]
    assert {str(event["client"]) for event in missing} == {gone}
    for method in CASES:
        assert [int(row["round"]) for row in story.table(method, "rounds")] == [*range(1, ROUNDS[method] + 1)]
        assert float(story.table(method, "rounds")[-1]["accuracy"]) > 0.8


def test_the_killed_server_resumed_from_its_checkpoint(story: Story):
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
