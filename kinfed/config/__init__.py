"""Config: one TOML file <-> nested frozen dataclasses, and the experiment they describe."""

from kinfed.config import toml
from kinfed.config.assembly import assemble, make_population
from kinfed.config.settings import DEMO, Config, DataSettings, load_config, read
from kinfed.config.toml import flattened, laid_over, write
from kinfed.engines import EngineSettings

__all__ = [
    "DEMO",
    "Config",
    "DataSettings",
    "EngineSettings",
    "assemble",
    "flattened",
    "laid_over",
    "load_config",
    "make_population",
    "read",
    "toml",
    "write",
]
