"""Runs on disk: the folder a run writes, where it is, and whether it can go on."""

from kinfed.runs.folder import CHECKPOINT, CONFIG, SUMMARY, RunFolder, Summary
from kinfed.runs.places import (
    can_go_on,
    free_folder,
    held,
    new_folder,
    refuse_other,
    refuse_taken,
    stored_config,
    write_config,
)

__all__ = [
    "CHECKPOINT",
    "CONFIG",
    "SUMMARY",
    "RunFolder",
    "Summary",
    "can_go_on",
    "free_folder",
    "held",
    "new_folder",
    "refuse_other",
    "refuse_taken",
    "stored_config",
    "write_config",
]
