"""Tiny federations made on the spot."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from kinfed.data import Population, Role, data_root
from kinfed.engines import Sequential, Vectorised
from kinfed.experiment import Evaluation, Experiment
from kinfed.federation import Federation
from kinfed.method import Method
from kinfed.models import Model, make_model
from kinfed.params import Params, Stack

SIZES = (7, 23, 12, 31, 9, 18)
ENGINES = (Sequential, Vectorised)


def tiny_population(
    sizes: tuple[int, ...] = SIZES,
    *,
    classes: int = 3,
    shape: tuple[int, ...] = (1, 8, 8),
    clusters: int = 2,
    **more: object,
) -> Population:
    """Clients of different sizes in planted groups; a class is a bright stripe, upright or level by group."""
    noise = torch.Generator().manual_seed(0)
    cluster_of = torch.arange(len(sizes)) % clusters
    images, labels, train, test, at = [], [], [], [], 0
    for client, size in enumerate(sizes):
        rows = size + 5 + client
        y = torch.arange(rows) % classes
        x = torch.randint(0, 60, (rows, *shape), generator=noise)
        if cluster_of[client] == 0:
            x += 180 * (torch.arange(shape[1]) // 2 == y[:, None])[:, None, :, None]
        else:
            x += 180 * (torch.arange(shape[2]) // 2 == y[:, None])[:, None, None, :]
        images.append(x.to(torch.uint8))
        labels.append(y)
        train.append(torch.arange(at, at + size))
        test.append(torch.arange(at + size, at + rows))
        at += rows
    return Population(
        torch.cat(images),
        torch.cat(labels),
        tuple(train),
        tuple(test),
        classes,
        true_clusters=cluster_of,
        **more,  # type: ignore[arg-type]
    )


def repeat_samples(population: Population, times: int) -> Population:
    """The clients with so many copies of each training sample, behind all others."""
    pool = torch.cat([own.repeat(times) for own in population.train])
    x, y = (torch.cat([part, part[pool]]) for part in (population.x, population.y))
    sizes = [times * len(own) for own in population.train]
    return replace(population, x=x, y=y, train=(torch.arange(len(pool)) + len(population.y)).split(sizes))


def tiny_model(classes: int = 3, shape: tuple[int, int, int] = (1, 8, 8), name: str = "mlp_200") -> Model:
    return make_model(name, shape, classes)


def small_net(classes: int = 3, inputs: int = 64) -> Model:
    """Fast: 64-8-3."""
    return Model(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, classes)), classes=classes
    )


def norm_net(classes: int = 3) -> Model:
    """The same with a normalisation layer."""
    return Model(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, classes)),
        classes=classes,
    )


def fit(
    method: Method,
    engine: type[Federation] = Vectorised,
    population: Population | None = None,
    rounds: int = 3,
    every: int = 0,
    **settings: object,
):  # type: ignore[no-untyped-def, type-arg]
    """The state and the federation after some rounds; clients are scored after the last alone, or every so many."""
    fed = engine(method, population or tiny_population(), **settings)  # type: ignore[arg-type]
    scored = Evaluation(every=every or max(1, rounds), metrics="main", signatures="none")
    experiment = Experiment.over(fed, rounds=rounds, evaluation=scored)
    experiment.run()
    return experiment.state, fed


def assert_close(a: Params | Stack, b: Params | Stack, atol: float = 1e-5) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=atol, rtol=0)


def assert_same_bits(a: Params | Stack, b: Params | Stack) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def rows_of_memory(fed: Federation, client: int) -> Params:
    """What one client of a federation in this process remembers."""
    return {name: t[client] for name, t in fed.memory.items()}


def real_data(*names: str) -> Path:
    """The folder with these datasets, or a skip that says what is missing."""
    for folder in (data_root(), Path("~/.cache/kinfed").expanduser(), Path(__file__).parents[2] / "shared" / "data"):
        if all((folder / f"{name}.npz").exists() for name in names):
            return folder
    pytest.skip(f"needs {', '.join(f'{n}.npz' for n in names)}: set KINFED_DATA to the folder that has them")


def same_clusters(a: Tensor, b: Tensor) -> bool:
    """Whether two labelings are the same up to names."""
    return bool(((a[:, None] == a[None]) == (b[:, None] == b[None])).all())


__all__ = [
    "ENGINES",
    "SIZES",
    "Role",
    "assert_close",
    "assert_same_bits",
    "fit",
    "norm_net",
    "real_data",
    "rows_of_memory",
    "same_clusters",
    "small_net",
    "tiny_model",
    "tiny_population",
]
