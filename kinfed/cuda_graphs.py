"""CUDA graphs: a function on a GPU, captured once it is warm and replayed from then on.

A graph is one launch instead of thousands: for models as small as clients have, launching their kernels takes longer
than running them. A replay runs the very kernels that were captured, on inputs copied to where the graph reads them.
"""

import gc
import logging
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.util import Finalize

import torch

from kinfed.params import Params, each_leaf

LOG = logging.getLogger("kinfed.cuda_graphs")
CAPTURING = threading.Lock()  # while a thread captures, no other may wait for the whole GPU
EMPTY = "CUDA Graph is empty"  # what torch says of a graph without a kernel


@cache
def finish_before_exit(device: torch.device) -> None:
    """Makes this process, however it is interrupted, let this GPU finish before it ends.

    Else, under NVIDIA's Multi-Process Service, all other processes on the GPU would fail with illegal memory accesses.
    """
    Finalize(None, _wait_for_gpu, (device,), exitpriority=100)


def _wait_for_gpu(device: torch.device) -> None:
    with suppress(RuntimeError):  # what failed was said before
        torch.cuda.synchronize(device)


@cache
def reserve_for_captures(device: torch.device) -> torch.cuda.CUDAGraph:
    """An empty graph that lives as long as this process: what torch allocates for the first of all graphs is there.

    Where memory is full, torch 2.13 and earlier cannot allocate it in a capture: the process aborts.
    """
    with torch.cuda.device(device):
        torch.cuda.init()
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(torch.cuda.default_generators[torch.cuda.current_device()])
    return graph


Function = Callable[[Params], Params]  # what it depends on beside its inputs stays where it is in memory


@dataclass(frozen=True)
class Graph:
    """A captured function, where it reads its inputs, and where it leaves its outputs."""

    graph: torch.cuda.CUDAGraph
    inputs: Params
    outputs: Params

    def replay(self, inputs: Params) -> Params:
        """What the function makes of these inputs."""
        for name, place in self.inputs.items():
            place.copy_(inputs[name])
        self.graph.replay()
        return each_leaf(torch.clone, self.outputs) if self.outputs else {}


class CudaGraphs:
    """Runs functions by key: eagerly at first, then as CUDA graphs; keeps the latest `most` graphs."""

    def __init__(self, most: int, warm_up: int = 1) -> None:
        self.most, self.warm_up = most, warm_up
        self.calls: dict[Hashable, int] = {}  # eager calls, by key and shapes
        self.graphs: dict[Hashable, Graph] = {}  # the latest used comes last
        self.failed: set[Hashable] = set()  # what cannot be captured and stays eager
        self.empty: set[Hashable] = set()  # what launches no kernel: it stays eager, too
        self.pool: torch.cuda._POOL_HANDLE | None = None  # memory that all graphs share: one runs at a time

    def run(self, key: Hashable, function: Function, inputs: Params) -> Params:
        """What the function makes of these inputs; `key` stands for all that it depends on beside them."""
        shaped = key, tuple((name, t.shape, t.dtype) for name, t in inputs.items())
        if shaped in self.failed or shaped in self.empty or self._warms_up(shaped):
            return function(inputs)
        graph = self.graphs.pop(shaped, None) or self._capture(shaped, function, inputs)
        if graph is None:
            return function(inputs)
        self.graphs[shaped] = graph
        self._drop_oldest()
        return graph.replay(inputs)

    def clear(self) -> None:
        """Gives all memory back."""
        self.calls.clear()
        self.graphs.clear()
        self.pool = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def discard(self, key: Hashable) -> None:
        """Drops the graphs of this key: what they depend on is about to go."""
        self.discard_all(lambda known: known == key)

    def discard_all(self, goes: Callable[..., bool]) -> None:
        """Drops the graphs of all keys that go."""
        for shaped in [shaped for shaped in self.calls if isinstance(shaped, tuple) and goes(shaped[0])]:
            self.calls.pop(shaped)
            self.graphs.pop(shaped, None)

    def _warms_up(self, shaped: Hashable) -> bool:
        """Whether this call is an eager one, which prepares what a capture must not meet: compilation, workspaces."""
        self.calls[shaped] = self.calls.get(shaped, 0) + 1
        return self.calls[shaped] <= self.warm_up

    def _capture(self, shaped: Hashable, function: Function, inputs: Params) -> Graph | None:
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        places = each_leaf(torch.clone, inputs)
        with CAPTURING, pause_collection(), collect_warnings() as said:
            torch.cuda.synchronize()
            try:
                graph = capture(function, places, self.pool)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as refusal:  # it asks the GPU for a number, say
                torch.cuda.synchronize()
                LOG.warning("CUDA graph capture failed; running eagerly: %s", str(refusal).strip().splitlines()[0])
                self.failed.add(shaped)
                return None
        if not any(EMPTY in each for each in said):
            return graph
        self.empty.add(shaped)  # what it answers was not computed in the graph, and would never change
        return None

    def _drop_oldest(self) -> None:
        for shaped in list(self.graphs)[: -self.most]:
            del self.graphs[shaped], self.calls[shaped]


@contextmanager
def pause_collection() -> Iterator[None]:
    """Inside it no garbage is collected: a CUDA graph in it that is destroyed would spoil the one being captured."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """What is warned of inside it; afterwards it is warned of as ever, but for empty graphs."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    texts += (str(each.message) for each in caught)
    for each in caught:
        if EMPTY not in str(each.message):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def capture(function: Function, places: Params, pool: "torch.cuda._POOL_HANDLE") -> Graph:
    """The function as a graph that reads its inputs at these places; capturing runs nothing."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        outputs = function(places)
    return Graph(graph, places, outputs)
