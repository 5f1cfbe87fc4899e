"""Trackers: a run observed by TensorBoard, MLflow or Weights & Biases. Each is imported when it is used."""

from collections.abc import Callable, Sequence
from pathlib import Path

from kinfed.config import Config, flatten
from kinfed.errors import ConfigError
from kinfed.experiment import Observer
from kinfed.registry import as_file, is_installed, look_up
from kinfed.trackers.backends import MLflow, Subject, TensorBoard, WandB

__all__ = ["TRACKERS", "check_trackers", "make_trackers"]
TRACKERS: dict[str, Callable[[Subject], Observer]] = {  # each is the name of its package too
    "tensorboard": TensorBoard,
    "mlflow": MLflow.of,
    "wandb": WandB,
}


def check_trackers(names: Sequence[str]) -> None:
    """Raises unless all trackers are known and installed; before a run starts."""
    for name in names:
        look_up(name, TRACKERS, "tracker")
        if not is_installed(name):
            raise ConfigError(
                f"trackers: '{name}' needs the package {name}; install it with pip install 'kinfed[{name}]', "
                f"or leave '{name}' out"
            )


def make_trackers(config: Config, folder: Path) -> list[Observer]:
    """The observers that the config asks for, of the run in this folder."""
    check_trackers(config.trackers)
    subject = Subject(
        folder, f"{as_file(config.method)}-{as_file(config.data.name)}-seed{config.seed}", flatten(config.resolve())
    )
    return [TRACKERS[name](subject) for name in config.trackers]
