"""try.sh, with stand-ins for Flower's commands; and once with Flower itself."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from kinfed.config import DEMO, load_config, make_population
from kinfed.deployment.app_folder import TEMPLATE, write_app_folder
from kinfed.runs import SUMMARY
from tests.deployment.loopback_federation import LoopbackFederation, NetworkNamespace, isolate_network

SLEEP = shutil.which("sleep")
STAND_INS = {
    "flower-superlink": """exec python -c '
import os, signal, socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
signal.signal(signal.SIGTERM, lambda *_: os.write(2, b"superlink left\\n") and os._exit(0))
while True: server.accept()
' "$@" 2>>happened""",
    "flower-superexec": f"exec {SLEEP} 3600",
    "flower-supernode": f"""
name=$(basename "$6")
if [ -e "$name.refused" ]; then echo "Exit Code: 305"; exit 1; fi
trap '{SLEEP} 0.3; echo "$name left" >>happened; exit 0' TERM
echo "SuperNode ID: 7"
{SLEEP} 3600 & wait""",
    "kinfed": """exec python -c '
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
while True: server.accept()
' "$@" 2>>happened""",
    "flwr": "true",
    "sleep": f"exec {SLEEP} 0.1",
}


@pytest.fixture
def fed(tmp_path):
    """Two clients, and commands that only seem to be Flower's."""
    config = load_config(DEMO, ["method=fedavg", "rounds=1", "partition.clients=2", "partition.clusters=2"])
    write_app_folder(config, tmp_path / "app", make_population(config))
    (tmp_path / "bin").mkdir()
    for name, text in STAND_INS.items():
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    yield tmp_path / "app"
    step(tmp_path / "app", "down")


def step(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(folder.parent / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    output = folder.parent / "output"
    with open(output, "w") as file:  # not a pipe, which the processes that are started would hold
        ended = subprocess.run(
            ["./try.sh", *words], cwd=folder, env=os.environ | {"PATH": path}, stdout=file, stderr=file, timeout=600
        )
    return subprocess.CompletedProcess(words, ended.returncode, output.read_text())


def test_nodes_leave_before_superlink_does(fed):
    up = step(fed, "up")
    assert up.returncode == 0 and "client-00 started\nclient-01 started\n" in up.stdout, up.stdout
    assert step(fed, "down").returncode == 0
    happened = (fed / "happened").read_text().splitlines()
    assert sorted(happened[:2]) == ["client-00 left", "client-01 left"] and happened[2:] == ["superlink left"]


def test_a_refused_node_is_not_reported_as_started_and_tries_again(fed):
    (fed / "client-01.refused").touch()
    up = step(fed, "up")
    assert "client-00 started" in up.stdout and "client-01 started" not in up.stdout
    assert "client-01 is not admitted yet, and tries again every 10 s: see .flower/log/client-01.log" in up.stdout
    (fed / "client-01.refused").unlink()
    log = fed / ".flower" / "log" / "client-01.log"
    LoopbackFederation(fed, NetworkNamespace(0)).until(
        lambda: log.read_text().endswith("SuperNode ID: 7\n"), "the node's next attempt"
    )


def test_a_run_that_did_not_end_is_not_mistaken_for_an_earlier_one(fed):
    (fed / "runs" / "first").mkdir(parents=True)
    (fed / "runs" / "first" / SUMMARY).write_text("{}")
    ran = step(fed, "run")
    assert ran.returncode == 2 and "the run did not come to its end" in ran.stdout


@pytest.fixture
def keys(tmp_path):
    """A folder with nothing but the script that makes certificates, and one node."""
    shutil.copy(TEMPLATE / "certificates.sh", tmp_path)
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "client-00.toml").touch()
    return tmp_path


def make_certificates(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["./certificates.sh", *words], cwd=folder, capture_output=True, text=True)


def openssl(folder: Path, *words: str) -> str:
    return subprocess.run(["openssl", *words], cwd=folder / "certificates", capture_output=True, text=True).stdout


def sign(folder: Path, ca: str, days: int) -> bytes:
    """A certificate of the server by this authority, in place of the one that is there; gives its key."""
    openssl(folder, "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x", "-keyout", "server.key", "-out", "csr")
    openssl(folder, "x509", "-req", "-in", "csr", "-CA", f"{ca}.crt", "-CAkey", f"{ca}.key", "-CAcreateserial", "-days",
            str(days), "-out", "server.crt")  # fmt: skip
    return (folder / "certificates" / "server.key").read_bytes()


def test_certificates_are_made_anew_for_another_address_or_when_they_have_expired(keys):
    key = keys / "certificates" / "server.key"
    assert make_certificates(keys, "10.0.0.7").returncode == 0
    made = key.read_bytes()
    assert "for 10.0.0.7" in make_certificates(keys).stdout and key.read_bytes() == made
    assert make_certificates(keys, "10.0.0.8").returncode == 0 and key.read_bytes() != made
    expired = sign(keys, "ca", days=0)
    assert make_certificates(keys).returncode == 0 and key.read_bytes() != expired
    assert "IP Address:10.0.0.8" in openssl(keys, "x509", "-in", "server.crt", "-noout", "-text")
    openssl(keys, "x509", "-in", "ca.crt", "-signkey", "ca.key", "-days", "-1", "-out", "ca.crt")
    assert "ca.crt has expired: remove it" in make_certificates(keys).stderr


def test_a_certificate_of_ones_own_authority_and_its_key_are_kept(keys):
    assert make_certificates(keys).returncode == 0
    openssl(keys, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=own", "-keyout", "own.key", "-out",
            "own.crt")  # fmt: skip
    own = sign(keys, "own", days=9)
    (keys / "certificates" / "address").unlink()  # also where no certificate was made here before
    assert make_certificates(keys, "10.0.0.7").returncode == 0
    assert (keys / "certificates" / "server.key").read_bytes() == own


def test_without_the_authoritys_key_no_certificate_is_made_and_the_servers_key_is_kept(keys):
    assert make_certificates(keys).returncode == 0
    (keys / "certificates" / "ca.key").unlink()
    made = (keys / "certificates" / "server.key").read_bytes()
    assert "certificates/ca.key is needed" in make_certificates(keys, "10.0.0.7").stderr
    assert (keys / "certificates" / "server.key").read_bytes() == made


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.xdist_group("federation")
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.on_demand)])  # again, since they left in order
def test_nodes_are_admitted_each_time_at_once(times, tmp_path):
    config = load_config(DEMO, ["method=fedavg", "rounds=1", "partition.clients=1", "partition.clusters=1"])
    write_app_folder(config, tmp_path / "app", make_population(config))
    with isolate_network() as net:
        fed = LoopbackFederation(tmp_path / "app", net)
        for _ in range(times):
            up = fed.call("./try.sh", "up")
            assert "client-00 started\n" in up.stdout, fed.logs()
            fed.script("down")
            assert "Exit Code: 305" not in fed.logs()
        assert not fed.processes()
