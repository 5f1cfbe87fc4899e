"""Steps of all lanes on a GPU: as they come, or recorded a few at a time and replayed.

Clients with uneven rows hardly ever train for the same number of steps twice, so that a recording of a whole training
would seldom be of use; one of a few steps, replayed as often as needed, always is.
"""

from collections.abc import Callable, Hashable
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from kinfed.models.desks import Desk, desks_of, step_from
from kinfed.models.stages import Fitted, Moving, Pace, Stage

MOST = 4  # recordings kept; each holds weights and activations of all its lanes


class Staged(Protocol):
    """A network that is a sequence of stages."""

    @property
    def stages(self) -> tuple[Stage, ...]: ...

    def inputs(self, x: Tensor) -> Tensor: ...


class Batches(NamedTuple):
    """What the lanes need for some steps."""

    pick: Tensor  # [steps, lanes, b] rows of the pool
    y: Tensor  # [steps, lanes, b]
    share: Tensor  # [steps, lanes, b] how much a row counts
    stride: Tensor  # [steps, lanes]; zero: the lane stays where it is

    def filled(self, steps: int) -> "Batches":
        """With steps at the end that move nothing, so that there is a multiple of `steps`."""
        return Batches(*(pad(t, (0, 0) * (t.dim() - 1) + (0, -len(t) % steps)) for t in self))

    def cut(self, steps: int) -> list["Batches"]:
        """So many steps at a time; the last part may be shorter."""
        return [Batches(*parts) for parts in zip(*(t.split(steps) for t in self), strict=True)]


@dataclass
class Walk:
    """A network's weights in all lanes, and all that is needed to move them."""

    network: Staged
    x: Tensor  # the pool
    weights: list[Moving]
    desks: list[Desk]
    ahead: list[Moving]  # where a trial step leads, from which the real one is taken; empty: real steps only

    @classmethod
    def of(
        cls, network: Staged, x: Tensor, fits: list[Fitted], starts: list[Tensor], shifts: list[Tensor], rows: int,
        pace: Pace,
    ) -> "Walk":  # fmt: skip
        """Ready to go from these starts, which become its own, with batches of so many rows."""
        weights = [Moving.at(w, pace.momentum, pace.mu, by) for w, by in zip_longest(starts, shifts)]
        ahead = [Moving.at(w.clone(), 0.0, 0.0) for w in starts if pace.inner]
        return cls(network, x, weights, desks_of(fits, starts[0].new_empty(len(starts[0]), rows)), ahead)

    def go(self, batches: Batches) -> None:
        """Takes these steps."""
        images = self._images(batches.pick)
        for step, (y, share, stride) in enumerate(zip(*batches[1:], strict=True)):
            if self.ahead and step % 2 == 0:
                for trial, weight in zip(self.ahead, self.weights, strict=True):
                    trial.now.copy_(weight.now)
                step_from(self.ahead, self.ahead, self.desks, images[step], y, share, stride)
            else:
                step_from(self.ahead or self.weights, self.weights, self.desks, images[step], y, share, stride)
                self.weights = [weight.after_step() for weight in self.weights]

    def _images(self, pick: Tensor) -> Tensor:
        """The rows of some steps as the first layer wants them: [steps, lanes, b, height, width, channels], framed."""
        fit = self.desks[0].fit
        rows = self.network.inputs(self.x.index_select(0, pick.flatten()))
        rows = rows.view(-1, fit.sees[2] - fit.blank, *fit.sees[:2])
        frame = (fit.stage.pad,) * 4
        images: Tensor = pad(rows.permute(0, 2, 3, 1), (0, fit.blank, *frame)).contiguous()
        return images.view(*pick.shape, *images.shape[1:])


@dataclass
class Recorded:
    """A walk that takes as many steps every time, and is recorded the second time."""

    walk: Walk
    pool: "torch.cuda._POOL_HANDLE"
    places: Batches | None = None  # where the recording looks for what it needs
    graph: torch.cuda.CUDAGraph | None = None

    @property
    def weights(self) -> list[Moving]:
        """The weights, where the last step left them."""
        return self.walk.weights

    def go(self, batches: Batches) -> None:
        """Takes these steps."""
        if self.places is None:  # the first time compiles kernels, which cannot be recorded
            self.places = Batches(*(t.clone() for t in batches))
            self.walk.go(batches)
            return
        for place, t in zip(self.places, batches, strict=True):
            place.copy_(t)
        self.graph = self.graph or self._recorded(self.places)
        self.graph.replay()

    def _recorded(self, places: Batches) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            self.walk.go(places)
        return graph


@dataclass
class Walks:
    """Recorded walks, by all that they depend on. Inside a `with` of it, trainings are made of them."""

    known: dict[Hashable, Recorded] = field(default_factory=dict)
    pool: "torch.cuda._POOL_HANDLE | None" = None  # memory that all recordings share: one runs at a time
    before: list[Token["Walks | None"]] = field(default_factory=list)

    def __enter__(self) -> None:
        self.before.append(PRESENT.set(self))

    def __exit__(self, *error: object) -> None:
        PRESENT.reset(self.before.pop())

    def at(self, key: Hashable, starts: list[Tensor], shifts: list[Tensor], begin: Callable[[], Walk]) -> Recorded:
        """The walk of this key, from these starts on; a new one if there is none."""
        found = self.known.pop(key, None)
        if found:
            for own, weight, by in zip_longest(found.weights, starts, shifts):
                own.restart(weight, by)
        else:
            self.pool = self.pool or torch.cuda.graph_pool_handle()
            found = Recorded(begin(), self.pool)
        self.known[key] = found  # as the latest
        for old in list(self.known)[:-MOST]:
            del self.known[old]
        return found

    def forget(self) -> None:
        """Gives all memory back."""
        self.known.clear()
        self.pool = None


PRESENT: ContextVar[Walks | None] = ContextVar("walks", default=None)
