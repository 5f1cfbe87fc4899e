"""Engines take tasks to clients; every one is a `Federation`."""

from dataclasses import dataclass

import torch

from kinfed.checks import above_zero, at_least
from kinfed.data.population import Population
from kinfed.engines.flower import NODES, Flower
from kinfed.engines.sequential import Sequential
from kinfed.engines.several_devices import SeveralDevices
from kinfed.engines.vectorised import Precision, Vectorised
from kinfed.errors import ConfigError
from kinfed.federation import Federation
from kinfed.method import Method
from kinfed.registry import look_up, suggest

ENGINES = {"vectorised": Vectorised, "sequential": Sequential, "flower": Flower}

__all__ = [
    "ENGINES", "NODES", "EngineSettings", "Flower", "Precision", "Sequential", "SeveralDevices", "Vectorised",
    "choose_device", "make_federation",
]  # fmt: skip


KINDS = ("cpu", "cuda")  # of devices


@dataclass(frozen=True)
class EngineSettings:
    """How tasks reach the clients."""

    name: str = "vectorised"  # vectorised, sequential (slow, the reference) or flower
    device: str = "cpu"  # auto: cuda where there is one; several: "cuda:0,cuda:1", or all: "cuda:all"
    block: int = 0  # clients in a block at most; 0: chosen by memory
    workers: int = 0  # blocks at once on the CPU, 0: autotuned; flower: clients at once, 0: one
    precision: Precision = "float32"  # of products on a GPU; tf32, bf16: faster, less precise
    timeout: float = 600.0  # flower: seconds that clients have for a task; a client without a reply is left out
    attempts: int = 2  # flower: how often a client without a reply is asked, before the first round

    def __post_init__(self) -> None:
        at_least(0, block=self.block, workers=self.workers)
        at_least(1, attempts=self.attempts)
        above_zero(timeout=self.timeout)


def make_federation(
    method: Method[object], population: Population, engine: str | EngineSettings = "vectorised", *,
    fraction: float = 1.0, seed: int = 0, device: str | None = None,
) -> Federation:  # fmt: skip
    """The engine, by name or settings, with the clients in it; a `device` goes over the engine's."""
    settings = EngineSettings(engine) if isinstance(engine, str) else engine
    kind = look_up(settings.name, ENGINES, "engine")
    where = choose_device(device or settings.device)
    if where.startswith("cuda:"):
        torch.cuda.set_device(where.split(",")[0])  # the server's own kernels are launched there
    if "," in where:
        if kind is not Vectorised:
            raise ConfigError(f"engine '{settings.name}' computes on one device, got '{where}'")
        return SeveralDevices(
            method, population, fraction=fraction, seed=seed, devices=where.split(","),
            block=settings.block, workers=settings.workers, precision=settings.precision,
        )  # fmt: skip
    if kind is Vectorised:
        return Vectorised(
            method, population, fraction=fraction, seed=seed, device=where,
            block=settings.block, workers=settings.workers, precision=settings.precision,
        )  # fmt: skip
    if kind is Flower:
        return Flower(
            method, population, fraction=fraction, seed=seed, device=where,
            timeout=settings.timeout, attempts=settings.attempts, workers=settings.workers or 1,
        )  # fmt: skip
    return Sequential(method, population, fraction=fraction, seed=seed, device=where)


def choose_device(wanted: str) -> str:
    """The device to compute on, or several with commas between; `auto` is cuda where there is one."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda:all":
        return ",".join(f"cuda:{i}" for i in range(torch.cuda.device_count())) or choose_device("cuda")
    if "," in wanted:
        return ",".join(choose_device(one.strip()) for one in wanted.split(","))
    try:
        kind = torch.device(wanted).type
    except RuntimeError as error:
        raise ConfigError(f"engine.device: {explain_device(wanted)}") from error
    if kind not in KINDS:
        raise ConfigError(f"engine.device: {explain_device(kind)}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"engine.device is '{wanted}', but torch sees no CUDA device; use cpu or auto")
    if kind == "cuda" and (torch.device(wanted).index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"engine.device is '{wanted}', but torch sees {torch.cuda.device_count()} CUDA device(s), numbered from 0"
        )
    return wanted


def explain_device(wanted: str) -> str:
    """Why nothing is computed on a device of this name."""
    if wanted == "mps":
        return "'mps' is not supported: sums are in double precision, which Apple's GPUs lack; use cpu"
    return f"wanted cpu, cuda or auto, got '{wanted}'{suggest(wanted, (*KINDS, 'auto'))}"
