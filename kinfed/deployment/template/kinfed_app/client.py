"""The app of a node: it reads its own rows and does tasks by name."""

from pathlib import Path

from kinfed.config import load_config
from kinfed.deployment import Holding, NodeConfig, folder_rows, read_plan
from kinfed.deployment.client import app_for

HERE = Path(__file__).parent


def load(node: NodeConfig) -> Holding:
    """This node's rows: those in its folder. Your own loader goes here; `node` is the node's config.

    Give back Holding(x, y, test_x, test_y), tensors of the shape and dtype in plan.toml; y is -1 for no label.
    """
    return folder_rows(node)


app = app_for(load_config(HERE / "config.toml"), read_plan(HERE / "plan.toml"), load)
