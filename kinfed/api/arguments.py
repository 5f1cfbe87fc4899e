"""What Python gives a run or a comparison: paths, objects, and changes of a config that is resumed."""

import os
from dataclasses import replace
from pathlib import Path

from kinfed.config import Config
from kinfed.config.assembly import DataLike, MethodLike
from kinfed.data.population import Population
from kinfed.errors import ConfigError
from kinfed.method import Method
from kinfed.runs.lifecycle import Given

Text = str | os.PathLike[str]


def give(method: MethodLike | None, data: DataLike | None) -> Given:
    """Those arguments that are objects."""
    return Given(
        data if isinstance(data, Population) else None,
        method if isinstance(method, Method) else None,
    )


def change(config: Config, rounds: int | None, device: str | None, data_dir: Text | None = None) -> Config:
    """The config with more rounds, on another device, or with its data in another folder."""
    engine = replace(config.engine, device=device or config.engine.device)
    folder = None if data_dir is None else str(to_path(data_dir, "data_dir").expanduser().absolute())
    data = config.data if folder is None else replace(config.data, dir=folder)
    return replace(config, rounds=config.rounds if rounds is None else rounds, engine=engine, data=data)


def to_path(place: Text, name: str = "out") -> Path:
    if place == "":
        raise ConfigError(f"{name}: wanted a path, got an empty one; the working folder is '.'")
    return Path(place)
