"""The same experiment over a network: the app that Flower's server runs, and the app of its nodes."""

from kinfed.deployment.apps import make_client_app, make_server_app
from kinfed.deployment.node_data import NodeConfig, load_folder, load_node_data
from kinfed.deployment.plan import Plan, read_plan
from kinfed.engines.flower.node import ClientData

__all__ = [
    "ClientData", "NodeConfig", "Plan", "load_folder", "load_node_data", "make_client_app", "make_server_app",
    "read_plan",
]  # fmt: skip
