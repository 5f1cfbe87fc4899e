"""What `flwr run --run-config` sets: keys of config.toml and plan.toml, for one run, on the server and on its nodes.

Flower takes only keys that the app's pyproject.toml lists, with values that are no lists: there each is empty, which
means that the files of the app say it.
"""

import shlex
from collections.abc import Mapping
from dataclasses import fields
from itertools import chain

from kinfed.config import Config, Table, build, flatten, read, to_table
from kinfed.config.settings import all_keys
from kinfed.config.toml import apply_overrides
from kinfed.deployment.plan import Plan
from kinfed.errors import ConfigError

RunConfig = Mapping[str, bool | bytes | float | int | str]
OUT, SETTINGS, PLAN = "out", "settings", "plan"
SECTIONS = ("task", "inputs", "training", "aggregation", "evaluation", "engine", "methods")
PLAIN = ("method", "seed", "rounds", "fraction", "model", "checkpoint_every")
FIXED = ("engine.name", "engine.block", "engine.workers", "engine.precision", "evaluation.correlation")
PLANNED = ("wait_for", "wait_seconds", "quorum", "grace_seconds", "max_samples")


def list_run_keys(config: Config) -> list[str]:
    """The dotted keys that a run of this config may set, as TOML writes them."""
    own = chain(flatten(config.resolve()), all_keys(config.method))
    known = [key for key in dict.fromkeys(own) if key in PLAIN or key.split(".")[0] in SECTIONS]
    mine = [key for key in known if not key.startswith("methods.") or key.startswith(f"methods.{config.method}.")]
    return [quote_method(key, config) for key in mine if key not in FIXED] + [f"{PLAN}.{name}" for name in PLANNED]


def apply_run_config(config: Config, plan: Plan, given: RunConfig) -> tuple[Config, Plan]:
    """Config and plan of one run; ConfigError where it sets what is not known or not valid."""
    values = {key: value for key, value in given.items() if value != "" and key not in (OUT, SETTINGS)}
    words = [f"{quote_method(key, config)}={to_text(value)}" for key, value in values.items()]
    try:
        words += shlex.split(str(given.get(SETTINGS, "")), posix=False)
    except ValueError as error:
        raise ConfigError(f"--run-config {SETTINGS}: {error}, got {given[SETTINGS]!r}") from None
    planned = [word.removeprefix(f"{PLAN}.") for word in words if word.startswith(f"{PLAN}.")]
    others = [word for word in words if not word.startswith(f"{PLAN}.")]
    if not words:
        return config, plan
    return read(apply_overrides(config.resolve(), others)), change_plan(plan, planned)


def write_run_config(config: Config, given: RunConfig) -> str:
    """What the run sets beside its folder, as `--run-config` takes it; empty where that is nothing."""
    values = {key: value for key, value in given.items() if value != "" and key != OUT}
    return " ".join(f"{quote_method(key, config)}={quote_value(value)}" for key, value in values.items())


def change_plan(plan: Plan, words: list[str]) -> Plan:
    """The plan with these values; ConfigError for one on which nodes and server must agree beforehand."""
    table: Table = apply_overrides(to_table(plan), words)
    changed = [f.name for f in fields(Plan) if f.name not in PLANNED and table.get(f.name) != to_table(plan)[f.name]]
    if changed:
        raise ConfigError(f"{PLAN}.{changed[0]} cannot be set for one run: set it in kinfed_app/plan.toml")
    return build(Plan, table, PLAN)


def quote_method(key: str, config: Config) -> str:
    """The key, with the name of an own method in quotes: it has dots in it."""
    return key.replace(f"methods.{config.method}.", f'methods."{config.method}".', 1)


def quote_value(value: object) -> str:
    """A value as Flower reads it: text is in quotes that it does not hold."""
    if not isinstance(value, str):
        return to_text(value)
    return f"'{value}'" if '"' in value or "\\" in value else f'"{value}"'


def to_text(value: object) -> str:
    """A value as TOML writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
