"""The embedded default: clients train side by side, a block of them in one `vmap`.

Data stay on the device as bytes; a block holds row numbers only. Blocks are cut from clients of similar length and
bounded memory. On a CPU several workers may take blocks at once. Nothing a client computes depends on its block: see
`Rows` for how padding is kept out, and `at_once` for the cores.
"""

import logging
import warnings
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.func import vmap

from kinfed.client import Client, Rows
from kinfed.data.population import Population
from kinfed.engines.sequential import loop
from kinfed.engines.workers import at_once
from kinfed.errors import ConfigError, OneByOneOnly
from kinfed.federation import Offer, Resident, Task, Workshop
from kinfed.models import LEAST
from kinfed.params import Params, Payload, Stack, each_leaf, from_flat, join, rows, to_flat

LOG = logging.getLogger("kinfed.engines")
GIBIBYTE = 2**30
FEW = 32  # clients side by side; a task that fails with so few is not failing for their number
MANY = {"cuda": 512, "cpu": 32}  # more lanes gain nothing and make activations large


class Vectorised(Resident):
    """Cohorts cut into blocks, each block one vmap; a task that vmap refuses runs one by one, with a warning."""

    def __init__(
        self,
        algorithm: Workshop,
        population: Population,
        *,
        fraction: float = 1.0,
        seed: int = 0,
        device: str = "cpu",
        block: int = 0,
        workers: int = 1,
    ) -> None:
        if block < 0 or workers < 1:
            raise ConfigError(
                f"block must be at least 1, or 0 to choose by memory, and workers at least 1, got {block} and {workers}"
            )
        super().__init__(algorithm, population, fraction=fraction, seed=seed, device=device)
        self.block = block
        self.workers = workers if self.device.type == "cpu" else 1  # blocks at once; a GPU takes one after the other
        if self.device.type == "cuda":
            torch.backends.cudnn.allow_tf32 = False  # convolutions in full precision, as matrix products are
        self.loops: set[str] = set()  # tasks that run one by one
        self.lanes: dict[str, int] = {}  # task -> most clients side by side that fit into memory
        self.ways: dict[str, str] = {}  # task -> how its latest cohort was cut, in words

    def _run(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer) -> tuple[Payload, Payload]:
        task: Task = getattr(self.algorithm, name)
        if name in self.loops or getattr(task, "one_by_one", False) or not len(cohort):
            return loop(self, name, cohort, keys, offer)
        try:
            return self._side_by_side(task, name, cohort, keys, offer)
        except (OneByOneOnly, RuntimeError) as refusal:
            answer = loop(self, name, cohort, keys, offer)  # an error of the task's own comes again here
            reason = str(refusal).strip().splitlines()[0]
            warnings.warn(f"'{name}' runs one client at a time, which is slower: {reason}", stacklevel=4)
            self.loops.add(name)
            return answer

    def _side_by_side(
        self, task: Task, name: str, cohort: Tensor, keys: Tensor, offer: Offer
    ) -> tuple[Payload, Payload]:
        lanes = self.lanes.get(name) or self.block or self._fitting(len(cohort), offer)
        work, blocks = partial(self._one_block, task, cohort, keys, offer), list(self._blocks(cohort, lanes))
        self._note(name, f"{len(blocks)} blocks of up to {lanes} clients, {self.workers} at once")
        try:
            parts = at_once(work, blocks, self.workers) if self.workers > 1 else [work(block) for block in blocks]
        except RuntimeError:  # too much for the memory, or for a kernel's 32-bit index: try with half as many
            half = min(lanes, len(cohort)) // 2
            if half < FEW:
                raise
            self.lanes[name] = half
            return self._side_by_side(task, name, cohort, keys, offer)
        back = torch.cat([part for part, _, _ in parts]).argsort()
        send, keep = join(*(sent for _, sent, _ in parts)), join(*(kept for _, _, kept in parts))
        return from_flat(rows(send, back)), from_flat(rows(keep, back))

    def _note(self, name: str, way: str) -> None:
        if self.ways.get(name) != way:
            LOG.debug("'%s' runs in %s", name, way)
        self.ways[name] = way

    def _blocks(self, cohort: Tensor, lanes: int) -> Iterator[Tensor]:
        """Positions in the cohort, longest clients first, cut where padding would waste too much."""
        lengths = [len(self.train[client]) for client in cohort.tolist()]
        shortest = 0.4 if self.device.type == "cuda" else 0.7  # a GPU pays per step, a CPU per padded row
        block: list[int] = []
        for position in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
            if block and (len(block) == lanes or lengths[position] < shortest * lengths[block[0]]):
                yield torch.tensor(block, device=self.device)
                block = []
            block.append(position)
        yield torch.tensor(block, device=self.device)

    def _one_block(
        self, task: Task, cohort: Tensor, keys: Tensor, offer: Offer, part: Tensor
    ) -> tuple[Tensor, Stack, Stack]:
        """The positions of a block's clients, what they send and what they keep."""
        twins = part.repeat(-(-LEAST // len(part)))[: max(LEAST, len(part))]
        who = cohort[twins]
        pick = twins if offer.pick is None else offer.pick[twins]
        shared = each_leaf(lambda t: t.expand(len(twins), *t.shape), to_flat(offer.shared))
        offered = shared | rows(to_flat(offer.each), pick)
        train, test = self._padded(self.train, who), self._padded(self.test, who)
        width = self.width(self.train), self.width(self.test)
        now = torch.tensor(self.round, device=self.device)

        def lane(
            train: tuple[Tensor, Tensor],
            test: tuple[Tensor, Tensor],
            key: Tensor,
            since: Tensor,
            memory: Params,
            offered: Params,
        ) -> tuple[Params, Params]:
            mine, others = (Rows(self.x, self.y, *part, width=w) for part, w in zip((train, test), width, strict=True))
            reply = task(Client(mine, others, key, now, since, from_flat(memory)), **from_flat(offered))
            return to_flat(reply.send), to_flat(reply.keep)

        since = self.since[who.cpu()].to(self.device)
        send, keep = vmap(lane)(train, test, keys[twins], since, self.remembered(who), offered)
        return part, rows(send, slice(len(part))), rows(keep, slice(len(part)))

    def _padded(self, part: list[Tensor], who: Tensor) -> tuple[Tensor, Tensor]:
        """Row numbers [lanes, longest] and sizes [lanes] of these clients; padding repeats a client's own last row."""
        chosen = [part[client] for client in who.tolist()]
        sizes = torch.tensor([len(index) for index in chosen], device=self.device)
        index = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True)
        last = torch.minimum(torch.arange(index.shape[1], device=self.device), (sizes[:, None] - 1).clamp(min=0))
        return index.gather(1, last), sizes  # another client's row could be sick or without a label

    def _fitting(self, clients: int, offer: Offer) -> int:
        """How many clients fit side by side: weights, gradients, momentum and what lies between them.

        The cohort is cut evenly, so that all workers have the same to do.
        """
        each = 12 * offer.bytes_each() + 2**20
        free = torch.cuda.mem_get_info(self.device)[0] // 2 if self.device.type == "cuda" else GIBIBYTE
        most = max(2, min(MANY.get(self.device.type, FEW), int(free // self.workers // each)))
        return -(-clients // (self.workers * -(-clients // (self.workers * most))))
