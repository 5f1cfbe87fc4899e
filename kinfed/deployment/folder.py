"""A ready Flower app folder from a config: what `kinfed deploy new` writes."""

import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from kinfed.capabilities import takes_server_samples
from kinfed.config import Config, write
from kinfed.config.tables import to_table
from kinfed.data.population import Population
from kinfed.deployment.own_code import own_modules, place_of, take_along
from kinfed.deployment.plan import KINDS, Plan, method_for
from kinfed.deployment.rows import FILE
from kinfed.engines.flower.simulation import OFFLINE
from kinfed.errors import ConfigError
from kinfed.runs.logs import as_csv, write_text

TEMPLATE = Path(__file__).with_name("template")
APP, DATA, SERVER = "kinfed_app", "data", "server"
SCRIPTS = ("certificates.sh", "try.sh")
PLAN_SAYS = """\
# What server and nodes agree on. Nobody can look at all the rows, so it has to be said.
#   clients        at most, late ones included       wait_for, wait_seconds   who must be there before training begins
#   shape, dtype   of one sample                     server_samples       a folder of the server's own rows, or ""
# How long a client has for a task, and how often it is asked, is engine.timeout and engine.attempts of config.toml.
"""


@dataclass(frozen=True)
class Node:
    """A client of the federation that is tried out."""

    name: str
    is_late: bool = False
    is_holdout: bool = False

    @property
    def path(self) -> str:
        """Where its config is."""
        return f"nodes/late/{self.name}.toml" if self.is_late else f"nodes/{self.name}.toml"

    def settings(self) -> dict[str, object]:
        """Its config."""
        table: dict[str, object] = {
            "name": self.name,
            "data": f"{DATA}/{self.name}",
            "home": f"{DATA}/{self.name}/home",
        }
        return table | ({"holdout": True} if self.is_holdout else {})


def new_folder(config: Config, folder: Path, source: Population | Plan, force: bool = False) -> Plan:
    """Writes the app of this config; rows are cut from a population, or, given a plan alone, brought by nodes.

    Gives back the plan that was written.
    """
    refuse_taken(folder, force)
    plan = source if isinstance(source, Plan) else plan_for(source)
    nodes = [Node(name) for name in names(plan.clients)] if isinstance(source, Plan) else nodes_of(source)
    config, plan = fit_for_a_network(config), fit_for_the_method(config, plan, is_cut=isinstance(source, Population))
    shutil.rmtree(folder / "nodes", ignore_errors=True)  # of an earlier number of clients
    folder.mkdir(parents=True, exist_ok=True)
    own = "".join(f'"{pattern}", ' for pattern in take_along(config, folder))
    copy_template(folder, {"@NAME@": app_name(folder), '"@OWN@", ': own, **words(config, plan, nodes)})
    write_text(folder / APP / "config.toml", write(config.resolve()))
    write_text(folder / APP / "plan.toml", PLAN_SAYS + write(to_table(plan)))
    write_text(folder / "offline.sh", offline())
    for node in nodes:
        put_text(folder / node.path, write(node.settings()))
    if isinstance(source, Population):
        cut(source, folder / DATA, nodes)
    return plan


def refuse_taken(folder: Path, force: bool) -> None:
    """Raises if something is there already."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; choose another folder for the app")
    if not force and folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: choose another folder, or write over what is there with --force")


def fit_for_a_network(config: Config) -> Config:
    """The config as server and nodes read it; raises where they could not do what it asks for."""
    if config.evaluation.correlation:
        raise ConfigError(
            "evaluation.correlation needs all clients' rows, which a deployed server has not; leave it out"
        )
    return replace(config, engine=replace(config.engine, name="flower"))


def fit_for_the_method(config: Config, plan: Plan, is_cut: bool) -> Plan:
    """The plan, with a folder for the server's rows where the method needs some; raises where it cannot be used."""
    method = method_for(config, plan, replace(plan, server_samples="").own_samples())
    if plan.server_samples or not takes_server_samples(method):
        return plan
    if is_cut:
        raise ConfigError(f"{config.method} needs rows of the server's own, but there are none: set data.public = 0.1")
    return replace(plan, server_samples=f"{DATA}/{SERVER}")


def plan_for(people: Population) -> Plan:
    """The plan for these clients: all who are there from the start are waited for."""
    nodes, dtype = nodes_of(people), next(name for name, kind in KINDS.items() if kind == people.x.dtype)
    return Plan(
        clients=len(nodes), shape=tuple(people.x.shape[1:]), classes=people.classes, dtype=dtype,
        wait_for=sum(not node.is_late for node in nodes),
        server_samples=f"{DATA}/{SERVER}" if len(people.public) else "",
    )  # fmt: skip


def nodes_of(people: Population) -> list[Node]:
    """The clients as nodes, named so that their order by name is their order here; look-alikes are none."""
    roles = [people.role(client) for client in range(people.clients)]
    return [
        Node(name, is_late=role.joins > 0, is_holdout=role.holdout)
        for name, role in zip(names(people.clients), roles, strict=True)
        if role.look_alike_of is None
    ]


def names(clients: int) -> list[str]:
    """client-00, client-01, … sorted as they count."""
    width = max(2, len(str(clients - 1)))
    return [f"client-{client:0{width}}" for client in range(clients)]


def copy_template(folder: Path, replaced: dict[str, str]) -> None:
    """Writes all files that hardly depend on the config."""
    for path in sorted(TEMPLATE.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            text = path.read_text(encoding="utf-8")
            for word, value in replaced.items():
                text = text.replace(word, value)
            target = path.relative_to(TEMPLATE)
            put_text(folder / (".gitignore" if target.name == "gitignore" else target), text)
    for name in SCRIPTS:
        (folder / name).chmod(0o755)


def words(config: Config, plan: Plan, nodes: list[Node]) -> dict[str, str]:
    """What the README says of this federation."""
    late = sum(node.is_late for node in nodes)
    elsewhere = [f"`{name}`" for name in own_modules(config) if place_of(name) is None]
    return {
        "@NEEDED@": " and ".join(["`kinfed[flower]`", *elsewhere]),
        "@METHOD@": config.method,
        "@CLIENTS@": f"{plan.clients} clients" + (f", {late} of them late" if late else ""),
        "@ROUNDS@": str(config.rounds),
        "@ROW@": f"{plan.dtype} {list(plan.shape)}",
        "@CLASSES@": str(plan.classes),
        "@FIRST@": nodes[0].name,
        "@SERVER_ROWS@": f"`{plan.server_samples}`" if plan.server_samples else "none",
    }


def app_name(folder: Path) -> str:
    """A name for Flower's project after the folder's."""
    return re.sub(r"[^a-z0-9]+", "-", folder.absolute().name.lower()).strip("-") or "federation"


def offline() -> str:
    """Switches that every process of Flower is started with, as a script to be read in."""
    lines = [f"export {name}={value}\n" for name, value in OFFLINE.items() if name.startswith("FLWR")]
    return (
        "# Flower tells nobody anything, and installs nothing. Read it in before Flower's commands: . ./offline.sh\n"
        + ("".join(lines))
    )


def cut(people: Population, folder: Path, nodes: list[Node]) -> None:
    """Writes each client's rows into its own folder, the server's into its own, and the planted groups beside them."""
    kept = [client for client in range(people.clients) if people.role(client).look_alike_of is None]
    for node, client in zip(nodes, kept, strict=True):
        train, test = people.train[client], people.test[client]
        labels = {"y": people.y[train]} if people.role(client).labelled else {}
        tested = {"test_x": people.x[test], "test_y": people.y[test]} if len(test) else {}
        save(folder / node.name, {"x": people.x[train], **labels, **tested})
    if len(people.public):
        save(folder / SERVER, {"x": people.x[people.public], "y": people.y[people.public]})
    if people.true_clusters is not None:
        planted = people.true_clusters[kept].tolist()
        write_text(folder / "planted.csv", as_csv([("name", "cluster"), *planted_rows(nodes, planted)]))


def planted_rows(nodes: Iterable[Node], clusters: Iterable[int]) -> Iterator[tuple[str, int]]:
    return ((node.name, cluster) for node, cluster in zip(nodes, clusters, strict=True))


def save(folder: Path, arrays: dict[str, Tensor]) -> None:
    """Writes rows as `from_folder` reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / FILE, allow_pickle=False, **{name: t.numpy() for name, t in arrays.items()})


def put_text(path: Path, text: str) -> None:
    """Writes a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
