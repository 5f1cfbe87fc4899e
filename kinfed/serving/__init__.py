"""Serving after training: a run becomes a bundle, and a bundle assigns unseen clients to models, offline.

>>> from kinfed import serving
>>> mine = serving.load("bundle").assign(x)  # samples without labels
>>> mine.cluster, mine.predict(other_x)
"""

from kinfed.serving.assignment import Assignment
from kinfed.serving.bundle import Bundle, load
from kinfed.serving.run_export import export

__all__ = ["Assignment", "Bundle", "export", "load"]
