"""Trackers by name."""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import cast

from kinfed.config import Config, flatten
from kinfed.errors import ConfigError
from kinfed.experiment import Observer
from kinfed.registry import is_installed, look_up
from kinfed.trackers.subject import Subject

TRACKERS = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}  # name -> package


def check_trackers(names: Sequence[str]) -> None:
    """Raises unless all trackers are known and installed; before a run begins."""
    for name in names:
        package = look_up(name, TRACKERS, "tracker")
        if not is_installed(package):
            raise ConfigError(
                f"trackers: '{name}' needs the package {package}; install it with pip install 'kinfed[{name}]', "
                f"or leave '{name}' out"
            )


def trackers_of(config: Config, folder: Path) -> list[Observer]:
    """The observers that the config asks for, of the run in this folder."""
    subject = Subject(folder, f"{config.method}-{config.data.name}-seed{config.seed}", flatten(config.resolve()))
    check_trackers(config.trackers)
    return [made(name)(subject) for name in config.trackers]


def made(name: str) -> Callable[[Subject], Observer]:
    """The function that makes a tracker; its module is the one file that imports the package."""
    return cast("Callable[[Subject], Observer]", import_module(f"kinfed.trackers.{name}").track)
