"""From a config to the real parts: dataset, clients, model, method, engine."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar, cast, get_args, get_type_hints

import torch
from torch import Tensor, nn

from kinfed.aggregation import MEAN
from kinfed.capabilities import takes_server_samples
from kinfed.config.schema import Table
from kinfed.config.settings import DEMO, GIVEN, Config, find_method, leave_partition, read
from kinfed.config.toml import merge_tables, override, read_toml, split_key
from kinfed.data.build import build_population, score_on_training
from kinfed.data.datasets import load
from kinfed.data.partitions import Natural, Writers
from kinfed.data.population import Population
from kinfed.data.readers import is_file_name
from kinfed.engines import ENGINES, choose_device
from kinfed.errors import ConfigError, DataError, KinfedError, ModelError
from kinfed.experiment import Experiment, Loop
from kinfed.learning_tasks import LearningTask
from kinfed.method import Method
from kinfed.methods import FLT, METHODS
from kinfed.models import MODELS, TAKES, TOKEN_MODELS, Model, Shape, explain_layout, make_model
from kinfed.models.inputs import Inputs
from kinfed.privacy import UNPROTECTED, Privacy
from kinfed.registry import import_function, look_up, members_of
from kinfed.signatures import EmbeddingStatistics, Pretraining, Signature
from kinfed.targets import is_known

T = TypeVar("T")
log = logging.getLogger(__name__)


def assemble(
    config: Config, population: Population | None = None, method: Method[object] | None = None
) -> Experiment[object]:
    """The experiment of this config; it depends on the config alone, so methods of one seed meet the same clients.

    Data and a method that Python gave as objects are given again.
    """
    find_method(config.method)
    look_up(config.engine.name, ENGINES, "engine")
    choose_device(config.engine.device)
    if population is not None and method is None:
        check_targets(population, config.task)
    population = population or make_population(config)
    method = protect(method, config.privacy) if method else make_method(config, model_for(config, population))
    return Experiment(
        method, population, config.engine, fraction=config.fraction, seed=config.seed, privacy=config.privacy,
        aggregation=config.aggregation or MEAN, **loop_settings(config),
    )  # fmt: skip


def check_needs(config: Config, population: Population, method: Method[object] | None = None) -> None:
    """Raises where something is missing that a run of this config asks for, at its start or at its end."""
    device = choose_device(config.engine.device)
    here = (
        config if "," in device else replace(config, engine=replace(config.engine, device="cpu"))
    )  # GPUs start slowly
    experiment = assemble(here, population, method)
    experiment.fed.close()
    if takes_server_samples(experiment.method) and not len(population.public):
        raise ConfigError(
            f"method '{config.method}' takes samples that the server owns, and there are none: set data.public = 0.1 "
            "(of your own samples: OwnSettings(public=0.1), or Population.public)"
        )
    check_encoders(experiment.method, population)
    if config.privacy.training.is_on:
        config.privacy.training.spend(1, config.fraction)  # the accountant may be an extra


def check_encoders(method: Method[object], population: Population) -> None:
    """Raises where an encoder of the method's settings is not here, or does not take the clients' samples."""
    signature = getattr(method, "signature", None)
    if isinstance(signature, Signature):
        name = getattr(signature, "autoencoder", type(signature).__name__)
        with in_one_line(f"auto-encoder '{name}' failed on samples of shape {list(population.x.shape[1:])}"):
            signature.check(pick_samples(population.x).clone())
    for statistics in find_all(EmbeddingStatistics, method):
        statistics.check()
    for pretraining in find_all(Pretraining, method):
        pretraining.check(population.x.shape[1:])


def find_all(kind: type[T], settings: object) -> Iterator[T]:
    """All objects of this kind among settings and the settings in them."""
    if isinstance(settings, kind):
        yield settings
    elif is_dataclass(settings) and not isinstance(settings, type):
        for each in fields(settings):
            yield from find_all(kind, getattr(settings, each.name, None))


def loop_settings(config: Config) -> Loop:
    """The settings of the experiment's rounds."""
    return {
        "rounds": config.rounds,
        "evaluation": config.evaluation,
        "checkpoint_every": config.checkpoint_every,
        "about": {"config": config.resolve()},
    }


POPULATION = (
    "task",
    "data",
    "partition",
    "shift",
    "roles",
    "change",
    "drift",
)  # what clients depend on, beside the seed


def make_population(config: Config) -> Population:
    """The clients and their samples."""
    data = config.data
    refuse_own(data.name, "data")
    dataset = load(data.name, data.dir or None, data.options).for_task(config.task)
    if is_file_name(data.name) and not isinstance(config.partition, Natural | Writers):
        log.warning(
            "'%s' says whose each sample is, which partition.name = natural takes; another one deals them", data.name
        )
    population = build_population(
        dataset.pool() if data.pooled else dataset, config.partition, config.seed,
        public_fraction=data.public, public_test=data.public_test, public_train=data.public_train,
        train_samples=data.train_samples, test_samples=data.test_samples, global_test=data.global_test,
        validation=data.validation,
        shift=config.shift, roles=config.roles, change=config.change, drift=config.drift,
    )  # fmt: skip
    return score_on_training(population, data.selection, config.seed) if data.selection else population


def model_for(config: Config, population: Population) -> Model:
    """The model of the task, tried on two samples."""
    refuse_own(config.model, "model")
    shape = cast("Shape", tuple(population.x.shape[1:]))
    if ":" in config.model:
        own = import_function(config.model, "model")
        build = partial(own_network, config.model, own, shape, population.classes)
        model = Model(build, seed=config.seed, classes=population.classes, task=config.task)
    else:
        check_tokens(config.model, population.x)
        check_vocabulary(config.model, population)
        model = make_model(config.model, shape, population.classes, seed=config.seed, task=config.task)
        if said := explain_layout(config.model, shape):
            log.warning("model '%s' is for images [channels, height, width]: %s", config.model, said)
    if population.x.dtype == torch.int64 and (config.inputs.mean or config.inputs.augment):
        raise ConfigError("inputs.mean, std and augment are for numbers, and samples are token ids: leave them out")
    model = put_inputs(model, config.inputs, shape)
    with in_one_line(f"model '{config.model}' was built, but failed on samples of shape {shape}"):
        model.check(pick_samples(population.x))
    return model


def pick_samples(x: Tensor) -> Tensor:
    """Two samples to try a network on; of token ids one has the largest."""
    if x.dtype != torch.int64 or len(x) < 2:
        return x[:2]
    return torch.stack([x[int(x.flatten(1).amax(1).argmax())], x[0]])


def check_targets(population: Population, task: LearningTask) -> None:
    """Raise ConfigError where the population has targets of another task."""
    some = population.y[is_known(population.y)][:2].cpu().numpy()
    try:
        wanted = task.targets(some)
    except DataError as error:
        raise ConfigError(f"the targets of these clients are not those of this task: {error}") from error
    if wanted.dtype != some.dtype:
        raise ConfigError(
            f"the targets of these clients are {some.dtype}, this task wants {wanted.dtype}: set task.name to what is "
            "learnt, or make the clients with OwnSettings(task=...)"
        )


def check_tokens(model: str, x: Tensor) -> None:
    """Raise ConfigError where samples in a row are token ids and the built-in network takes numbers, or vice versa."""
    if x.dim() == 2 and x.dtype == torch.int64 and TAKES.get(model) == "":
        raise ConfigError(
            f"model '{model}' is for numbers, and samples are {x.shape[1]} token ids: take char_cnn or char_lstm; of "
            "numbers in a table set data.options.tokens = false, in Python OwnSettings(tokens=False)"
        )
    if x.dim() == 2 and x.dtype != torch.int64 and model in TOKEN_MODELS:
        raise ConfigError(
            f"model '{model}' is for token ids, and samples are {x.shape[1]} numbers: take mlp_200; token ids are "
            "integers in an .npz file or lists of them in a table, in Python OwnSettings(tokens=True)"
        )


def check_vocabulary(model: str, population: Population) -> None:
    """Raise ConfigError where samples have tokens that a network of as many as there are classes does not know."""
    most = int(population.x.max()) if population.x.dtype == torch.int64 and population.x.numel() else -1
    if model in TOKEN_MODELS and most >= population.classes:
        raise ConfigError(
            f"model '{model}' knows as many tokens as there are classes, {population.classes}, and the samples have "
            f"token {most}: set task.name = 'next_token', or take a network of your own (model = 'module:function')"
        )


def put_inputs(model: Model, inputs: Inputs, shape: tuple[int, ...]) -> Model:
    """The model with this normalisation and augmentation of its inputs."""
    inputs.check(shape)
    model = replace(model, mean=inputs.mean, std=inputs.std) if inputs.mean else model
    return replace(model, build=partial(inputs.wrap, model.build)) if inputs.augment else model


def refuse_own(name: str, kind: str) -> None:
    """Raises for what Python gave as an object, and no config can make."""
    if name.startswith(OWN):
        raise ConfigError(
            f"this run's {kind} came from Python as an object: give it again there, as in kinfed.run(method, data, "
            "out=FOLDER, resume=True); to export a run, name its model"
        )


def own_network(name: str, build: object, shape: Shape, classes: int) -> nn.Module:
    """What a function of the user's own builds."""
    wanted = f"model '{name}' must be a function (shape, classes) -> torch.nn.Module; called with {shape} and {classes}"
    with in_one_line(f"{wanted} it failed"):
        network = cast("Callable[[Shape, int], object]", build)(shape, classes)
    if not isinstance(network, nn.Module):
        raise ModelError(f"{wanted} it gave a {type(network).__name__}")
    return network


@contextmanager
def in_one_line(what: str) -> Iterator[None]:
    """Inside it any error of a network of the user's own is a ModelError; a GPU that is full is not the network's."""
    try:
        yield
    except (KinfedError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # code of the user's own may raise anything
        raise ModelError(f"{what}: {type(error).__name__}: {error}") from error


def make_method(config: Config, model: Model) -> Method[object]:
    """The method with its settings."""
    settings = {
        name: fill_data_dir(value, config.data.dir) for name, value in config.settings_of(config.method).items()
    }
    if settings.get("data_dir") == "":
        settings["data_dir"] = config.data.dir
    build = cast("Callable[..., Method[object]]", find_method(config.method))
    try:
        return protect(build(model=model, local=config.training, **settings), config.privacy)
    except ValueError as error:
        raise ConfigError(f"methods.{config.method}: {error}") from error


def protect(method: Method[object], privacy: Privacy) -> Method[object]:
    """The method whose clients protect their signatures; ConfigError where it has none that can be protected."""
    if privacy.signature == UNPROTECTED:
        return method
    signature = getattr(method, "signature", None)
    if not isinstance(signature, Signature):
        raise ConfigError(
            "privacy.signature protects signatures of encoder_centroids and part_means: use flt, or leave it out"
        )
    protected = replace(cast("FLT", method), signature=signature.protect(privacy.signature))
    return cast("Method[object]", protected)


def fill_data_dir(settings: object, data_dir: str) -> object:
    """The settings with every empty `data_dir` in them filled, so that a method finds the other datasets it loads."""
    if not is_dataclass(settings) or isinstance(settings, type):
        return settings
    inner = {f.name: fill_data_dir(getattr(settings, f.name), data_dir) for f in fields(settings) if f.init}
    if inner.get("data_dir") == "":
        inner["data_dir"] = data_dir
    return replace(settings, **inner)


OWN = "own:"
DEALING = ("data", "partition", "shift", "roles", "change", "drift")  # settings of what makes a population
ConfigLike = Config | Mapping[str, object] | os.PathLike[str]
MethodLike = str | Method[object] | ConfigLike
DataLike = str | os.PathLike[str] | Mapping[str, object] | Population


def configure(method: MethodLike | None, data: DataLike | None, settings: Mapping[str, object]) -> Config:
    """The config of these arguments: of a file or a table, else of the demo; of objects, over the defaults."""
    given = join_engine({name: value for name, value in settings.items() if value is not None})
    folder = given.pop("data_dir", None)  # as --data-dir of the commands
    if "model" in given and not isinstance(given["model"], str):
        raise ConfigError(
            f"model: wanted a name or 'module:function', got a {type(given['model']).__name__}: give a network of your "
            "own to a method, as in kinfed.run(kinfed.FedAvg(kinfed.Model(build, classes=10), kinfed.LocalTraining()))"
        )
    objects = {name: value for name, value in given.items() if can_hold(name, value)}  # of others the table complains
    table = base_table(method, data, has_partition="partition" in given)
    table = merge_tables(table, {name: v for name, v in given.items() if name not in objects and "." not in name})
    for name in (name for name in given if "." in name):  # {"training.lr": 0.1}
        table = override(table, split_key(name, f"{name}="), given[name])
    if isinstance(method, str) and not is_config(method):
        table = merge_tables(table, {"method": method})
    if data is not None:
        table = merge_tables(table, {"data": data_table(data)})
    if folder is not None:
        there = str(Path(folder).expanduser().absolute()) if isinstance(folder, str | os.PathLike) else folder
        table = merge_tables(table, {"data": {"dir": there}})
    config: Config = replace(read(table), **objects)  # type: ignore[arg-type]
    if isinstance(data, Population):
        refuse_dealing(given)
    return put_method(config, method) if isinstance(method, Method) else config


def refuse_dealing(settings: Mapping[str, object]) -> None:
    """Raises where settings deal samples of a dataset by name: those of a population are dealt already."""
    for name in settings:
        if name.partition(".")[0] in DEALING:
            raise ConfigError(
                f"{name} is for data by name, and a population is as it is: leave it out, and give this to what makes "
                "the population, as in OwnSettings(test=0.2, public=0.1) or Population(roles=…)"
            )


def can_hold(name: str, value: object) -> bool:
    """Whether this setting of a config can be this object: of its class, or with all that its protocol asks for."""
    if not is_dataclass(value) or isinstance(value, type):
        return False
    hint = get_type_hints(Config).get(name)
    kinds = [kind for kind in get_args(hint) or (hint,) if isinstance(kind, type)]
    return any(
        all(hasattr(value, member) for member in members_of(kind))
        if getattr(kind, "_is_protocol", False)
        else isinstance(value, kind)
        for kind in kinds
    )


def data_table(data: DataLike) -> Table:
    """The section `data` for this argument: of a name, a path, the section itself, or samples."""
    if isinstance(data, Mapping):
        return dict(data)
    if isinstance(data, str | os.PathLike):
        return {"name": str(data)}
    if isinstance(data, Population):
        return {"name": name_data(data)}
    raise ConfigError(
        f"data: wanted the name of a dataset, a path, the settings {{'name': …, 'options': …}} or a Population, "
        f"got a {type(data).__name__}: kinfed.data.from_arrays(x, y, client) and its like make one"
    )


def join_engine(settings: dict[str, object]) -> dict[str, object]:
    """The settings with the engine's name and device in one section."""
    engine = settings.get("engine", {})
    if isinstance(engine, str):
        engine = {"name": engine}
    device = settings.pop("device", None)
    if device is not None:
        is_table = isinstance(engine, Mapping)
        engine = {**engine, "device": device} if is_table else replace(engine, device=device)  # type: ignore[dict-item, type-var]
    return settings | {"engine": engine} if engine else settings


def base_table(method: object, data: DataLike | None, has_partition: bool) -> Table:
    """The table that arguments go over; the demo's partition is for data like the demo's."""
    if isinstance(method, Config):
        return method.resolve()
    if isinstance(method, Mapping):
        return dict(method)
    if is_config(method):
        return read_toml(Path(str(method)))
    if isinstance(data, Population) or isinstance(method, Method):
        return {}
    name = "" if data is None or has_partition else str(data_table(data).get("name", ""))
    return leave_partition(read_toml(DEMO), name)


def is_config(thing: object) -> bool:
    """Whether something stands for a config: one, a table, or a file by its path."""
    return isinstance(thing, Config | Mapping | os.PathLike) or (isinstance(thing, str) and thing.endswith(".toml"))


def name_method(method: str | Method[object]) -> str:
    """The name of a method in a config."""
    name = (
        method
        if isinstance(method, str)
        else next(
            (n for n, k in METHODS.items() if type(method) is k),
            f"{type(method).__module__}:{type(method).__qualname__}",
        )
    )
    if "<" in name:
        raise ConfigError(f"method {name}: define the class at the top level of a module, so that its name finds it")
    return name


def put_method(config: Config, method: Method[object] | None) -> Config:
    """The config with the name and all settings of a method object, if there is one."""
    if method is None:
        return config
    name, task = name_method(method), method.model.task
    settings = {f.name: getattr(method, f.name) for f in fields(method) if f.init and f.name not in GIVEN}  # type: ignore[arg-type]
    model, methods = name_model(method.model, config.seed), {**config.methods, name: settings}
    return replace(config, method=name, model=model, task=task, training=method.local, methods=methods)


def name_model(model: Model, seed: int) -> str:
    """The name of a model in a config; of one that is not in the registry, a digest of its first weights."""
    build = getattr(model, "build", None)
    if isinstance(build, partial) and model.seed == seed and not model.mean and not model.std:
        for name, known in MODELS.items():
            if build.func is known:
                return name
    weights = model.init()
    return OWN + digest_tensors([torch.tensor(list(name.encode())) for name in weights] + list(weights.values()))


def name_data(population: Population) -> str:
    """The name of own data in a config: a digest of all samples, and of which client has them."""
    p = population
    changes = [t for change in p.changes for t in (change.clients, *change.train, *change.test)]
    clusters = [] if p.true_clusters is None else [p.true_clusters]
    return OWN + digest_tensors([p.x, p.y, *p.train, *p.test, p.public, *changes, *clusters], repr(p.roles))


def digest_tensors(tensors: list[Tensor], text: str = "") -> str:
    """Sixteen hexadecimal digits that stand for these tensors and this text."""
    digest = blake2b(text.encode(), digest_size=8)
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()
