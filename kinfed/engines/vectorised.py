"""The embedded default: clients train side by side, a block of them in one `vmap`.

Data stay on the device as bytes; a block holds row numbers only. Blocks are cut from clients of similar length and
bounded memory. On a CPU several workers may take blocks at once. On a GPU a block whose shape comes again is recorded
and replayed; clients with uneven rows train in one block, and a few of its steps are recorded. Nothing a client
computes depends on its block: see `Samples` for how padding is kept out, and `at_once` for the cores. Clients that are
alike in all that a task looks at answer alike, and one of them is asked.
"""

import logging
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch.func import vmap

from kinfed.client import Client, Samples
from kinfed.client_tasks import find_task, is_sequential
from kinfed.data.population import Change, Population
from kinfed.engines.autotune import LONG, ROWS, Way, cores, fastest, some_of, ways
from kinfed.engines.blocks import Block, Cut
from kinfed.engines.progress_log import ProgressLog
from kinfed.engines.recording import Recorder
from kinfed.engines.sample_table import Bounds, SampleTable
from kinfed.engines.sequential import loop
from kinfed.engines.workers import at_once
from kinfed.errors import ConfigError, SequentialOnly
from kinfed.federation import Offer, Resident
from kinfed.models import Model, Walks
from kinfed.params import Params, Payload, Stack, from_flat, join_in_order, select, to_flat

LOG = logging.getLogger("kinfed.engines")
GIBIBYTE = 2**30
FEW = 32  # clients side by side; a task that fails with so few is not failing for their number
MANY = {"cuda": 4096, "cpu": 32}  # more lanes gain nothing and make activations large
PARTS = {f.name for f in fields(Client)}  # what a task can look at


@dataclass(frozen=True)
class Watched(Client):
    """A client that notes which of its parts a task looks at."""

    seen: set[str]

    def __getattribute__(self, name: str) -> object:
        if name in PARTS:
            object.__getattribute__(self, "seen").add(name)
        return object.__getattribute__(self, name)

    def feed(self, epochs: int, batch_size: int, parts: int = 1) -> tuple[Tensor, Tensor]:
        self.seen.add("feed")
        return super().feed(epochs, batch_size, parts)


@contextmanager
def coarse(wanted: bool) -> Iterator[None]:
    """Inside it a GPU multiplies numbers with 10 bits instead of 23, if that is wanted."""
    matrices, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matrices.allow_tf32, convolutions.allow_tf32
    matrices.allow_tf32 = convolutions.allow_tf32 = wanted
    try:
        yield
    finally:
        matrices.allow_tf32, convolutions.allow_tf32 = before


class Vectorised(Resident):
    """Cohorts cut into blocks, each block one vmap; a task that vmap refuses runs one by one, with a warning."""

    def __init__(
        self,
        method: object,
        population: Population,
        *,
        fraction: float = 1.0,
        seed: int = 0,
        device: str = "cpu",
        block: int = 0,
        workers: int = 1,
        alone: bool = False,
        tf32: bool = False,
    ) -> None:
        if block < 0 or workers < 0:
            raise ConfigError(
                "block must be at least 1, or 0 to choose by memory, and workers at least 1, or 0 to choose by trial, "
                f"got {block} and {workers}"
            )
        super().__init__(method, population, fraction=fraction, seed=seed, device=device)
        self.block, self.tf32 = block, tf32
        self.on_gpu = self.device.type == "cuda"
        self.tries = not workers and not self.on_gpu  # a GPU takes one block after the other
        self.way = Way(1 if self.on_gpu else workers or cores(), alone)  # where no trial chose another
        self.long: set[str] = set()  # tasks that take long enough to be worth a trial
        self.chosen: dict[str, Way] = {}  # task -> the way that a trial chose
        self.free = GIBIBYTE
        if self.on_gpu:
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
            self.free = torch.cuda.mem_get_info(self.device)[0] // 2
        self.recorder, self.walks = Recorder(), Walks()
        self.tables: dict[str, SampleTable] = {}
        self.loops: set[str] = set()  # tasks that run one by one
        self.looks: dict[tuple[str, ...], set[str]] = {}  # task and what it is offered -> what it looks at
        self.lanes: dict[str, int] = {}  # task -> most clients side by side that fit into memory
        self.ways: dict[str, str] = {}  # task -> how its latest cohort was cut, in words

    def _run(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer) -> tuple[Payload, Payload]:
        with coarse(self.tf32):  # what the server does with the answers never is
            return self._ran(name, cohort, keys, offer)

    def _ran(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer) -> tuple[Payload, Payload]:
        task = find_task(self.method, name)
        if name in self.loops or is_sequential(task) or not len(cohort):
            return loop(self, name, cohort, keys, offer)
        if name in self.long and name not in self.chosen:  # what comes once needs no trial
            self.chosen[name] = self._tried(name, cohort, keys, offer)
        if (way := self._way(name)).alone:
            return loop(self, name, cohort, keys, offer, way.workers)
        began = time.perf_counter()
        try:
            answer = self._once_for_alike(name, cohort, keys, offer)
            if self.tries and time.perf_counter() - began > LONG:
                self.long.add(name)
            return answer
        except (SequentialOnly, RuntimeError) as refusal:
            answer = loop(self, name, cohort, keys, offer)  # an error of the task's own comes again here
            reason = str(refusal).strip().splitlines()[0]
            warnings.warn(f"'{name}' runs one client at a time, which is slower: {reason}", stacklevel=4)
            if not isinstance(refusal, torch.OutOfMemoryError):  # others may have left room next time
                self.loops.add(name)
            return answer

    def _way(self, name: str) -> Way:
        return self.chosen.get(name, self.way)

    def _tried(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer) -> Way:
        """The way that was fastest for a few clients of this cohort, a few of their rows each."""
        few = torch.arange(0, len(cohort), -(-len(cohort) // (4 * self.way.workers)))
        people, memory = some_of(self, cohort[few].tolist()), self.remembered(cohort[few])

        def run(way: Way) -> object:
            twin = Vectorised(self.method, people, block=self.block, workers=way.workers, alone=way.alone)
            twin.memory, twin.round, twin.since = memory, self.round, self.since[cohort[few]]
            return twin._run(name, twin.everyone, keys[few], offer.to(few))

        model = getattr(self.method, "model", None)
        quick = "train" in self._looks(name, offer) and isinstance(model, Model) and model.is_quick_on(self.device)
        way, seconds = fastest({way: partial(run, way) for way in ways(self.way.workers, quick)})
        told = ", ".join(f"{way} {1000 * took:.0f} ms" for way, took in seconds.items())
        LOG.info("'%s' goes on with %s (%d clients with up to %d rows: %s)", name, way, len(few), ROWS, told)
        return way

    def state_dict(self) -> dict[str, object]:
        return {"ways": {name: list(way) for name, way in self.chosen.items()}, "long": sorted(self.long)}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        ways = cast("dict[str, tuple[int, bool]]", state_dict.get("ways", {}))
        self.chosen = {name: Way(*way) for name, way in ways.items()}
        self.long = set(cast("list[str]", state_dict.get("long", [])))

    def _once_for_alike(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer) -> tuple[Payload, Payload]:
        """Answers of all; a task that looks at test rows alone runs once for clients with the same rows and offer."""
        ids = cohort.tolist()
        if self._looks(name, offer) - {"test"} or (offer.each and offer.pick is None):
            return self._side_by_side(name, ids, cohort, keys, offer)
        pick = torch.zeros(len(ids), dtype=torch.long) if offer.pick is None else offer.pick
        alike = [(model, self._table("test").alike[i]) for model, i in zip(pick.tolist(), ids, strict=True)]
        first: dict[tuple[int, int], int] = {}
        for position, pair in enumerate(alike):
            first.setdefault(pair, position)
        number = {pair: n for n, pair in enumerate(first)}
        asked, back = (
            torch.tensor(positions, device=self.device)
            for positions in (list(first.values()), [number[pair] for pair in alike])
        )
        fewer = offer.to(asked)
        send, keep = self._side_by_side(name, [ids[i] for i in first.values()], cohort[asked], keys[asked], fewer)
        return from_flat(select(to_flat(send), back)), from_flat(select(to_flat(keep), back))

    def _side_by_side(
        self, name: str, ids: list[int], cohort: Tensor, keys: Tensor, offer: Offer
    ) -> tuple[Payload, Payload]:
        workers = self._way(name).workers
        lanes = self.lanes.get(name) or self.block or self._fitting(len(cohort), offer, workers)
        one = partial(self._one_block, name, cohort, keys, offer)
        work = ProgressLog(name, len(ids)).after(one, lambda block: len(block.order))
        looks = self._looks(name, offer)
        cut = Cut(self._table("train"), self._table("test"), self.device, self._walks(looks))
        blocks = list(cut.blocks(ids, lanes, by_test="train" not in looks))
        self._note(name, f"{len(blocks)} blocks of up to {lanes} clients, {workers} at once")
        try:
            parts = at_once(work, blocks, workers) if workers > 1 else [work(block) for block in blocks]
        except RuntimeError:  # too much for the memory, or for a kernel's 32-bit index: try with half as many
            half = min(lanes, len(cohort)) // 2
            if half < FEW:
                raise
            self.lanes[name] = half
            self.walks.forget()
            self.recorder.forget()
            return self._side_by_side(name, ids, cohort, keys, offer)
        order = [position for block in blocks for position in block.order]
        send, keep = (join_in_order(order, [part[i] for part in parts]) for i in range(2))
        return from_flat(send), from_flat(keep)

    def _note(self, name: str, way: str) -> None:
        if self.ways.get(name) != way:
            LOG.debug("'%s' runs in %s", name, way)
        self.ways[name] = way

    def _looks(self, name: str, offer: Offer) -> set[str]:
        """What the task has been seen to look at; everything before it was seen."""
        return self.looks.get((name, *to_flat(offer.shared), *to_flat(offer.each)), PARTS)

    def _table(self, part: str) -> SampleTable:
        if part not in self.tables:
            self.tables[part] = SampleTable.of(self.train if part == "train" else self.test, self.device)
        return self.tables[part]

    def _change(self, change: Change) -> None:
        super()._change(change)
        self.tables.clear()

    def _walks(self, looks: set[str]) -> bool:
        """Whether steps are recorded, not blocks: where clients that train the quick way are uneven."""
        return self.on_gpu and "feed" in looks and not self._table("train").are_even

    def _one_block(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer, block: Block) -> tuple[Stack, Stack]:
        """What a block's clients send and what they keep."""
        who = cohort[block.positions]
        inputs = {"key": keys[block.positions], "since": self.since.to(self.device)[who]}
        inputs["round"] = torch.tensor(self.round, device=self.device)
        for part, longest in zip(("train", "test"), block.longest, strict=True):
            inputs[part], inputs[f"{part} size"] = self._table(part).padded(who, longest)
        inputs |= {f"memory {key}": t for key, t in self.remembered(who).items()}
        inputs |= self._offered(offer, block.positions)
        bounds = self._table("train").bounds, self._table("test").bounds
        program = partial(self._program, name, bounds)
        if block.walks:
            with self.walks:
                outputs = program(inputs)
        else:
            outputs = self.recorder.run((name, bounds), program, inputs) if self.on_gpu else program(inputs)
        real = {key: t[: len(block.order)] for key, t in outputs.items()}
        return _parted("send ", real), _parted("keep ", real)

    def _offered(self, offer: Offer, positions: Tensor) -> Params:
        """What a block is offered; on a GPU a model that all are served stays one model."""
        shared, each = to_flat(offer.shared), to_flat(offer.each)
        if not self.on_gpu:
            shared = {name: t.expand(len(positions), *t.shape) for name, t in shared.items()}
        pick = positions if offer.pick is None else offer.pick[positions]
        kind = "shared" if self.on_gpu else "each"
        return {f"{kind} {name}": t for name, t in shared.items()} | {
            f"each {name}": t for name, t in select(each, pick).items()
        }

    def _program(self, name: str, bounds: tuple[Bounds, Bounds], inputs: Params) -> Params:
        """What a block's clients answer, as a function of nothing but tensors."""
        task = find_task(self.method, name)
        seen: set[str] = set()

        def lane(own: Params) -> Params:
            train, test = (
                Samples(self.x, self.y, own[part], own[f"{part} size"], width=bound.width, longest=bound.longest)
                for part, bound in zip(("train", "test"), bounds, strict=True)
            )
            memory, offered = from_flat(_parted("memory ", own)), _parted("shared ", own) | _parted("each ", own)
            client = Watched(train, test, own["key"], own["round"], own["since"], memory, seen)
            reply = task(client, **from_flat(offered))
            return _prefixed("send ", reply.send) | _prefixed("keep ", reply.keep)

        dims = {key: None if key == "round" or key.startswith("shared ") else 0 for key in inputs}
        outputs: Params = vmap(lane, in_dims=(dims,))(inputs)
        self.looks[(name, *_parted("shared ", inputs), *_parted("each ", inputs))] = seen
        return outputs

    def _fitting(self, clients: int, offer: Offer, workers: int) -> int:
        """How many clients fit side by side: weights, gradients, momentum and what lies between them.

        The cohort is cut evenly, so that all workers have the same to do.
        """
        each = 12 * offer.bytes_each() + 2**20
        most = max(2, min(MANY.get(self.device.type, FEW), self.free // workers // each))
        return -(-clients // (workers * -(-clients // (workers * most))))


def _prefixed(prefix: str, payload: Payload) -> Params:
    return {prefix + name: t for name, t in to_flat(payload).items()}


def _parted(prefix: str, flat: Params) -> Params:
    return {name.removeprefix(prefix): t for name, t in flat.items() if name.startswith(prefix)}
