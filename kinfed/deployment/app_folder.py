"""A ready Flower app folder from a config: what `kinfed deploy new` writes."""

import re
import shutil
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from kinfed.capabilities import takes_server_samples
from kinfed.config import Config, list_own_parts, to_toml
from kinfed.config.schema import to_table
from kinfed.data.population import Population
from kinfed.deployment.node_data import save_folder
from kinfed.deployment.plan import KINDS, Plan, choose_aggregation, make_planned_method
from kinfed.deployment.run_settings import list_run_keys
from kinfed.engines.flower.simulation import OFFLINE
from kinfed.errors import ConfigError
from kinfed.files import begins_with, clear_unfinished, refuse_foreign
from kinfed.runs.logs import as_csv, write_text

TEMPLATE = Path(__file__).with_name("template")
APP, DATA, SERVER = "kinfed_app", "data", "server"
SCRIPTS = ("certificates.sh", "try.sh")
PLAN_BEGINS = "# What server and nodes agree on."
PLAN_HEADER = f"""\
{PLAN_BEGINS} Nobody sees all the samples, so it has to be said here.
#   clients        at most, late-joining ones included   wait_for, wait_seconds  enrolled before training begins
#   shape, dtype   of one sample                         server_samples          a folder of the server's own, or ""
#   quorum         share of the asked clients; when it has replied, the others have grace_seconds left, or as long again
#   max_samples    that a client may say it has          bind_names              a name belongs to one node's key
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


def write_app_folder(config: Config, folder: Path, source: Population | Plan, force: bool = False) -> Plan:
    """Writes the app of this config, with the samples of a population, or, given a plan alone, without any.

    Gives back the plan that was written.
    """
    require_free_folder(folder, force)
    plan = source if isinstance(source, Plan) else make_plan(source)
    nodes = [Node(name) for name in client_names(plan.clients)] if isinstance(source, Plan) else list_nodes(source)
    config, plan = adapt_config(config), adapt_plan(config, plan, has_data=isinstance(source, Population))
    refuse_other_files(folder, config, has_data=isinstance(source, Population))
    shutil.rmtree(folder / "nodes", ignore_errors=True)  # of an earlier number of clients
    folder.mkdir(parents=True, exist_ok=True)
    for inner in (folder, folder / APP, folder / DATA, *(folder / DATA).glob("*/")):
        clear_unfinished(inner)
    own = "".join(f'"{pattern}", ' for pattern in copy_modules(config, folder))
    keys = "\n".join(f'{key} = ""' for key in list_run_keys(config))
    made = {"@NAME@": project_name(folder), '"@OWN@", ': own, '"@SETTINGS@" = ""': keys}
    copy_template(folder, made | template_values(config, plan, nodes))
    write_text(folder / APP / "config.toml", to_toml(config.resolve()))
    write_text(folder / APP / "plan.toml", PLAN_HEADER + to_toml(to_table(plan)))
    write_text(folder / "offline.sh", offline_script())
    for node in nodes:
        write_with_parents(folder / node.path, to_toml(node.settings()))
    if isinstance(source, Population):
        write_client_data(source, folder / DATA, nodes)
    return plan


def require_free_folder(folder: Path, force: bool) -> None:
    """Raises if something is there already."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; choose another folder for the app")
    if not force and folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: choose another folder, or write over what is there with --force")


def refuse_other_files(folder: Path, config: Config, has_data: bool) -> None:
    """Raises where an app would replace files in a folder that is none."""
    if not begins_with(folder / APP / "plan.toml", PLAN_BEGINS):
        own = [str(file.relative_to(module.parent)) for module in find_modules(config) for file in list_files(module)
               if file.resolve() != (folder / file.relative_to(module.parent)).resolve()]  # fmt: skip
        written = (*list_template(), f"{APP}/config.toml", f"{APP}/plan.toml", "offline.sh", "nodes")
        refuse_foreign(folder, [*written, *(DATA,) * has_data, *own], "the app")


def adapt_config(config: Config) -> Config:
    """The config as server and nodes read it; raises where a deployment does not support it."""
    if config.evaluation.correlation:
        raise ConfigError(
            "evaluation.correlation needs all clients' samples, which a deployed server has not; leave it out"
        )
    return replace(
        config, engine=replace(config.engine, name="flower"), aggregation=choose_aggregation(config)
    )  # fmt: skip


def adapt_plan(config: Config, plan: Plan, has_data: bool) -> Plan:
    """The plan, with a folder for the server's samples where the method needs some; raises where it is not usable."""
    method = make_planned_method(config, plan, replace(plan, server_samples="").load_server_samples())
    if plan.server_samples or not takes_server_samples(method):
        return plan
    if has_data:
        raise ConfigError(
            f"{config.method} needs samples of the server's own, but there are none: set data.public = 0.1"
        )
    return replace(plan, server_samples=f"{DATA}/{SERVER}")


def make_plan(population: Population) -> Plan:
    """The plan for these clients: the server waits for all that are there from the start."""
    nodes, dtype = list_nodes(population), next(name for name, kind in KINDS.items() if kind == population.x.dtype)
    return Plan(
        clients=len(nodes), shape=tuple(population.x.shape[1:]), classes=population.classes, dtype=dtype,
        class_names=population.class_names, feature_names=population.feature_names,
        wait_for=sum(not node.is_late for node in nodes),
        server_samples=f"{DATA}/{SERVER}" if len(population.public) else "",
    )  # fmt: skip


def real_clients(population: Population) -> list[int]:
    """Ids of all clients but look-alikes, which get no node."""
    return [client for client in range(population.clients) if population.role(client).look_alike_of is None]


def list_nodes(population: Population) -> list[Node]:
    """The clients as nodes, named so that their order by name is their order here."""
    names, clients = client_names(population.clients), real_clients(population)
    roles = [population.role(client) for client in clients]
    return [
        Node(names[client], is_late=role.joins > 0, is_holdout=role.holdout)
        for client, role in zip(clients, roles, strict=True)
    ]


def client_names(clients: int) -> list[str]:
    """client-00, client-01, … sorted as they count."""
    width = max(2, len(str(clients - 1)))
    return [f"client-{client:0{width}}" for client in range(clients)]


def list_template() -> dict[str, Path]:
    """The files that hardly depend on the config: where they go in an app, and where they are."""
    paths = (path for path in sorted(TEMPLATE.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    names = {path: path.relative_to(TEMPLATE) for path in paths}
    return {".gitignore" if name.name == "gitignore" else str(name): path for path, name in names.items()}


def copy_template(folder: Path, values: dict[str, str]) -> None:
    """Writes all files that hardly depend on the config."""
    for name, path in list_template().items():
        text = path.read_text(encoding="utf-8")
        for word, value in values.items():
            text = text.replace(word, value)
        write_with_parents(folder / name, text)
    for name in SCRIPTS:
        (folder / name).chmod(0o755)


def template_values(config: Config, plan: Plan, nodes: list[Node]) -> dict[str, str]:
    """What the README says of this federation."""
    late = sum(node.is_late for node in nodes)
    elsewhere = [f"`{name}`" for name in own_modules(config) if find_module(name) is None]
    return {
        "@NEEDED@": " and ".join(["`kinfed[flower]`", *elsewhere]),
        "@METHOD@": config.method,
        "@CLIENTS@": f"{plan.clients} clients" + (f", {late} of them late-joining" if late else ""),
        "@ROUNDS@": str(config.rounds),
        "@SAMPLE@": f"{plan.dtype} {list(plan.shape)}",
        "@CLASSES@": str(plan.classes),
        "@FIRST@": nodes[0].name,
        "@SERVER_SAMPLES@": f"`{plan.server_samples}`" if plan.server_samples else "none",
    }


def project_name(folder: Path) -> str:
    """A name for Flower's project after the folder's."""
    return re.sub(r"[^a-z0-9]+", "-", folder.absolute().name.lower()).strip("-") or "federation"


def offline_script() -> str:
    """The switches that every process of Flower is started with, as a script to be sourced."""
    lines = [f"export {name}={value}\n" for name, value in OFFLINE.items() if name.startswith("FLWR")]
    return "# Flower reports nothing, and installs nothing. Source it before Flower's commands: . ./offline.sh\n" + (
        "".join(lines)
    )


def write_client_data(population: Population, folder: Path, nodes: list[Node]) -> None:
    """Writes a folder of samples for each client and one for the server, and the true clusters beside them."""
    clients = real_clients(population)
    for node, client in zip(nodes, clients, strict=True):
        train, test = population.train[client], population.test[client]
        labels = {"y": population.y[train]} if population.role(client).labelled else {}
        tests = {"test_x": population.x[test], "test_y": population.y[test]} if len(test) else {}
        save_folder(folder / node.name, {"x": population.x[train], **labels, **tests})
    if len(population.public):
        save_folder(folder / SERVER, {"x": population.x[population.public], "y": population.y[population.public]})
    if population.true_clusters is not None:
        pairs = zip([node.name for node in nodes], population.true_clusters[clients].tolist(), strict=True)
        write_text(folder / "planted.csv", as_csv([("name", "cluster"), *pairs]))


def write_with_parents(path: Path, text: str) -> None:
    """Writes a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


def own_modules(config: Config) -> list[str]:
    """The top modules of what the config names as package.module:name; nodes have samples of their own."""
    parts = list_own_parts(config.resolve(), without="data.")
    return list(dict.fromkeys(name.partition(":")[0].split(".")[0] for name in parts))


def copy_modules(config: Config, folder: Path) -> list[str]:
    """Copies the user's own modules in the working folder into the app's; gives patterns of what was copied."""
    modules = find_modules(config)
    for module in modules:
        for file in list_files(module):
            target = folder / file.relative_to(module.parent)
            if target.resolve() != file.resolve():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target)
    return [f"{module.name}/**/*.py" if module.is_dir() else module.name for module in modules]


def find_modules(config: Config) -> list[Path]:
    """The user's own modules in the working folder that the config names."""
    return [module for module in map(find_module, own_modules(config)) if module]


def list_files(module: Path) -> list[Path]:
    """The files of a module, which may be a package."""
    return list(module.rglob("*.py")) if module.is_dir() else [module]


def find_module(name: str) -> Path | None:
    """The file or folder of a module in the working folder; None where it is installed elsewhere."""
    spec = find_spec(name)
    inside = list(spec.submodule_search_locations or ()) if spec else []
    found = Path(inside[0]) if inside else Path(spec.origin) if spec and spec.origin else None
    return found if found and found.resolve().parent == Path.cwd().resolve() else None
