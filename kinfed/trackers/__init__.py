"""Trackers: a run watched by TensorBoard, MLflow or Weights & Biases. Each is imported when it is asked for."""

from kinfed.trackers.registry import TRACKERS, check_trackers, trackers_of

__all__ = ["TRACKERS", "check_trackers", "trackers_of"]
