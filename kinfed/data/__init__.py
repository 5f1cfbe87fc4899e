"""Data: named datasets, partitions, shifts, drift, roles, and a user's own samples -> one `Population`."""

from kinfed.data.build import build_population
from kinfed.data.changes import ChangeSettings
from kinfed.data.dataset import Dataset
from kinfed.data.datasets import DATASETS, Loader, data_root, has_all_classes, is_stored, load
from kinfed.data.drift import DRIFTS, Drift, LabelSwapDrift, NewClasses, RotationDrift, ScalingDrift
from kinfed.data.own_samples import OwnSettings, from_arrays, from_clients, from_hub, from_torch
from kinfed.data.partitions import PARTITIONS, Labels, Partition, Promise, Split, check
from kinfed.data.population import LATER, Change, Population, Role, label_counts
from kinfed.data.roles import RoleSettings
from kinfed.data.shifts import SHIFTS, Augment, LabelPermutation, LabelRotation, LabelSwap, Patterns, Rotation, Shift

__all__ = [
    "DATASETS",
    "DRIFTS",
    "LATER",
    "PARTITIONS",
    "SHIFTS",
    "Augment",
    "Change",
    "ChangeSettings",
    "Dataset",
    "Drift",
    "LabelPermutation",
    "LabelRotation",
    "LabelSwap",
    "LabelSwapDrift",
    "Labels",
    "Loader",
    "NewClasses",
    "OwnSettings",
    "Partition",
    "Patterns",
    "Population",
    "Promise",
    "Role",
    "RoleSettings",
    "Rotation",
    "RotationDrift",
    "ScalingDrift",
    "Shift",
    "Split",
    "build_population",
    "check",
    "data_root",
    "from_arrays",
    "from_clients",
    "from_hub",
    "from_torch",
    "has_all_classes",
    "is_stored",
    "label_counts",
    "load",
]
