"""An experiment: rounds of a method on a federation, evaluated as they go, watched by observers, resumable."""

from kinfed.experiment.evaluation_settings import Evaluation
from kinfed.experiment.loop import Experiment, Loop
from kinfed.experiment.observers import Observer, RoundResult, Summary

__all__ = ["Evaluation", "Experiment", "Loop", "Observer", "RoundResult", "Summary"]
