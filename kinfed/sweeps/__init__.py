"""Sweeps: many runs over a grid or random points of settings, selected on clients' held-out training samples."""

from kinfed.runs.logs import SWEEP
from kinfed.sweeps.run_sweep import resume_sweep, run_sweep, sweep
from kinfed.sweeps.space import Axis, Range, Space
from kinfed.sweeps.sweep_folder import Definition, Sweep, is_sweep

__all__ = ["SWEEP", "Axis", "Definition", "Range", "Space", "Sweep", "is_sweep", "resume_sweep", "run_sweep", "sweep"]
