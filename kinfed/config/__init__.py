"""Config: one TOML file <-> nested frozen dataclasses, their JSON schema, and the experiment they hold."""

from kinfed.config.assembly import POPULATION, assemble, check_encoders, make_population
from kinfed.config.schema import Table, build, to_table
from kinfed.config.settings import (
    DEMO,
    Config,
    DataSettings,
    find_method,
    json_schema,
    load_config,
    read,
    read_base,
)
from kinfed.config.toml import flatten, list_own_parts, merge_tables, read_toml, set_value, to_toml
from kinfed.engines import EngineSettings

__all__ = [
    "DEMO",
    "POPULATION",
    "Config",
    "DataSettings",
    "EngineSettings",
    "Table",
    "assemble",
    "build",
    "check_encoders",
    "find_method",
    "flatten",
    "json_schema",
    "list_own_parts",
    "load_config",
    "make_population",
    "merge_tables",
    "read",
    "read_base",
    "read_toml",
    "set_value",
    "to_table",
    "to_toml",
]
