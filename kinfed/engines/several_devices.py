"""One cohort on several GPUs of a machine: each takes a part of its clients, all at once.

Every device has all samples. Clients do not know with whom they share a block, so the parts change no bit of what they
answer. Replies come together on the first device, where the server works.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kinfed.data.population import Change, Population
from kinfed.engines.vectorised import Precision, Vectorised, multiply_in
from kinfed.engines.workers import run_at_once
from kinfed.fastpath import StepGraphs
from kinfed.federation import Offer
from kinfed.params import Payload, Stack, each_leaf, from_flat, join_in_order, select, to_flat


class SeveralDevices(Vectorised):
    """The vectorised engine on several devices; the first of them is also the server's."""

    def __init__(
        self,
        method: object,
        population: Population,
        *,
        devices: Sequence[str],
        fraction: float = 1.0,
        seed: int = 0,
        block: int = 0,
        workers: int = 1,
        precision: Precision = "float32",
    ) -> None:
        super().__init__(
            method, population, fraction=fraction, seed=seed, device=devices[0], block=block, workers=workers,
            precision=precision,
        )  # fmt: skip
        self.step_graphs = StepGraphs()  # of its own: its devices work on threads of their own
        self.others = [
            OneDevice(self, method, population, device=device, block=block, workers=workers, precision=precision)
            for device in devices[1:]
        ]

    def _run(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer) -> tuple[Payload, Payload]:
        parts = deal(self.sizes[cohort].cpu(), 1 + len(self.others))

        def run_part(i: int) -> tuple[Payload, Payload]:
            part = parts[i].to(self.device)
            asked = name, cohort[part], keys[part], offer.to(part)
            return Vectorised._run(self, *asked) if i == 0 else self.others[i - 1].run_part(*asked)

        with multiply_in(self.precision):  # for all threads: who ends first must not change it for the others
            answers = run_at_once(run_part, range(len(parts)), len(parts))
        orders = [part.tolist() for part in parts]
        send, keep = (join_in_order(orders, (self._fetch(answer[i]) for answer in answers)) for i in range(2))
        return from_flat(send), from_flat(keep)

    def _fetch(self, payload: Payload) -> Stack:
        return each_leaf(lambda t: t.to(self.device), to_flat(payload))

    def _change(self, change: Change) -> None:
        super()._change(change)
        for other in self.others:
            other._change(change)


class OneDevice(Vectorised):
    """A further device; what clients remember, and which round it is, the whole federation knows."""

    def __init__(
        self, whole: Vectorised, method: object, population: Population, *, device: str, block: int, workers: int,
        precision: Precision,
    ) -> None:  # fmt: skip
        super().__init__(method, population, device=device, block=block, workers=workers, precision=precision)
        self.whole, self.step_graphs = whole, StepGraphs()

    def run_part(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer) -> tuple[Payload, Payload]:
        """What these clients send and keep, on this device."""
        self.round, self.since = self.whole.round, self.whole.since
        return self._run(name, cohort.to(self.device), keys.to(self.device), self._bring(offer))

    def _bring(self, offer: Offer) -> Offer:
        """The offer on this device: of models that differ from client to client only those of its own."""
        each, pick = to_flat(offer.each), offer.pick
        if pick is not None:
            used, pick = pick.unique(return_inverse=True)
            each = select(each, used)
        shared, each = (each_leaf(lambda t: t.to(self.device), part) for part in (to_flat(offer.shared), each))
        return Offer(from_flat(shared), from_flat(each), None if pick is None else pick.to(self.device))

    def memory_of(self, cohort: Tensor) -> Stack:
        return each_leaf(lambda t: t.to(self.device), self.whole.memory_of(cohort.to(self.whole.device)))


def deal(sizes: Tensor, hands: int) -> list[Tensor]:
    """The positions of a cohort dealt out, the longest first, so that all have as much to do; nobody gets none."""
    order = sizes.argsort(descending=True, stable=True)
    turns = torch.arange(len(order)) % (2 * hands)
    hand = torch.minimum(turns, 2 * hands - 1 - turns)
    return [part for part in (order[hand == i].sort().values for i in range(hands)) if len(part)]
