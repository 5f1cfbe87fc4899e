"""From Python's arguments to a config: a method and data by name or as objects, and settings by keyword.

What is given as an object has no name in a config: own data, and a model that the registry does not know, are written
as `own:DIGEST`. A run that has them resumes where Python gives the same objects again.
"""

import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from kinfed.config.schema import Table
from kinfed.config.settings import DEMO, GIVEN, Config, read
from kinfed.config.toml import merge_tables, read_toml
from kinfed.data.population import Population
from kinfed.errors import ConfigError
from kinfed.method import Method
from kinfed.methods import METHODS
from kinfed.models import MODELS, Model

OWN = "own:"
ConfigLike = Config | Mapping[str, object] | os.PathLike[str]
MethodLike = str | Method[object] | ConfigLike
DataLike = str | Population


def configure(method: MethodLike | None, data: DataLike | None, settings: Mapping[str, object]) -> Config:
    """The config of these arguments: of a file or a table, else of the demo; of objects, over the defaults."""
    given = join_engine({name: value for name, value in settings.items() if value is not None})
    objects = {name: value for name, value in given.items() if is_dataclass(value)}
    table = merge_tables(base_table(method, data), {name: v for name, v in given.items() if name not in objects})
    if isinstance(method, str) and not is_config(method):
        table = merge_tables(table, {"method": method})
    if data is not None:
        table = merge_tables(table, {"data": {"name": data if isinstance(data, str) else name_data(data)}})
    config: Config = replace(read(table), **objects)  # type: ignore[arg-type]
    return put_method(config, method) if isinstance(method, Method) else config


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


def base_table(method: object, data: object) -> Table:
    """The table that arguments go over."""
    if isinstance(method, Config):
        return method.resolve()
    if isinstance(method, Mapping):
        return dict(method)
    if is_config(method):
        return read_toml(Path(str(method)))
    return {} if isinstance(data, Population) or isinstance(method, Method) else read_toml(DEMO)


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
    name = name_method(method)
    settings = {f.name: getattr(method, f.name) for f in fields(method) if f.init and f.name not in GIVEN}  # type: ignore[arg-type]
    model = name_model(method.model, config.seed)
    return replace(config, method=name, model=model, training=method.local, methods={**config.methods, name: settings})


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
