"""From a config to the real parts: dataset, clients, model, method, engine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import nn

from kinfed.config.arguments import OWN
from kinfed.config.settings import Config, find_method
from kinfed.data.build import build_population
from kinfed.data.datasets import load
from kinfed.data.population import Population
from kinfed.engines import ENGINES, choose_device
from kinfed.errors import ConfigError, KinfedError, ModelError
from kinfed.experiment import Experiment, Loop
from kinfed.method import Method
from kinfed.models import Model, Shape, make_model
from kinfed.registry import import_function, look_up


def assemble(
    config: Config, population: Population | None = None, method: Method[object] | None = None
) -> Experiment[object]:
    """The experiment of this config; it depends on the config alone, so methods of one seed meet the same clients.

    Data and a method that Python gave as objects are given again.
    """
    find_method(config.method)
    look_up(config.engine.name, ENGINES, "engine")
    choose_device(config.engine.device)
    population = population or make_population(config)
    method = method or make_method(config, model_for(config, population))
    return Experiment(
        method, population, config.engine, fraction=config.fraction, seed=config.seed, **loop_settings(config)
    )


def loop_settings(config: Config) -> Loop:
    """The settings of the experiment's rounds."""
    return {
        "rounds": config.rounds,
        "evaluation": config.evaluation,
        "checkpoint_every": config.checkpoint_every,
        "about": {"config": config.resolve()},
    }


def make_population(config: Config) -> Population:
    """The clients and their samples."""
    data = config.data
    refuse_own(data.name, "data")
    return build_population(
        load(data.name, data.dir or None, data.options), config.partition, config.seed,
        public_fraction=data.public, public_test=data.public_test, train_samples=data.train_samples,
        test_samples=data.test_samples, global_test=data.global_test, validation=data.validation,
        shift=config.shift, roles=config.roles, change=config.change,
    )  # fmt: skip


def model_for(config: Config, population: Population) -> Model:
    """The classifier, tried on two samples."""
    refuse_own(config.model, "model")
    shape = cast("Shape", tuple(population.x.shape[1:]))
    if ":" in config.model:
        own = import_function(config.model, "model")
        build = partial(own_network, config.model, own, shape, population.classes)
        model = Model(build, seed=config.seed, classes=population.classes)
    else:
        model = make_model(config.model, shape, population.classes, seed=config.seed)
    with in_one_line(f"model '{config.model}' was built, but failed on samples of shape {shape}"):
        model.check(population.x[:2])
    return model


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
        return build(model=model, local=config.training, **settings)
    except ValueError as error:
        raise ConfigError(f"methods.{config.method}: {error}") from error


def fill_data_dir(settings: object, data_dir: str) -> object:
    """The settings with every empty `data_dir` in them filled, so that a method finds the other datasets it loads."""
    if not is_dataclass(settings) or isinstance(settings, type):
        return settings
    inner = {f.name: fill_data_dir(getattr(settings, f.name), data_dir) for f in fields(settings) if f.init}
    if inner.get("data_dir") == "":
        inner["data_dir"] = data_dir
    return replace(settings, **inner)
