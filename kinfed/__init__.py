"""Clustered federated learning: find clusters of related clients, and train one model for each cluster.

>>> import kinfed
>>> result = kinfed.run("auto", "digits", rounds=30)
>>> result.summary["accuracy"], result.clusters

Names are imported when they are first used, so that `import kinfed` loads nothing heavy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinfed import report
    from kinfed.api import Comparison, RunResult, compare, load_comparison, load_run, resume, run
    from kinfed.config import Config, load_config
    from kinfed.config.assembly import make_population
    from kinfed.data import OwnSettings, Population, Role, from_arrays, from_clients, from_hub, from_torch
    from kinfed.engines import EngineSettings
    from kinfed.errors import KinfedError
    from kinfed.experiment import Evaluation, Experiment
    from kinfed.method import Method
    from kinfed.methods import (
        APFL,
        CFL,
        FLHC,
        FLISDC,
        FLISHC,
        FLSC,
        FLT,
        FLUX,
        IFCA,
        PACFL,
        REPA,
        WD,
        Auto,
        Centralised,
        CLoVE,
        Ditto,
        FedALA,
        FedAvg,
        FedAvgFT,
        FedBABU,
        FedBN,
        FedClust,
        FedDrift,
        FedEM,
        FedGroup,
        FedNova,
        FedPer,
        FedProx,
        FedRC,
        FedRep,
        FedSoft,
        FeSEM,
        LGFedAvg,
        Local,
        Oracle,
        PCAKMeansHC,
        PerFedAvg,
        PFedMe,
        Scaffold,
        StoCFL,
    )
    from kinfed.models import Model, make_model
    from kinfed.sweeps import Sweep, sweep
    from kinfed.training import LocalTraining

    __version__: str

PLACES = {
    "kinfed.api": ("Comparison", "RunResult", "compare", "load_comparison", "load_run", "resume", "run"),
    "kinfed.config": ("Config", "load_config", "make_population"),
    "kinfed.data": ("OwnSettings", "Population", "Role", "from_arrays", "from_clients", "from_hub", "from_torch"),
    "kinfed.engines": ("EngineSettings",),
    "kinfed.errors": ("KinfedError",),
    "kinfed.experiment": ("Evaluation", "Experiment"),
    "kinfed.method": ("Method",),
    "kinfed.methods": (
        "Auto", "CFL", "FLHC", "FLISDC", "FLISHC", "FLT", "IFCA", "REPA", "WD", "FeSEM", "FedAvg", "FedAvgFT",
        "FedNova", "FedPer", "FedProx", "LGFedAvg", "Local", "PCAKMeansHC", "PerFedAvg", "Scaffold",
        "APFL", "Ditto", "FedALA", "FedBABU", "FedBN", "FedRep", "PFedMe", "CLoVE", "FedClust",
        "FedDrift", "FedGroup", "Oracle", "StoCFL", "PACFL", "FLUX", "Centralised", "FedEM",
        "FedRC", "FedSoft", "FLSC",
    ),
    "kinfed.models": ("Model", "make_model"),
    "kinfed.sweeps": ("Sweep", "sweep"),
    "kinfed.training": ("LocalTraining",),
}  # fmt: skip
__all__ = [
    "APFL",
    "CFL",
    "FLHC",
    "FLISDC",
    "FLISHC",
    "FLSC",
    "FLT",
    "FLUX",
    "IFCA",
    "PACFL",
    "REPA",
    "WD",
    "Auto",
    "CLoVE",
    "Centralised",
    "Comparison",
    "Config",
    "Ditto",
    "EngineSettings",
    "Evaluation",
    "Experiment",
    "FeSEM",
    "FedALA",
    "FedAvg",
    "FedAvgFT",
    "FedBABU",
    "FedBN",
    "FedClust",
    "FedDrift",
    "FedEM",
    "FedGroup",
    "FedNova",
    "FedPer",
    "FedProx",
    "FedRC",
    "FedRep",
    "FedSoft",
    "KinfedError",
    "LGFedAvg",
    "Local",
    "LocalTraining",
    "Method",
    "Model",
    "Oracle",
    "OwnSettings",
    "PCAKMeansHC",
    "PFedMe",
    "PerFedAvg",
    "Population",
    "Role",
    "RunResult",
    "Scaffold",
    "StoCFL",
    "Sweep",
    "__version__",
    "compare",
    "from_arrays",
    "from_clients",
    "from_hub",
    "from_torch",
    "load_comparison",
    "load_config",
    "load_run",
    "make_model",
    "make_population",
    "report",
    "resume",
    "run",
    "sweep",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("importlib.metadata").version("kinfed")
    if name == "report":
        return import_module("kinfed.report")
    for place, names in PLACES.items():
        if name in names:
            return getattr(import_module(place), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
