"""Ranges of the numbers in replies: what a client can send at all, and which clients sent something else."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from kinfed.params import Stack


class Facts(NamedTuple):
    """What the server knows of clients that replied, whatever they say: what a limit may depend on."""

    method: object
    train: Tensor  # [clients] training samples
    test: Tensor  # [clients] test samples
    models: int = 0  # that they were offered to select from
    variances: frozenset[str] = frozenset()  # fields of replies that hold running variances of models


Limit = float | Callable[[Facts], float | Tensor]


class Range(NamedTuple):
    """The range of every number in a field of a reply, both limits included; one that is not finite is outside.

    A limit may be one of all numbers, one of each client [clients], or one of each number of a client [1, numbers].
    """

    least: Limit
    most: Limit
    total: tuple[Limit, Limit] | None = None  # the range of the sum of a client's numbers, where none is negative

    def contains(self, values: Tensor, facts: Facts) -> Tensor:
        """Whether all values of a client are inside: bool [clients]; values: [clients, ...]."""
        flat = values.reshape(len(values), -1)
        if not flat.numel():
            return torch.ones(len(values), dtype=torch.bool, device=values.device)
        flat = flat.byte() if flat.dtype == torch.bool else flat
        least, most = resolve(self.least, facts), resolve(self.most, facts)
        if any(isinstance(limit, Tensor) and limit.dim() == 2 for limit in (least, most)):
            inside = ((flat >= least) & (flat <= most)).all(1)
        else:
            inside = (flat.amin(1) >= least) & (flat.amax(1) <= most)  # aminmax takes four times as long
        if self.total is None:
            return inside
        least, most = (resolve(limit, facts) for limit in self.total)
        total = flat.double().sum(1)
        return inside & (total >= (1 - SLACK) * least) & (total <= (1 + SLACK) * most)  # of what is not negative


LARGEST = 1e12  # squares of a million such numbers still have a sum in float32
NUMBERS = Range(-LARGEST, LARGEST)  # of floats without a range of their own: weights, updates, signatures
VARIANCES = Range(0, LARGEST)  # of BatchNorm, running ones
FLAG = Range(0, 1)
PARTS = Range(0, 1, total=(0, 1))  # of one whole
CHOICE = Range(0, lambda facts: facts.models - 1)  # of one of the models that were offered
SLACK = 1e-3  # of a sum of rounded numbers


def resolve(limit: Limit, facts: Facts) -> float | Tensor:
    """The limit for these clients."""
    return limit(facts) if callable(limit) else limit


def check_numbers(send: Stack, clients: int, ranges: Mapping[str, Range], facts: Facts) -> tuple[Tensor, Tensor]:
    """Which clients' replies are finite where that is all that is asked, and which are inside of declared ranges.

    Both bool [clients]. Weights beyond NUMBERS count as not finite: those of an honest client that diverged are. So do
    negative variances, whose root is NaN: one such weight of the server's model spoils it for everybody.
    """
    finite, inside = torch.ones(2, clients, dtype=torch.bool, device=facts.train.device)
    for name, tensor in send.items():
        field = name.partition("/")[0]
        if field in ranges:
            inside &= ranges[field].contains(tensor, facts)
        elif tensor.is_floating_point():
            finite &= (VARIANCES if name in facts.variances else NUMBERS).contains(tensor, facts)
    return finite, inside
