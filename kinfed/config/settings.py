"""All settings of an experiment in one object, with the papers' defaults; one TOML file holds them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import TypeVar

from kinfed.checks import within
from kinfed.config import toml
from kinfed.config.own import GIVEN, method_named
from kinfed.config.tables import (
    Table,
    build,
    default_fields,
    plain,
    read_fields,
    settable_fields,
    to_table,
    unknown_key,
)
from kinfed.data.changes import ChangeSettings
from kinfed.data.partitions import PARTITIONS, DisjointClasses, Partition
from kinfed.data.roles import RoleSettings
from kinfed.data.shifts import SHIFTS, Shift
from kinfed.engines import EngineSettings
from kinfed.errors import ConfigError, UnknownKey
from kinfed.experiment import Evaluation
from kinfed.registry import known
from kinfed.training import LocalTraining

T = TypeVar("T")
DEMO = Path(__file__).with_name("demo.toml")
BY_NAME = ("partition", "shift", "change", "methods")  # sections whose keys hang on a name in them


@dataclass(frozen=True)
class DataSettings:
    """Where the rows come from."""

    name: str = "digits"  # a dataset that `kinfed list datasets` names, or NAME of your own NAME.npz
    dir: str = ""  # folder of the .npz files; empty: $KINFED_DATA, else the user's cache folder
    public: float = 0.0  # share of the training rows that the server owns
    public_test: bool = False  # the same share of the test rows too
    train_samples: int | None = None  # training rows of a client at most
    test_samples: int | None = None  # test rows of a client at most
    global_test: bool = False  # clients are tested on all test rows, not on those of their own labels
    validation: float = 0.0  # share of its own training rows that a client is tested on; 0: the partition's test rows

    def __post_init__(self) -> None:
        if not 0 <= self.public < 1:
            raise ConfigError(f"public must be a share from 0 to below 1, got {self.public}")


@dataclass(frozen=True)
class Config:
    """An experiment; `run` runs `method`, `compare` runs the methods in `compare` for all `seeds`."""

    method: str = "flt"  # what `run` runs; or package.module:Class, a method of your own
    compare: tuple[str, ...] = ("fedavg", "local", "flt")  # what `compare` runs
    seed: int = 0  # fixes clients, first weights and every draw
    seeds: tuple[int, ...] = ()  # of `compare`; empty: `seed` alone
    rounds: int = 100  # T, rounds of training
    fraction: float = 0.2  # ρ, share of the clients that train in a round
    model: str = "mlp_200"  # or package.module:function, a function (shape, classes) -> torch.nn.Module
    checkpoint_every: int = 10  # rounds between two checkpoints; more where one takes longer than a second
    trackers: tuple[str, ...] = ()  # who else watches: tensorboard, mlflow, wandb
    data: DataSettings = DataSettings()
    partition: Partition = DisjointClasses()
    shift: Shift | None = None
    roles: RoleSettings = RoleSettings()
    change: ChangeSettings | None = None
    training: LocalTraining = LocalTraining()
    evaluation: Evaluation = Evaluation()
    engine: EngineSettings = EngineSettings()
    methods: Mapping[str, Table] = field(default_factory=dict)  # method -> settings; who is not in it has its defaults

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.checkpoint_every < 1:
            raise ConfigError(
                f"rounds and checkpoint_every must be at least 1, got {self.rounds}, {self.checkpoint_every}"
            )
        if not 0 < self.fraction <= 1:
            raise ConfigError(f"fraction must be above 0 and at most 1, got {self.fraction}")
        for seed in (self.seed, *self.seeds):
            within(0, 2**64 - 1, seeds=seed)
        if not self.compare:
            raise ConfigError("compare must name at least one method, got an empty list")
        for key, values in (("compare", self.compare), ("seeds", self.seeds)):
            if twice := [value for value, number in Counter(values).items() if number > 1]:
                raise ConfigError(f"{key} must name everything once, got {twice[0]} more than once")

    def settings_of(self, method: str) -> Table:
        """All settings of a method (but for its model and local training) by field name."""
        return default_fields(method_named(method), GIVEN) | dict(self.methods.get(method, {}))

    def resolve(self) -> Table:
        """The whole config with all defaults, as the table that `read` turns into the same config."""
        methods = dict.fromkeys((self.method, *self.methods))
        return {
            **{name: plain(getattr(self, name)) for name in settable_fields(Config) if name != "change"},
            "partition": named_table(self.partition, PARTITIONS),
            "shift": named_table(self.shift, SHIFTS) if self.shift else {"name": ""},
            "change": to_table(self.change) if self.change else {"round": 0},
            "methods": {method: plain(self.settings_of(method)) for method in methods},
        }


def load_config(
    path: Path | str | None = None, overrides: Iterable[str] = (), options: Mapping[str, object] | None = None
) -> Config:
    """The config of a TOML file (none: the defaults), under `key=value` overrides, under options by dotted key."""
    table = toml.overridden(toml.read_file(Path(path)) if path else {}, overrides)
    for key, value in (options or {}).items():
        table = toml.put(table, key.split("."), value)
    return read(table)


def read(table: Table) -> Config:
    """The config that this table describes; an unknown key is an error that names the nearest of all sections."""
    try:
        return read_sections(table)
    except UnknownKey as error:
        method = error.at.split(".")[1] if error.at.startswith("methods.") else str(table.get("method", Config.method))
        raise ConfigError(unknown_key(error.name, error.known, error.at, all_keys(method))) from None


def read_sections(table: Table) -> Config:
    plain_keys = [name for name in settable_fields(Config) if name not in BY_NAME]
    for name in table:
        if name not in (*plain_keys, *BY_NAME):
            raise UnknownKey(f"unknown key '{name}'", "", name, (*plain_keys, *BY_NAME))
    values = read_fields(Config, {name: table[name] for name in plain_keys if name in table}, "")
    by_name = {
        "partition": read_named(PARTITIONS, table.get("partition", {}), "partition", "disjoint_classes"),
        "shift": read_named(SHIFTS, table.get("shift", {}), "shift", ""),
        "change": read_change(table.get("change", {"round": 0})),
        "methods": read_methods(table.get("methods", {}), str(values.get("method", Config.method))),
    }
    return Config(**values, **by_name)  # type: ignore[arg-type]


def read_named(registry: Mapping[str, type[T]], table: object, at: str, default: str) -> T | None:
    """What a section with a `name` and the settings of that name describes; none only where that is the default."""
    if not isinstance(table, dict):
        raise ConfigError(f"{at}: wanted a table with a name, got {table!r}")
    name, rest = table.get("name", default), {key: value for key, value in table.items() if key != "name"}
    if name == "" and (rest or default):
        raise ConfigError(f"{at}.name is missing: wanted one of {', '.join(registry)}")
    return build(known(str(name), registry, at), rest, at) if name != "" else None


def read_change(table: object) -> ChangeSettings | None:
    """The change of data; none at round 0."""
    off = isinstance(table, dict) and table.get("round") == 0
    return None if off else build(ChangeSettings, table, "change")


def read_methods(table: object, method: str) -> dict[str, Table]:
    """All settings of the method that runs, and of those with a section [methods.NAME], by method."""
    if not isinstance(table, dict):
        raise ConfigError(f"methods: wanted a table for each method, got {table!r}")
    settings: dict[str, Table] = {}
    tables: Table = {method: table.get(method, {}), **table}
    for name, inner in tables.items():
        kind = method_named(name)
        settings[name] = default_fields(kind, GIVEN) | read_fields(kind, inner, f"methods.{name}", GIVEN)
    return settings


def named_table(settings: object, registry: Mapping[str, type]) -> Table:
    """The section that `read_named` turns into these settings."""
    name = next((name for name, kind in registry.items() if type(settings) is kind), None)
    if name is None or not is_dataclass(settings) or isinstance(settings, type):
        raise ConfigError(f"wanted one of {', '.join(registry)}, got {settings!r}, which has no name in a config")
    return {"name": name} | to_table(settings)


def all_keys(method: str) -> list[str]:
    """Every dotted key of a config that runs this method, whatever the names in it are."""
    try:
        whole = Config(method=method).resolve()
    except ConfigError:  # a misspelt one
        whole = Config().resolve()
    kinds = [("partition", kind) for kind in PARTITIONS.values()] + [("shift", kind) for kind in SHIFTS.values()]
    named = [
        f"{section}.{name}" for section, kind in [*kinds, ("change", ChangeSettings)] for name in settable_fields(kind)
    ]
    return list(dict.fromkeys([*toml.flattened(whole), *named]))
