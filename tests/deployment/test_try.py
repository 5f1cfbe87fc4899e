"""try.sh, with stand-ins for Flower's commands; and once with Flower itself."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from kinfed.config import DEMO, load_config, make_population
from kinfed.deployment.folder import new_folder
from kinfed.runs import SUMMARY
from tests.deployment.loopback_town import Island, Town, island

SLEEP = shutil.which("sleep")
STAND_INS = {
    "flower-superlink": """exec python -c '
import os, signal, socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
signal.signal(signal.SIGTERM, lambda *_: os.write(2, b"superlink left\\n") and os._exit(0))
while True: server.accept()
' "$@" 2>>happened""",
    "flower-superexec": f"exec {SLEEP} 60",
    "flower-supernode": f"""
name=$(basename "$6")
if [ -e "$name.refused" ]; then echo "Exit Code: 305"; exit 1; fi
trap '{SLEEP} 0.3; echo "$name left" >>happened; exit 0' TERM
echo "SuperNode ID: 7"
{SLEEP} 60 & wait""",
    "flwr": "true",
    "sleep": f"exec {SLEEP} 0.1",
}


@pytest.fixture
def town(tmp_path):
    """Two clients, and commands that only seem to be Flower's."""
    config = load_config(DEMO, ["method=fedavg", "rounds=1", "partition.clients=2", "partition.clusters=2"])
    new_folder(config, tmp_path / "app", make_population(config))
    (tmp_path / "bin").mkdir()
    for name, text in STAND_INS.items():
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    yield tmp_path / "app"
    step(tmp_path / "app", "down")


def step(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(folder.parent / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    said = folder.parent / "said"
    with open(said, "w") as file:  # not a pipe, which those who are started would hold
        ended = subprocess.run(
            ["./try.sh", *words], cwd=folder, env=os.environ | {"PATH": path}, stdout=file, stderr=file, timeout=60
        )
    return subprocess.CompletedProcess(words, ended.returncode, said.read_text())


def test_nodes_leave_before_superlink_does(town):
    up = step(town, "up")
    assert up.returncode == 0 and "client-00 started\nclient-01 started\n" in up.stdout, up.stdout
    assert step(town, "down").returncode == 0
    happened = (town / "happened").read_text().splitlines()
    assert sorted(happened[:2]) == ["client-00 left", "client-01 left"] and happened[2:] == ["superlink left"]


def test_a_node_that_is_refused_is_not_said_to_have_started_and_tries_again(town):
    (town / "client-01.refused").touch()
    up = step(town, "up")
    assert "client-00 started" in up.stdout and "client-01 started" not in up.stdout
    assert "client-01 is not let in yet, and tries again every 10 s: see .flower/log/client-01.log" in up.stdout
    (town / "client-01.refused").unlink()
    log = town / ".flower" / "log" / "client-01.log"
    Town(town, Island(0)).until(lambda: log.read_text().endswith("SuperNode ID: 7\n"), "the node's next attempt")


def test_a_run_that_did_not_end_is_not_taken_for_an_earlier_one(town):
    (town / "runs" / "first").mkdir(parents=True)
    (town / "runs" / "first" / SUMMARY).write_text("{}")
    ran = step(town, "run")
    assert ran.returncode == 2 and "the run did not come to its end" in ran.stdout


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.xdist_group("federation")
def test_nodes_are_let_in_again_at_once(tmp_path):
    config = load_config(DEMO, ["method=fedavg", "rounds=1", "partition.clients=2", "partition.clusters=2"])
    new_folder(config, tmp_path / "app", make_population(config))
    with island() as net:
        town = Town(tmp_path / "app", net)
        for _ in range(2):
            up = town.call("./try.sh", "up")
            assert "client-00 started\nclient-01 started\n" in up.stdout, town.logs()
            town.script("down")
            assert "Exit Code: 305" not in town.logs()
        assert not town.processes()
