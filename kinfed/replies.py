"""What crosses the wire as a method sees it: what clients are offered, what they reply, and what is noted of them."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kinfed.aggregation import norms
from kinfed.params import NOTHING, Params, Payload, Stack, bytes_of, each_leaf, flatten, from_flat, to_flat, to_matrix

NOT_FINITE, NO_ANSWER, FAILED, REFUSED = "not finite", "no answer", "failed", "refused"
NOT_ASKED = "not asked"  # a client that was silent before, and is asked again later
MISSING = (NO_ANSWER, FAILED, REFUSED, NOT_ASKED)  # nothing came that could have been used
NO_SAMPLES = "no training samples"  # a client that trained says that it has none any more
FORGOT = "forgot"  # a client had lost its memory and began anew; its reply was used
OUT_OF_RANGE, OVERSIZED, EMPTY, DAMAGED = "out of range", "oversized", "empty", "damaged"
WRONG_NAMES, WRONG_DTYPE, WRONG_SHAPE, UNKNOWN = "wrong names", "wrong dtype", "wrong shape", "unknown sender"
OFFENCES = (  # no honest client's
    OUT_OF_RANGE, OVERSIZED, EMPTY, DAMAGED, WRONG_NAMES, WRONG_DTYPE, WRONG_SHAPE, UNKNOWN,
)  # fmt: skip
OUTLYING = "outlying"  # what a client sent is far from what all others did: it forms no cluster
LONG_UPDATE = "long update"  # what a client changed is far longer than what others did; the rule bounds it
VARIANCE, MEAN = "running_var", "running_mean"  # of torch's norms
EXCLUDED = "excluded"  # a client that is asked nothing for the rest of the run


class Offer(NamedTuple):
    """What the server sends with a task: the same for all, and for each client a row of a table."""

    shared: Payload = NOTHING  # the same for the whole cohort
    each: Payload = NOTHING  # row pick[i] is for cohort[i]
    pick: Tensor | None = None  # None: row i is for cohort[i]

    def bytes_each(self) -> int:
        """Bytes that every client of the cohort is sent."""
        return bytes_of(self.shared) + sum(t[0].numel() * t.element_size() for t in to_flat(self.each).values())

    def to(self, positions: Tensor) -> "Offer":
        """The offer to the clients at these positions of the cohort."""
        return self._replace(pick=positions if self.pick is None else self.pick[positions]) if self.each else self


NO_OFFER = Offer()


class Rejected(NamedTuple):
    """A reply that was not used, or did not come, and why; or what else is noted of a client."""

    round: int
    task: str
    client: int  # -1: nobody knows whose it is
    reason: str = NOT_FINITE

    @property
    def is_missing(self) -> bool:
        """Whether there was nothing to use."""
        return self.reason in MISSING

    @property
    def was_dropped(self) -> bool:
        """Whether a reply came and was not used."""
        return not self.is_missing and self.reason not in (FORGOT, OUTLYING, LONG_UPDATE, EXCLUDED)

    @property
    def is_offence(self) -> bool:
        """Whether it is what no honest client sends."""
        return self.client >= 0 and self.reason in OFFENCES


@dataclass(frozen=True)
class Replies:
    """Replies, stacked: row i of every tensor is from client cohort[i]; a client that did not reply is not in it."""

    cohort: Tensor
    send: Payload

    def __getitem__(self, name: str) -> Tensor:
        value = self.send[name]
        if not isinstance(value, Tensor):
            raise TypeError(f"'{name}' is a stack of models: use replies.stack('{name}')")
        return value

    def stack(self, name: str) -> Stack:
        """The field `name` of all replies as a stack of models."""
        value = self.send[name]
        if isinstance(value, Tensor):
            raise TypeError(f"'{name}' is one tensor: use replies['{name}']")
        return dict(value)

    def align(self, clients: Tensor, values: Tensor) -> Tensor:
        """What those who replied computed ([replies, d]) as rows of these clients (sorted ids), NaN for the others."""
        blank = torch.full((len(clients), values.shape[1]), torch.nan, device=values.device)
        return blank.index_copy(0, torch.searchsorted(clients, self.cohort), values)

    def select(self, positions: Tensor) -> "Replies":
        """The replies at these positions alone."""
        return Replies(self.cohort[positions], from_flat(select_flat(positions, self.send)))


def measure_changes(offer: Offer, replied: Tensor, replies: Replies) -> Tensor:
    """How far the weights in each reply are from those that its client was offered: [replies]; 0 without weights.

    `replied`: bool [cohort]. Of several models to select from it is the nearest; what was not offered is a change.
    """
    own = offer.to(replied.nonzero()[:, 0])
    each = each_leaf(lambda t: t if own.pick is None else t[own.pick], to_flat(own.each)) if own.each else {}
    offered = {name: t[None] for name, t in to_flat(own.shared).items()} | each
    sent = {name: t for name, t in to_flat(replies.send).items() if "/" in name and t.is_floating_point()}
    models = {name: "models/" + name.partition("/")[2] for name in sent}
    if sent and not sent.keys() & offered.keys() and set(models.values()) <= offered.keys():
        of = flatten({name: offered[first][0] for name, first in models.items()})
        return torch.cdist(flatten(sent), of).amin(1)
    changes = [norms(to_matrix(t - offered[name] if name in offered else t)) for name, t in sent.items()]
    return torch.stack(changes).norm(dim=0) if changes else torch.zeros(len(replies.cohort), device=replied.device)


def count_models(offer: Offer) -> int:
    """How many models a cohort was offered to select from."""
    models = to_flat({"models": offer.shared["models"]}) if "models" in offer.shared else {}
    return next((len(stacked) for stacked in models.values()), 0)


def find_variances(offer: Offer) -> frozenset[str]:
    """Fields of replies that hold running variances, as BatchNorm's: those of the models that a cohort was offered.

    Who selects one of several `models` replies it as `params`. What only changes them has other names.
    """
    offered = to_flat(offer.shared).keys() | to_flat(offer.each).keys()
    found = {name for name in offered if is_variance(name) and name.removesuffix(VARIANCE) + MEAN in offered}
    selected = {"params/" + name.removeprefix("models/") for name in found if name.startswith("models/")}
    return frozenset(found | selected)


def keep_variances(params: Params, steps: Stack, sign: int = 1) -> Stack:
    """What clients changed in a model [K], so that no running variance of params + sign · step is negative."""
    limits = {name: -sign * w for name, w in params.items() if is_variance(name)}
    keep = torch.maximum if sign > 0 else torch.minimum
    return steps | {name: keep(steps[name], limit) for name, limit in limits.items()}


def is_variance(name: str) -> bool:
    """Whether a weight of this name is a running variance of one of torch's norms."""
    return name.replace("/", ".").endswith("." + VARIANCE)


def select_flat(which: Tensor, payload: Payload) -> Stack:
    """The replies of these, flat; nothing is copied where these are all."""
    return each_leaf(lambda t: t if len(t) == len(which) else t[which], to_flat(payload))
