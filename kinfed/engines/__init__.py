"""Engines carry tasks to clients; every one is a `Federation`."""

from kinfed.engines.flower import NODES, Flower
from kinfed.engines.sequential import Sequential
from kinfed.engines.vectorised import Vectorised

ENGINES = {"vectorised": Vectorised, "sequential": Sequential, "flower": Flower}

__all__ = ["ENGINES", "NODES", "Flower", "Sequential", "Vectorised"]
