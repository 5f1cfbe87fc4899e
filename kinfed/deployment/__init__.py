"""The same experiment over a network: the app that Flower's server runs, and the app of its nodes."""

from kinfed.deployment.plan import Plan
from kinfed.deployment.rows import from_folder

__all__ = ["Plan", "from_folder"]
