"""A node of a deployment: it reads its own samples, builds its own copy of the method, and runs tasks by name."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kinfed.config import Config
from kinfed.config.assembly import make_method, model_for
from kinfed.data.sample_kind import ServerSamples
from kinfed.deployment.plan import Plan
from kinfed.deployment.samples_file import load_folder
from kinfed.engines.flower.node import ClientData, ClientNode
from kinfed.errors import ConfigError

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.clientapp import ClientApp

NodeConfig = Mapping[str, bool | bytes | float | int | str]
Loader = Callable[[NodeConfig], ClientData]


def load_node_data(node: NodeConfig) -> ClientData:
    """The samples in the node's folder."""
    if "data" not in node:
        raise ConfigError('the node\'s config has no data: start it with --node-config \'name="…" data="FOLDER"\'')
    return load_folder(Path(str(node["data"])))


def make_client_app(config: Config, plan: Plan, load: Loader = load_node_data) -> "ClientApp":
    """The app of a node. Its config has `name` (for good), and for `load` where its samples are.

    `home` is the folder of the client's memory; `holdout=true` says that it wants a model without training.
    """
    from kinfed.engines.flower.transport import build_client_app

    def load_node(context: "Context", run: str) -> ClientNode:
        return make_node(config, plan, context.node_config, load)

    def find_folder(context: "Context", run: str) -> Path | None:
        return Path(str(context.node_config["home"])) if "home" in context.node_config else None

    return build_client_app(load_node, find_folder)


def make_node(config: Config, plan: Plan, node: NodeConfig, load: Loader) -> ClientNode:
    """The client of a node."""
    if not node.get("name"):
        raise ConfigError('the node\'s config has no name: start it with --node-config \'name="…" data="FOLDER"\'')
    data = plan.check(load(node))
    model = model_for(config, ServerSamples(data.x[:2], data.y[:2], plan.classes).population(1))
    labelled = bool((data.y >= 0).all())
    return ClientNode(
        str(node["name"]), make_method(config, model), lambda round: data, labelled=labelled,
        holdout=bool(node.get("holdout", False)), device=str(node.get("device", "cpu")), detects_changes=True,
    )  # fmt: skip
