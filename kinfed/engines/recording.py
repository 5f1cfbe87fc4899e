"""Programs on a GPU, recorded when they come a second time and replayed from then on.

A recording (a CUDA graph) is one launch instead of thousands: for models as small as clients have, launching their
kernels takes longer than running them. A replay runs the very kernels that were recorded, on inputs copied to the place
where the recording looks for them.
"""

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch

from kinfed.params import Params, each_leaf

LOG = logging.getLogger("kinfed.engines")
MOST = 48  # recordings kept; each holds the memory of its inputs and outputs
Program = Callable[[Params], Params]  # pure: the same inputs give the same outputs


@dataclass(frozen=True)
class Recording:
    """A recorded program, where it looks for its inputs, and where it leaves its outputs."""

    graph: torch.cuda.CUDAGraph
    inputs: Params
    outputs: Params

    def replay(self, inputs: Params) -> Params:
        """What the program makes of these inputs."""
        for name, place in self.inputs.items():
            place.copy_(inputs[name])
        self.graph.replay()
        return each_leaf(torch.clone, self.outputs)


class Recorder:
    """Runs programs by name; those that come again with inputs of the same shapes are recorded."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.known: dict[Hashable, Recording | None] = {}  # None: met once
        self.unrecordable: set[Hashable] = set()
        self.pool: torch.cuda._POOL_HANDLE | None = None  # memory that all recordings share: one runs at a time

    def run(self, name: Hashable, program: Program, inputs: Params) -> Params:
        """What the program makes of these inputs; `name` stands for all that it depends on beside them."""
        key = name, tuple((k, t.shape, t.dtype) for k, t in inputs.items())
        if key in self.unrecordable:
            return program(inputs)
        if key not in self.known:
            self.known[key] = None
            return program(inputs)  # this also prepares what a recording must not meet: compilation, workspaces
        recording = self.known.pop(key) or self._recorded(key, program, inputs)
        if recording is None:
            return program(inputs)
        self.known[key] = recording  # as the latest
        self._forget_old()
        return recording.replay(inputs)

    def forget(self) -> None:
        """Gives all memory back."""
        self.known.clear()
        self.pool = None
        torch.cuda.empty_cache()

    def _recorded(self, key: Hashable, program: Program, inputs: Params) -> Recording | None:
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        places, graph = each_leaf(torch.clone, inputs), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                outputs = program(places)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as refusal:  # it asks the GPU for a number, say
            torch.cuda.synchronize()
            LOG.warning("not recorded, so it is slower: %s", str(refusal).strip().splitlines()[0])
            self.unrecordable.add(key)
            return None
        return Recording(graph, places, outputs)

    def _forget_old(self) -> None:
        recorded = [key for key, recording in self.known.items() if recording]
        for key in recorded[: max(0, len(recorded) - self.most)]:
            del self.known[key]
