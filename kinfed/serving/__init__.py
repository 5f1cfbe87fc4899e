"""Serving after training: a run becomes a bundle, and a bundle places clients it has never met, offline.

>>> from kinfed import serving
>>> mine = serving.load("bundle").assign(x)  # rows without labels
>>> mine.group, mine.predict(other_rows)
"""

from kinfed.serving.assigned import Assigned
from kinfed.serving.bundle import Bundle, load
from kinfed.serving.export import export

__all__ = ["Assigned", "Bundle", "export", "load"]
