"""All settings of an experiment in one object, with the papers' defaults; one TOML file holds them."""

import inspect
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import get_type_hints

from pydantic.json_schema import GenerateJsonSchema

from kinfed.aggregation import Aggregation
from kinfed.checks import at_least, within
from kinfed.config.schema import (
    PARTS,
    Table,
    build,
    default_fields,
    explain_unknown_key,
    field_schemas,
    join_path,
    read_fields,
    table_schema,
    to_plain,
    to_table,
)
from kinfed.config.toml import apply_overrides, flatten, merge_tables, read_toml, set_value
from kinfed.data.changes import ChangeSettings
from kinfed.data.datasets import has_clients
from kinfed.data.drift import Drift
from kinfed.data.partitions import DisjointClasses, Partition
from kinfed.data.roles import RoleSettings
from kinfed.data.shifts import Shift
from kinfed.engines import EngineSettings
from kinfed.errors import ConfigError, UnknownKey
from kinfed.experiment import Evaluation
from kinfed.learning_tasks import Classification, LearningTask
from kinfed.method import Method
from kinfed.methods import METHODS, PRESETS
from kinfed.models.inputs import Inputs
from kinfed.privacy import OPEN, Privacy
from kinfed.registry import as_file, import_object, look_up
from kinfed.training import LocalTraining

DEMO = Path(__file__).with_name("demo.toml")
GIVEN = ("model", "local")  # fields of a method that other sections hold
RENAMED = {  # old key -> new key; no aliases
    "algorithm": "method",
    "algorithms": "methods",
    "data.train_rows": "data.train_samples",
    "data.test_rows": "data.test_samples",
    "methods.flt.signature.pretraining.rows": "methods.flt.signature.pretraining.samples",
    "partition.groups": "partition.clusters",
    "partition.labels_per_group": "partition.labels_per_cluster",
    "partition.min_rows": "partition.min_samples",
    "partition.rows_per_class": "partition.samples_per_class",
    "partition.test_rows": "partition.test_samples",
}
SYNONYMS = {  # key -> names that other simulators and papers have for it, in whatever section
    "method": ("strategy", "aggregator", "algo"),
    "model": ("arch", "architecture", "backbone", "model_name", "net", "network"),
    "rounds": ("comm_round", "comm_rounds", "communication_rounds", "global_rounds", "n_rounds", "num_rounds"),
    "fraction": ("client_fraction", "frac", "fraction_fit", "fraction_train", "join_ratio", "participation_rate"),
    "seed": ("manual_seed", "random_seed", "random_state"),
    "data.name": ("csv", "dataset", "dataset_name", "file", "filename", "folder", "path"),
    "data.dir": ("data_dir", "data_path", "datadir", "root"),
    "partition.name": ("iid", "non_iid", "noniid", "partitioner"),
    "partition.beta": ("alpha", "concentration", "dir_alpha", "dirichlet_alpha"),
    "partition.clients": ("client_num", "n_clients", "n_parties", "num_clients", "num_nodes", "num_users"),
    "training.batch_size": ("batch", "batchsize", "bs", "local_batch_size", "local_bs"),
    "training.epochs": ("local_ep", "local_epoch", "local_epochs", "n_epochs", "num_epochs"),
    "training.lr": ("client_lr", "eta", "learning_rate", "local_learning_rate", "local_lr", "step_size"),
    "training.optimiser": ("opt", "optim", "optimizer"),
    "training.clip_norm": ("clip", "grad_clip", "max_grad_norm", "max_norm"),
    "evaluation.every": ("eval_every", "eval_gap", "eval_interval", "test_every"),
    "engine.device": ("cuda", "gpu", "use_cuda"),
}


@dataclass(frozen=True)
class DataSettings:
    """Where the samples come from."""

    name: str = (
        "digits"  # of `kinfed list datasets`, of your NAME.npz, FILE.csv, FILE.parquet, FOLDER/, module:function
    )
    options: Mapping[str, object] = field(default_factory=dict)  # of natural datasets, tables, folders and functions
    dir: str = ""  # folder of the .npz files; empty: $KINFED_DATA, else the user's cache folder
    public: float = 0.0  # share of the training samples that the server owns
    public_test: bool = False  # the same share of the test samples too
    public_train: bool = True  # false: the server owns test samples alone, and clients train on all training samples
    train_samples: int | None = None  # training samples of a client at most
    test_samples: int | None = None  # test samples of a client at most
    global_test: bool = False  # clients are tested on all test samples, not on those of their own labels
    validation: float = 0.0  # share of its training samples that a client is tested on; 0: the partition's test samples
    pooled: bool = False  # clients get test samples, too, and part what they get by `validation` (PFLlib)
    selection: float = (
        0.0  # share of its training samples that a client is scored on, to select models: `sweep` sets it
    )

    @property
    def folder_name(self) -> str:
        """Its name as a part of a folder's name."""
        return as_file(self.name.split(":")[0])

    def __post_init__(self) -> None:
        for name, share in (("public", self.public), ("validation", self.validation), ("selection", self.selection)):
            if not 0 <= share < 1:
                raise ConfigError(f"{name} must be a share from 0 to below 1, got {share}")
        if self.pooled and (not self.validation or self.public_test):
            raise ConfigError(
                "pooled leaves no test samples of the dataset's own: set validation above 0, and public_test to false"
            )
        if not (self.public_train or self.public_test):
            raise ConfigError("public_train = false leaves the server test samples alone: set public_test to true")
        samples = {"train_samples": self.train_samples, "test_samples": self.test_samples}
        at_least(1, **{name: most for name, most in samples.items() if most is not None})


@dataclass(frozen=True)
class Config:
    """An experiment; `run` runs `method`, `compare` runs the methods in `compare` for all `seeds`."""

    method: str = "flt"  # what `run` runs; or package.module:Class, a method of your own
    compare: tuple[str, ...] = ("fedavg", "local", "flt", "auto")  # what `compare` runs
    seed: int = 0  # fixes clients, first weights and every draw
    seeds: tuple[int, ...] = ()  # of `compare`; empty: `seed` alone
    rounds: int = 100  # T, rounds of training
    fraction: float = 0.2  # ρ, share of the clients that train in a round
    model: str = "mlp_200"  # or package.module:function, a function (shape, classes) -> torch.nn.Module
    checkpoint_every: int = 10  # rounds between two checkpoints; more where one takes longer than a second
    trackers: tuple[str, ...] = ()  # what else logs the run: tensorboard, mlflow, wandb
    task: LearningTask = Classification()  # what is learnt
    data: DataSettings = DataSettings()
    partition: Partition = DisjointClasses()
    shift: Shift | None = None
    roles: RoleSettings = RoleSettings()
    change: ChangeSettings = ChangeSettings(round=0)
    drift: Drift | None = None
    inputs: Inputs = Inputs()
    training: LocalTraining = LocalTraining()
    aggregation: Aggregation | None = None  # none: the mean in simulation, norm clipping in deployment
    privacy: Privacy = OPEN
    evaluation: Evaluation = Evaluation()
    engine: EngineSettings = EngineSettings()
    methods: Mapping[str, Table] = field(default_factory=dict)  # method -> settings; else its defaults

    def __post_init__(self) -> None:
        at_least(1, rounds=self.rounds, checkpoint_every=self.checkpoint_every)
        if self.data.pooled and self.roles.look_alikes:
            raise ConfigError("data.pooled leaves no samples that nobody trains on, which look-alikes have; drop one")
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
        return read_method(method, {}) | dict(self.methods.get(method, {}))

    def resolve(self) -> Table:
        """The whole config with all defaults, as the table that `read` turns into the same config."""
        methods = dict.fromkeys((self.method, *self.methods))
        return to_table(self) | {"methods": {name: plain_settings(self.settings_of(name), name) for name in methods}}


def load_config(
    path: Path | str | None = None, overrides: Iterable[str] = (), options: Mapping[str, object] | None = None
) -> Config:
    """The config of a TOML file (none: the defaults), under `key=value` overrides, under options by dotted key."""
    words = tuple(overrides)
    table = apply_overrides(read_base(Path(path), words) if path else {}, words)
    for key, value in (options or {}).items():
        table = set_value(table, key.split("."), value)
    return read(table)


def read_base(path: Path, words: Iterable[str]) -> Table:
    """The table of a file that `key=value` words go over; the demo's partition is for data like the demo's."""
    table, pairs = read_toml(path), dict(word.partition("=")[::2] for word in words)
    name = pairs.get("data.name", pairs.get("data", "")).strip("\"' ")
    is_chosen = any(key.split(".")[0] == "partition" for key in pairs)
    return leave_partition(table, name) if path == DEMO and not is_chosen else table


def leave_partition(table: Table, name: str) -> Table:
    """The same without a partition, where the data of this name say whose each sample is."""
    return {key: value for key, value in table.items() if key != "partition" or not has_clients(name)}


def read(table: Table) -> Config:
    """The config that this table holds; an unknown key is an error that names the nearest of all sections."""
    try:
        config = build(Config, fill_partition(fill_cosine(table)), "")
        return replace(config, methods=read_methods(config))
    except UnknownKey as error:
        raise ConfigError(explain_key(error, str(table.get("method", Config.method)))) from None


def fill_cosine(table: Table) -> Table:
    """The same, but a cosine schedule without an end falls to 0 over all rounds."""
    training = table.get("training")
    if not isinstance(training, dict) or training.get("schedule") != "cosine" or training.get("schedule_rounds"):
        return table
    return {**table, "training": {**training, "schedule_rounds": table.get("rounds", Config.rounds)}}


def fill_partition(table: Table) -> Table:
    """The same, but data that say whose each sample is are dealt to these clients, unless a partition is named."""
    data, partition = table.get("data"), table.get("partition", {})
    name = data.get("name") if isinstance(data, dict) else data
    if not isinstance(name, str) or not has_clients(name) or not isinstance(partition, dict) or "name" in partition:
        return table
    return {**table, "partition": {"name": "natural", **partition}}


def explain_key(error: UnknownKey, method: str) -> str:
    """The message for an unknown key: its new name, or the nearest in all sections."""
    key = join_path(error.at, error.name)
    if key in RENAMED:
        return f"config key '{key}' was renamed to '{RENAMED[key]}'; write that"
    method = error.at.split(".")[1] if error.at.startswith("methods.") else method
    keys = all_keys(method)
    return explain_unknown_key(error.at, error.name, error.known, keys, find_synonym(error.at, error.name, keys))


def find_synonym(at: str, name: str, keys: Iterable[str]) -> str:
    """The key that this name stands for elsewhere in the field; empty if none, or if another section has the name."""
    meant = next((key for key, others in SYNONYMS.items() if name.lower() in others), "")
    is_known = any(key.rpartition(".")[2] == name and key.count(".") < 3 for key in keys)  # APFL's own alpha, say
    return meant if at == meant.rpartition(".")[0] or not is_known else ""


def read_methods(config: Config) -> dict[str, Table]:
    """All settings of the method that runs, and of those with a section [methods.NAME], by method."""
    return {name: read_method(name, table) for name, table in {config.method: {}, **config.methods}.items()}


def read_method(name: str, table: Table) -> Table:
    """All settings of a method: those of this table over the preset's, and these over its defaults."""
    kind, at = find_method(name), f"methods.{name}"
    if name in PRESETS and isinstance(table, dict):
        table = merge_tables(PRESETS[name].settings, table)
    settings = default_fields(kind, GIVEN) | read_fields(kind, table, at, GIVEN)
    check_settings(kind, settings, at)
    return settings


def check_settings(kind: type[Method[object]], settings: Table, at: str) -> None:
    """Raise ConfigError where a method of ours would refuse its settings, though it is not the one that runs."""
    check = getattr(kind, "__post_init__", None)
    if check is None or kind not in METHODS.values():
        return
    unmade = object.__new__(kind)  # without a model, which no check of settings looks at
    vars(unmade).update(settings)
    try:
        check(unmade)
    except ValueError as error:
        raise ConfigError(f"{at}: {error}") from error


def plain_settings(settings: Table, method: str) -> Table:
    """The section of a method's settings."""
    hints = get_type_hints(find_method(method))
    return {name: to_plain(value, hints[name]) for name, value in settings.items()}


def find_method(name: str) -> type[Method[object]]:
    """The method of this name, or the user's own class that it names."""
    if ":" not in name:
        return look_up(name, METHODS | {preset: METHODS[of.method] for preset, of in PRESETS.items()}, "method")
    found = import_object(name, "method")
    if not (isinstance(found, type) and issubclass(found, Method) and is_dataclass(found)):
        raise ConfigError(f"method '{name}' must be a dataclass that inherits from kinfed.method.Method")
    if inspect.isabstract(found):
        raise ConfigError(
            f"method '{name}' lacks {', '.join(sorted(found.__abstractmethods__))}: write them in its class"
        )
    if lacking := [given for given in GIVEN if given not in {field.name for field in fields(found)}]:
        raise ConfigError(f"method '{name}' lacks the field {' and '.join(lacking)}, which other sections set")
    return found


def all_keys(method: str) -> list[str]:
    """Every dotted key of a config that runs this method, whatever the names in it are."""
    try:
        whole = Config(method=method).resolve()
    except ConfigError:  # a misspelt one
        whole = Config().resolve()
    kinds = [(parts.kind, kind) for parts in PARTS.values() for kind in parts.registry.values()]
    return list(
        dict.fromkeys([*flatten(whole), *(f"{at}.{name}" for at, kind in kinds for name in field_schemas(kind))])
    )


def json_schema() -> Table:
    """The JSON schema of a config, for editors and other programs."""
    methods = {name: table_schema(field_schemas(find_method(name), GIVEN)) for name in (*METHODS, *PRESETS)}
    schema = GenerateJsonSchema().generate(table_schema(field_schemas(Config) | {"methods": table_schema(methods)}))
    schema["properties"]["methods"]["patternProperties"] = {":": {"type": "object"}}  # the user's own
    return {"$schema": GenerateJsonSchema.schema_dialect, "title": "kinfed config", **schema}
