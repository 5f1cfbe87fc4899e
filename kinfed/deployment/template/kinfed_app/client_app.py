"""The app of a node: it reads its own samples and runs tasks by name."""

from pathlib import Path

from kinfed.config import load_config
from kinfed.deployment import ClientData, NodeConfig, load_node_data, make_client_app, read_plan

HERE = Path(__file__).parent
PLAN = read_plan(HERE / "plan.toml")


def load(node: NodeConfig) -> ClientData:
    """This node's samples, as its config says. A loader for all nodes goes here; `node` is the node's config.

    Give back ClientData(x, y, test_x, test_y), tensors of the shape and dtype in plan.toml; y is -1 for no label.
    """
    return load_node_data(node, PLAN.kind, PLAN.class_names, PLAN.feature_names)


app = make_client_app(load_config(HERE / "config.toml"), PLAN, load)
