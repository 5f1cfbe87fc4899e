"""Containers and units: they are well-formed, SuperLink stays on loopback, and the same processes run a federation."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from typer.testing import CliRunner

from kinfed.cli import app
from kinfed.config import load_config
from kinfed.deployment import Plan
from kinfed.deployment.app_folder import write_app_folder
from kinfed.deployment.live_status import read_status
from kinfed.deployment.service_files import ServiceSettings, write_docker_files, write_units
from kinfed.errors import ConfigError
from kinfed.runs import SUMMARY
from tests.deployment.loopback_federation import LoopbackFederation, isolate_network
from tests.deployment.test_node_data import NAMES, write_images, write_parquet

yaml = pytest.importorskip("yaml")
SERVICE = {
    "image", "build", "command", "working_dir", "volumes", "user", "restart", "cap_drop", "security_opt", "environment",
    "ports", "healthcheck", "network_mode", "depends_on",
}  # fmt: skip
NODES = ("client-00", "client-01")
PLAN = Plan(clients=2, shape=(1, 8, 8), classes=3, wait_for=2, class_names=NAMES)


def write_app(folder: Path) -> Path:
    write_app_folder(load_config(None, ["method=fedavg", "rounds=9", "fraction=1.0"]), folder, PLAN)
    return folder


def read_compose(folder: Path, name: str) -> dict:
    return yaml.safe_load((folder / "docker" / f"{name}.yaml").read_text())


def read_unit(path: Path) -> dict[str, list[str]]:
    lines = [line.partition("=") for line in path.read_text().splitlines() if "=" in line]
    return {key: [value for name, _, value in lines if name == key] for key, _, _ in lines}


def test_compose_files_are_well_formed_and_publish_the_gate_alone(tmp_path):
    folder = write_app(tmp_path / "app")
    result = CliRunner().invoke(app, ["deploy", "docker", str(folder), "--address", "fl.example.org", "--port", "9443"])
    assert result.exit_code == 0, result.output
    server, node = (read_compose(folder, name) for name in ("server", "node"))
    assert set(server) == set(node) == {"name", "services"} and set(server["services"]) == {
        "superlink", "superexec", "gate",
    }  # fmt: skip
    for service in (*server["services"].values(), *node["services"].values()):
        assert set(service) <= SERVICE and all(type(word) is str for word in service["command"])
        assert all(type(value) is str for value in service["environment"].values())
        assert (folder / "docker" / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        assert service["environment"]["FLWR_TELEMETRY_ENABLED"] == "0" and service["cap_drop"] == ["ALL"]
    published = {name: service.get("ports") for name, service in server["services"].items()}
    assert published == {"superlink": ["9443:9443"], "superexec": None, "gate": None}
    assert {server["services"][name]["network_mode"] for name in ("superexec", "gate")} == {"service:superlink"}
    superlink = server["services"]["superlink"]["command"]
    assert superlink[superlink.index("--host") + 1] == "127.0.0.1"
    assert "fl.example.org:9443" in node["services"]["node"]["command"] and "ports" not in node["services"]["node"]
    words = {line.split()[0] for line in (folder / "docker" / "Dockerfile").read_text().splitlines() if line[:1] != "#"}
    assert words == {"FROM", "ARG", "COPY", "RUN", "USER", "WORKDIR"}


def test_units_are_well_formed_and_systemd_agrees(tmp_path):
    folder = write_app(tmp_path / "an app")
    names = write_units(folder, ServiceSettings("fl.example.org", user="root"))
    units = [folder / name for name in names if name.endswith(".service")]
    assert [path.name for path in units] == [
        "kinfed-superlink.service", "kinfed-superexec.service", "kinfed-gate.service", "kinfed-node@.service",
    ]  # fmt: skip
    for path in units:
        unit = read_unit(path)
        assert unit["WorkingDirectory"] == [str(folder)] and Path(shlex.split(unit["ExecStart"][0])[0]).is_file()
        assert any("FLWR_TELEMETRY_ENABLED=0" in line for line in unit["Environment"])
    if shutil.which("systemd-analyze"):
        shutil.copy(units[3], units[3].with_name("kinfed-node@client-00.service"))
        checked = [*map(str, units[:3]), str(units[3].with_name("kinfed-node@client-00.service"))]
        said = subprocess.run(["systemd-analyze", "verify", *checked], capture_output=True, text=True)
        complaints = [line for line in said.stderr.splitlines() if "kinfed" in line]
        assert said.returncode == 0 or not complaints, said.stderr


def test_containers_and_units_start_the_same_commands(tmp_path):
    folder = write_app(tmp_path / "app")
    write_docker_files(folder, ServiceSettings())
    write_units(folder, ServiceSettings())
    services = read_compose(folder, "server")["services"] | read_compose(folder, "node")["services"]
    for name, service in services.items():
        path = folder / "systemd" / f"kinfed-{name}{'@' if name == 'node' else ''}.service"
        program, *words = shlex.split(read_unit(path)["ExecStart"][0])
        command = [word.replace("${NODE:?set NODE to the name of the node}", "%i") for word in service["command"]]
        assert [Path(program).name, *words] == command


def test_what_cannot_be_written_is_refused_in_one_line(tmp_path):
    result = CliRunner().invoke(app, ["deploy", "docker", str(tmp_path)])
    assert result.exit_code == 2 and "is no app" in result.stderr
    for wrong in ({"address": "a b"}, {"address": "$HOME"}, {"user": ""}, {"port": 0}):
        with pytest.raises(ConfigError):
            ServiceSettings(**wrong)


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.on_demand
@pytest.mark.xdist_group("federation")
def test_the_processes_of_containers_and_units_run_a_federation(tmp_path):
    """The server as its Compose file starts it, nodes as their unit does: one of images, one of a Parquet file."""
    folder = write_app(tmp_path / "app")
    nodes = {
        NODES[0]: {"data": str(write_images(tmp_path / "scans", 1))},
        NODES[1]: {"data": str(write_parquet(tmp_path / "b.parquet", 3)), "features": "image", "target": "diagnosis"},
    }
    for name, config in nodes.items():
        lines = [f"{key} = {json.dumps(value)}" for key, value in ({"name": name} | config).items()]
        (folder / "nodes" / f"{name}.toml").write_text("\n".join(lines) + "\n")
    with isolate_network() as net:
        fed = LoopbackFederation(folder, net)
        ports = [int(fed.free_port()) for _ in range(2)]
        settings = ServiceSettings(port=ports[0], superlink_port=ports[1])
        write_docker_files(folder, settings)
        write_units(folder, settings)
        started: list[subprocess.Popen] = []
        try:
            start_all(fed, started)
        finally:
            for process in reversed(started):
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(60)
    run = folder / "runs" / "second"
    summary = json.loads((run / SUMMARY).read_text())
    assert summary["rounds"] == 1 and summary["rejected_replies"] == 0  # --run-config over nine rounds of config.toml
    assert load_config(run / "config.toml").training.lr == 0.02
    status = read_status(run)
    assert status.state == "ended" and [client.name for client in status.clients] == list(NODES)
    assert [client.train + client.test for client in status.clients] == [23, 31]


def start_all(fed: LoopbackFederation, started: list[subprocess.Popen]) -> None:
    folder = fed.folder
    made = fed.call("./certificates.sh")
    assert made.returncode == 0, made.stdout
    (folder / ".flower" / "log").mkdir(parents=True)
    shutil.copy(folder / "systemd" / "config.toml", folder / ".flower" / "config.toml")
    for name, service in read_compose(folder, "server")["services"].items():
        start(fed, started, name, [str(Path(sys.executable).parent / service["command"][0]), *service["command"][1:]])
        log = folder / ".flower" / "log" / f"{name}.log"
        if name == "superlink":
            fed.until(lambda log=log: bool(log.read_text()) and can_register(fed), "SuperLink's start")
    command = read_unit(folder / "systemd" / "kinfed-node@.service")["ExecStart"][0]
    for i, name in enumerate(NODES):
        registered = fed.call("flwr", "supernode", "register", f"keys/{name}.pub", "mine", "--name", name)
        assert registered.returncode == 0, registered.stdout
        words = shlex.split(command.replace("%i", name))
        start(fed, started, name, [*words[:-1], fed.free_port() if i else words[-1]])
    ran = fed.call("flwr", "run", ".", "mine", "--stream", "--run-config",
                   'out="runs/second" rounds=1 training.lr=0.02')  # fmt: skip
    assert ran.returncode == 0 and "round 1/1" in ran.stdout, f"{ran.stdout}\n{fed.logs()}"


def can_register(fed: LoopbackFederation) -> bool:
    return fed.call("flwr", "list", "mine").returncode == 0


def start(fed: LoopbackFederation, started: list[subprocess.Popen], name: str, command: list[str]) -> None:
    """Starts a process as its service would."""
    with open(fed.folder / ".flower" / "log" / f"{name}.log", "w") as log:
        started.append(subprocess.Popen(
            [*fed.network.entrance, *command], cwd=fed.folder, env=fed.environment(), stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, start_new_session=True,
        ))  # fmt: skip
