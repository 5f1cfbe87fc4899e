"""The base of engines whose clients live in this process: their memory, and checks of what they send."""

from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from kinfed.capabilities import TellsCopies
from kinfed.copies import name_samples
from kinfed.federation import (
    NOT_FINITE,
    OUT_OF_RANGE,
    Federation,
    Offer,
    Rejected,
    Replies,
    count_models,
    select_flat,
)
from kinfed.params import Payload, Stack, each_leaf, put, repeat, to_flat
from kinfed.ranges import Facts, Range, check_numbers
from kinfed.replies import find_variances


class Resident(Federation):
    """A federation whose clients live in this process; engines say how a task reaches them."""

    @cached_property
    def names(self) -> Tensor | None:
        """By which clients find copies among their samples: [pool, 3]; None where there are none, or nobody asks."""
        return name_copies(self.method, self.x, self.y)

    def _answers(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer, ranges: Mapping[str, Range]) -> Replies:
        send, keep = self._run(name, cohort, keys, offer)
        good = self._check(name, cohort, send, ranges, offer)
        if keep:
            self._keep(cohort[good], select_flat(good, keep))
        up = sum(t[0].numel() * t.element_size() for t in to_flat(send).values())
        self.ledger.count(self.round, name, cohort, offer.bytes_each(), cohort, up)
        return Replies(cohort, send).select(good)

    @abstractmethod
    def _run(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer) -> tuple[Payload, Payload]:
        """What all clients of the cohort send and keep, stacked."""

    def memory_of(self, cohort: Tensor) -> Stack:
        """What these clients remember, flat, stacked."""
        if self.memory:
            return each_leaf(lambda t: t[cohort], self.memory)
        return repeat(self.initial_memory(), len(cohort))

    def _keep(self, cohort: Tensor, kept: Stack) -> None:
        if not self.memory:
            self.memory = repeat(self.initial_memory(), self.count)
        kept = {name: values.to(self.memory[name].dtype) for name, values in kept.items()}
        if self.is_dry_run:
            self.memory = self.memory | put({name: self.memory[name] for name in kept}, cohort, kept)
            return
        for name, values in kept.items():  # in place: a copy of what all clients remember would cost every round
            self.memory[name].index_copy_(0, cohort, values)

    def _check(self, name: str, cohort: Tensor, send: Payload, ranges: Mapping[str, Range], offer: Offer) -> Tensor:
        """Positions of the replies that can be used; the others are noted."""
        train, test = (self._lengths(part, cohort, ranges) for part in (self.train, self.test))
        facts = Facts(self.method, train, test, count_models(offer), find_variances(offer))
        finite, inside = check_numbers(to_flat(send), len(cohort), ranges, facts)
        faulty = zip(cohort[~(finite & inside)].tolist(), inside[~(finite & inside)].tolist(), strict=True)
        self.rejected += [
            Rejected(self.round, name, client, NOT_FINITE if is_inside else OUT_OF_RANGE)
            for client, is_inside in faulty
        ]
        return (finite & inside).nonzero()[:, 0]

    def _lengths(self, part: list[Tensor], cohort: Tensor, ranges: Mapping[str, Range]) -> Tensor:
        """Samples of these clients; none are counted where no range may depend on them."""
        return torch.tensor([part[i].size(0) for i in cohort.tolist()] if ranges else [], device=self.device)


def name_copies(method: object, x: Tensor, y: Tensor) -> Tensor | None:
    """Names of samples [N, ...] by which this method's clients find copies; None where there are none."""
    return name_samples(x, y) if isinstance(method, TellsCopies) and method.tells_copies() else None
