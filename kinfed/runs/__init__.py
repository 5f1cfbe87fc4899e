"""Runs on disk: their life (`lifecycle`), one writer and one reader of their folders."""

from kinfed.runs.lifecycle import (
    CONFIGURED,
    Given,
    Interrupted,
    Place,
    can_resume,
    conduct_held,
    free_folder,
    hold,
    refuse_begun,
    refuse_links,
    refuse_unknown_files,
    resume,
    start,
)
from kinfed.runs.logs import CHECKPOINT, COMPARISON, CONFIG, SUMMARY
from kinfed.runs.reader import Run, read_config, read_runs
from kinfed.runs.writer import RunWriter, write_config

__all__ = [
    "CHECKPOINT", "COMPARISON", "CONFIG", "CONFIGURED", "SUMMARY", "Given", "Interrupted", "Place", "Run", "RunWriter",
    "can_resume", "conduct_held", "free_folder", "hold", "read_config", "read_runs", "refuse_begun", "refuse_links",
    "refuse_unknown_files", "resume", "start",
    "write_config",
]  # fmt: skip
