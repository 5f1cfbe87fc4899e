"""What is learnt: the loss, the predictions and the metrics of classification, regression, next tokens and labels."""

from kinfed.learning_tasks.classification import Classification, MultiLabel, NextToken
from kinfed.learning_tasks.learning_task import MOST, LearningTask, check_task
from kinfed.learning_tasks.own_metrics import OwnMetrics
from kinfed.learning_tasks.regression import FAR, Regression

__all__ = [
    "FAR",
    "MOST",
    "TASKS",
    "Classification",
    "LearningTask",
    "MultiLabel",
    "NextToken",
    "OwnMetrics",
    "Regression",
    "check_task",
    "is_built_in",
]

TASKS: dict[str, type[LearningTask]] = {
    "classification": Classification,
    "regression": Regression,
    "next_token": NextToken,
    "multi_label": MultiLabel,
}


def is_built_in(task: LearningTask) -> bool:
    """Whether the task is kinfed's own, whose losses are never negative."""
    return type(task) in TASKS.values()
