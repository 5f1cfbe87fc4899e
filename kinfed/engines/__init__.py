"""Engines carry tasks to clients; every one is a `Federation`."""

from kinfed.engines.sequential import Sequential
from kinfed.engines.vectorised import Vectorised

ENGINES = {"vectorised": Vectorised, "sequential": Sequential}

__all__ = ["ENGINES", "Sequential", "Vectorised"]
