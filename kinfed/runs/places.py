"""Where runs are: making a folder for a new one, and finding out whether an old one can go on."""

import shutil
from contextlib import AbstractContextManager
from pathlib import Path

from kinfed import checkpoint
from kinfed.config import Config, flattened, load_config, write
from kinfed.config.tables import Table
from kinfed.engines import NODES
from kinfed.errors import CheckpointError, ConfigError
from kinfed.locks import locked
from kinfed.runs.folder import CHECKPOINT, CONFIG, FILES, SUMMARY, TRACKED, refuse_damaged
from kinfed.runs.logs import write_text

MAY_DIFFER = ("engine.device", "engine.block", "engine.timeout", "engine.attempts", "evaluation.signatures", "trackers")


def new_folder(wanted: Path, force: bool) -> Path:
    """The folder, empty of any earlier run; one that holds a run is refused unless forced."""
    refuse_taken(wanted, force)
    wanted.mkdir(parents=True, exist_ok=True)
    with held(wanted):
        for name in FILES:
            (wanted / name).unlink(missing_ok=True)
        for inner in (NODES, *TRACKED):
            shutil.rmtree(wanted / inner, ignore_errors=True)
    return wanted


def held(folder: Path) -> AbstractContextManager[None]:
    """Inside it nobody else writes this run; raises if another process is at it."""
    busy = f"another process is at work on the run at {folder}: let it end, stop it, or choose another folder"
    return locked(folder, busy)


def refuse_taken(folder: Path, force: bool) -> None:
    """Raises if a run is there already."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; choose another --out for the run's folder")
    if not force and any((folder / name).exists() for name in ("rounds.csv", CHECKPOINT, SUMMARY)):
        raise ConfigError(
            f"{folder} already holds a run: go on with `kinfed resume {folder}`, choose another --out, "
            "or replace it with --force"
        )


def free_folder(stem: Path) -> Path:
    """The folder itself if it is not there yet, else the first free of stem-2, stem-3, …"""
    number = 1
    while True:
        folder = stem if number == 1 else stem.with_name(f"{stem.name}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1


def write_config(folder: Path, config: Config, name: str = CONFIG) -> None:
    """Writes all settings into the folder."""
    write_text(folder / name, write(config.resolve()))


def stored_config(folder: Path, name: str = CONFIG) -> Config:
    """The config that a folder was written with."""
    if not (folder / name).exists():
        raise CheckpointError(f"no run at {folder}: wanted a folder that `kinfed run` or `kinfed compare` wrote")
    return load_config(folder / name)


def can_go_on(folder: Path, config: Config) -> bool:
    """Whether there is a checkpoint to go on from; raises if it belongs to another config.

    A run that was stopped before its first checkpoint has to begin again; one that ended must have its checkpoint.
    """
    if not (folder / CHECKPOINT).exists() and not (folder / SUMMARY).exists():
        return False
    refuse_damaged(folder, int(str(about(folder, config)["round"])))
    return True


def about(folder: Path, config: Config) -> dict[str, object]:
    """What the checkpoint of a run says about itself; raises if it belongs to another config."""
    said = checkpoint.read_about(folder / CHECKPOINT)
    saved = said.get("config")
    if not isinstance(saved, dict):
        raise CheckpointError(f"{folder / CHECKPOINT} does not say which config it is from; start the run again")
    refuse_other(saved, config, f"{folder / CHECKPOINT} is from another config")
    return said


def refuse_other(saved: Table, config: Config, what: str) -> None:
    """Raises unless the config differs from the saved one only where a run may change its mind."""
    before, now = flattened(saved), flattened(config.resolve())
    differing = [key for key in before | now if before.get(key) != now.get(key) and key not in MAY_DIFFER]
    if "rounds" in differing and int(str(before["rounds"])) < config.rounds:
        differing.remove("rounds")
    if differing:
        listed = "; ".join(f"{key} was {before.get(key)!r}, is {now.get(key)!r}" for key in differing)
        raise CheckpointError(f"{what}: {listed}. Set them back, or start a new run")
