"""A node's part: it reads its own rows, builds its own copy of the method, and does tasks by name."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kinfed.config import Config
from kinfed.config.assembly import make_method, model_for
from kinfed.deployment.plan import Plan
from kinfed.deployment.rows import from_folder
from kinfed.engines.flower import OwnRows
from kinfed.engines.flower.site import Holding, Site
from kinfed.errors import ConfigError

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.clientapp import ClientApp

NodeConfig = Mapping[str, bool | bytes | float | int | str]
Loader = Callable[[NodeConfig], Holding]


def folder_rows(node: NodeConfig) -> Holding:
    """The rows in the node's folder."""
    if "data" not in node:
        raise ConfigError('the node\'s config has no data: start it with --node-config \'name="…" data="FOLDER"\'')
    return from_folder(Path(str(node["data"])))


def app_for(config: Config, plan: Plan, load: Loader = folder_rows) -> "ClientApp":
    """The app of a node. Its config has `name` (its own for good), and for `load` where its rows are.

    `home` is a folder in which it keeps what it remembers; `holdout=true` says that it wants a model without training.
    """
    from kinfed.engines.flower.messages import client_app

    def site(context: "Context", run: str) -> Site:
        return site_of(config, plan, context.node_config, load)

    def home(context: "Context", run: str) -> Path | None:
        return Path(str(context.node_config["home"])) if "home" in context.node_config else None

    return client_app(site, home)


def site_of(config: Config, plan: Plan, node: NodeConfig, load: Loader) -> Site:
    """The client that a node is."""
    if not node.get("name"):
        raise ConfigError('the node\'s config has no name: start it with --node-config \'name="…" data="FOLDER"\'')
    rows = plan.checked(load(node))
    model = model_for(config, OwnRows(rows.x[:2], rows.y[:2], plan.classes).population(1))
    labelled = bool((rows.y >= 0).all())
    return Site(
        str(node["name"]), make_method(config, model), lambda round: rows, labelled=labelled,
        holdout=bool(node.get("holdout", False)), device=str(node.get("device", "cpu")), watches=True,
    )  # fmt: skip
