"""The same experiment over a network: the app that Flower's server runs, and the app of its nodes."""

from kinfed.deployment.client import NodeConfig, folder_rows
from kinfed.deployment.plan import Plan, read_plan
from kinfed.deployment.rows import from_folder
from kinfed.engines.flower.site import Holding

__all__ = ["Holding", "NodeConfig", "Plan", "folder_rows", "from_folder", "read_plan"]
