"""The processes of a federation as services: containers (Dockerfile, Compose) or systemd units.

Server: SuperLink, SuperExec and the gate; SuperLink stays on loopback, nodes reach the gate alone. Node: a SuperNode.
Each process is written down once, here, and both forms start the same commands in the app's folder.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kinfed.checks import within
from kinfed.deployment.app_folder import APP, write_with_parents
from kinfed.engines.flower.simulation import OFFLINE
from kinfed.errors import ConfigError

DOCKER, SYSTEMD, FLOWER_HOME = "docker", "systemd", ".flower"
INSIDE = "/app"  # the app's folder in a container
UNSAFE = "$%\"'\\\n"  # systemd or Compose would read these as more than a character
SECRET = "certificates/superexec.secret"
CONNECTION = '[superlink.mine]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{folder}/certificates/ca.crt"\n'


@dataclass(frozen=True)
class ServiceSettings:
    """Where nodes connect, and as whom processes run."""

    address: str = "127.0.0.1"  # of the server, as nodes see it
    port: int = 8443  # of the gate
    superlink_port: int = 8000  # on the server's loopback
    node_port: int = 9094  # on a node's loopback
    user: str = "kinfed"  # of systemd's units

    def __post_init__(self) -> None:
        within(1, 65535, port=self.port, superlink_port=self.superlink_port, node_port=self.node_port)
        for name in ("address", "user"):
            if not (value := getattr(self, name)) or any(c.isspace() or c in UNSAFE for c in value):
                raise ConfigError(f"--{name}: wanted a name without spaces, quotes, $ and %, got {value!r}")


@dataclass(frozen=True)
class Process:
    """One process of the federation: its command, and the process that it needs."""

    name: str
    title: str
    command: tuple[str, ...]  # seen from the app's folder
    needs: str = ""


def list_server_processes(settings: ServiceSettings) -> list[Process]:
    """The three processes of the server."""
    superlink = f"127.0.0.1:{settings.superlink_port}"
    authority = ("--root-certificates", "certificates/ca.crt")
    return [
        Process("superlink", "SuperLink, which keeps runs and messages", (
            "flower-superlink", "--host", "127.0.0.1", "--port", str(settings.superlink_port),
            "--database", "state.db", "--isolation", "process", "--enable-supernode-auth",
            "--superexec-auth-secret-file", SECRET, "--ssl-ca-certfile", "certificates/ca.crt",
            "--ssl-certfile", "certificates/server.crt", "--ssl-keyfile", "certificates/server.key",
        )),
        Process("superexec", "SuperExec, which starts the server of a run", (
            "flower-superexec", "--runtime-api-address", superlink, *authority, "--superexec-auth-secret-file", SECRET,
        ), needs="superlink"),
        Process("gate", "the gate, which nodes connect to", (
            "kinfed", "deploy", "gate", "--host", "0.0.0.0", "--port", str(settings.port), "--superlink", superlink,
            *authority,
        ), needs="superlink"),
    ]  # fmt: skip


def make_node_process(settings: ServiceSettings, name: str) -> Process:
    """The process of a node of this name."""
    return Process("node", "a node, with its own samples", (
        "flower-supernode", "--superlink", f"{settings.address}:{settings.port}",
        "--root-certificates", "certificates/ca.crt", "--auth-supernode-private-key", f"keys/{name}",
        "--node-config", f"nodes/{name}.toml", "--port", str(settings.node_port),
    ))  # fmt: skip


def environment(folder: str) -> dict[str, str]:
    """What every process is started with: nothing is reported or installed; Flower's own files lie in the folder."""
    return {k: v for k, v in OFFLINE.items() if k.startswith("FLWR")} | {"FLWR_HOME": f"{folder}/{FLOWER_HOME}"}


def require_app(folder: Path) -> None:
    """Raises unless this is the folder of an app."""
    if not (folder / APP / "plan.toml").is_file():
        raise ConfigError(f"{folder} is no app: wanted a folder that `kinfed deploy new` wrote")


def write_docker_files(folder: Path, settings: ServiceSettings) -> list[str]:
    """Writes a Dockerfile and Compose files of server and node into the app's folder; gives back their names."""
    require_app(folder)
    files = {
        "Dockerfile": DOCKERFILE,
        "server.yaml": compose_server(settings),
        "node.yaml": compose_node(settings),
        "config.toml": CONNECTION.format(port=settings.superlink_port, folder=INSIDE),
        "wheels/README.md": "Wheels that the image installs from, beside the package index: `pip wheel --no-deps`.\n",
    }
    for name, text in files.items():
        write_with_parents(folder / DOCKER / name, text)
    return [f"{DOCKER}/{name}" for name in files]


DOCKERFILE = """\
# The image of server and nodes: docker build --tag kinfed-app --file docker/Dockerfile .
# kinfed comes from the package index, or from a wheel in docker/wheels:
# pip wheel --no-deps --wheel-dir docker/wheels PATH-OF-KINFED
FROM python:3.12-slim
ARG KINFED="kinfed[flower,hub]"
COPY docker/wheels /wheels
RUN pip install --no-cache-dir --find-links /wheels "$KINFED"
RUN useradd --uid 10001 --create-home kinfed
USER kinfed
WORKDIR /app
"""


def compose_server(settings: ServiceSettings) -> str:
    """The server's processes as a Compose file: one network namespace, of which only the gate's port is published."""
    published = SUPERLINK.format(port=settings.port, superlink=settings.superlink_port)
    services: list[str] = []
    for process in list_server_processes(settings):
        services += compose_service(process, SHARED if process.needs else published)
    return "\n".join([
        "# The server: docker compose --file docker/server.yaml up --detach --build",
        "# Once for each node:  … exec superlink flwr supernode register keys/NAME.pub mine --name NAME",
        "# A run:               … exec superlink flwr run . mine --stream",
        "name: kinfed-server", "services:", *services, "",
    ])  # fmt: skip


SUPERLINK = """\
    ports: ["{port}:{port}"]
    healthcheck:
      test: ["CMD", "python", "-c", "import socket; socket.create_connection(('127.0.0.1', {superlink}), 2)"]
      interval: 5s
      retries: 60"""
SHARED = """\
    network_mode: "service:superlink"
    depends_on:
      superlink:
        condition: service_healthy"""


def compose_node(settings: ServiceSettings) -> str:
    """One node as a Compose file; NODE names it."""
    process = make_node_process(settings, "${NODE:?set NODE to the name of the node}")
    return "\n".join([
        "# A node: NODE=client-00 docker compose --file docker/node.yaml up --detach --build",
        "# It needs certificates/ca.crt, keys/NODE, nodes/NODE.toml and the samples that this names.",
        "name: kinfed-node", "services:", *compose_service(process), "",
    ])  # fmt: skip


def compose_service(process: Process, extra: str = "") -> list[str]:
    """One service of a Compose file; commands are lists in JSON, which is YAML too."""
    settings = [f"      {name}: {json.dumps(value)}" for name, value in environment(INSIDE).items()]
    return [
        f"  {process.name}:  # {process.title}",
        "    image: kinfed-app",
        "    build: {context: .., dockerfile: docker/Dockerfile}",
        f"    command: {json.dumps(process.command)}",
        "    working_dir: /app",
        '    volumes: ["..:/app"]',
        '    user: "${KINFED_UID:-10001}"',
        "    restart: unless-stopped",
        "    cap_drop: [ALL]",
        '    security_opt: ["no-new-privileges:true"]',
        "    environment:",
        *settings,
        *([extra] if extra else []),
    ]


def write_units(folder: Path, settings: ServiceSettings) -> list[str]:
    """Writes systemd units of server and nodes into the app's folder; gives back their names."""
    require_app(folder)
    home = str(folder.resolve())
    if any(c in home for c in UNSAFE):
        raise ConfigError(f"systemd cannot take the folder {home!r}: move the app to a path without quotes, $ and %")
    server = list_server_processes(settings)
    files = {
        **{f"kinfed-{process.name}.service": unit(process, home, settings) for process in server},
        "kinfed-node@.service": unit(make_node_process(settings, "%i"), home, settings, " %i"),
        "config.toml": CONNECTION.format(port=settings.superlink_port, folder=home),
    }
    for name, text in files.items():
        write_with_parents(folder / SYSTEMD / name, text)
    return [f"{SYSTEMD}/{name}" for name in files]


def unit(process: Process, home: str, settings: ServiceSettings, instance: str = "") -> str:
    """One unit; a process that ends is started again: a node is admitted a minute after a crash."""
    needed = [f"Requires=kinfed-{process.needs}.service", f"After=kinfed-{process.needs}.service"]
    program, *words = process.command
    lines = [
        "[Unit]",
        f"Description=kinfed: {process.title}{instance}",
        "Wants=network-online.target",
        "After=network-online.target",
        *(needed if process.needs else []),
        "",
        "[Service]",
        f"User={settings.user}",
        f"WorkingDirectory={home}",
        *(f'Environment="{name}={value}"' for name, value in environment(home).items()),
        f'Environment="PATH={Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"',
        f"ExecStart={join_words([str(Path(sys.executable).parent / program), *words])}",
        "Restart=always",
        "RestartSec=10",
        "UMask=0077",
        "NoNewPrivileges=yes",
        "PrivateTmp=yes",
        "ProtectSystem=strict",
        f"ReadWritePaths={join_words([home])}",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
        "",
    ]
    return "\n".join(lines)


def join_words(words: Sequence[str]) -> str:
    """A command as systemd reads it."""
    return " ".join(f'"{word}"' if " " in word else word for word in words)
