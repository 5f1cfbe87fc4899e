"""The server's checks: whether what came back is an answer to what was asked, and fit to be used.

Nothing here knows Flower. An `Inbox` is opened for one call, takes the answers as they come, and names the reason for
each that it does not use.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kinfed.engines.flower.offers import Refusal
from kinfed.engines.flower.packing import Facts, Form, Parcel, bytes_in, bytes_of_form, is_finite, unpack
from kinfed.federation import FAILED, NOT_FINITE, REFUSED
from kinfed.params import Params

SLACK = 2**16  # bytes that a reply may have above twice what it should
OVERSIZED, EMPTY, WRONG_NAMES, WRONG_DTYPE = "oversized", "empty", "wrong names", "wrong dtype"
WRONG_SHAPE, DAMAGED, DUPLICATE, STALE, UNKNOWN = "wrong shape", "damaged", "duplicate", "stale", "unknown sender"


class Answer(NamedTuple):
    """One message that came back."""

    letter: str  # the id of the letter it answers
    facts: Facts
    parcel: Parcel
    has_failed: bool = False  # the network or the node says that there will be no other answer


class Good(NamedTuple):
    """A reply that can be used."""

    send: Params
    is_kept: bool  # the client remembers something new since this task
    has_forgotten: bool  # it had lost what it should have remembered
    sizes: tuple[object, object] = (None, None)  # training and test rows that it has now, as it says


def fault_in(parcel: Parcel, form: Form) -> str | None:
    """Why a parcel is not of this form; None if it is. No tensor is made before all is known to fit."""
    if bytes_in(parcel) > 2 * bytes_of_form(form) + SLACK:
        return OVERSIZED
    if form and not parcel:
        return EMPTY
    if parcel.keys() != form.keys():
        return WRONG_NAMES
    if any(packed.dtype != form[name][0] for name, packed in parcel.items()):
        return WRONG_DTYPE
    if any(tuple(packed.shape) != form[name][1] for name, packed in parcel.items()):
        return WRONG_SHAPE
    return None if all(packed.is_whole for packed in parcel.values()) else DAMAGED


@dataclass
class Inbox:
    """The answers to one call."""

    tick: int  # which call it is
    form: Form
    letters: dict[str, int] = field(default_factory=dict)  # id -> the client it was sent to
    earlier: Mapping[str, int] = field(default_factory=dict)  # those of earlier calls that nobody answered in time
    good: dict[int, Good] = field(default_factory=dict)
    heard: set[str] = field(default_factory=set)
    faults: list[tuple[int, str]] = field(default_factory=list)  # client, reason
    received: dict[int, int] = field(default_factory=dict)  # client -> bytes of all that came from it

    @property
    def waiting(self) -> set[str]:
        """Letters that nobody has answered yet."""
        return self.letters.keys() - self.heard

    def take(self, answer: Answer) -> None:
        """Puts an answer where it belongs."""
        if answer.has_failed and answer.letter in self.earlier:
            return  # it was missed when it was asked for
        client = self.letters.get(answer.letter, self.earlier.get(answer.letter, -1))
        if client >= 0 and not answer.has_failed:
            self.received[client] = self.received.get(client, 0) + bytes_in(answer.parcel)
        reason = self._misdirected(answer, client)
        if reason is None:
            self.heard.add(answer.letter)
            reason = self._unfit(answer, client)
        if reason is not None:
            self.faults.append((client, reason))

    def _misdirected(self, answer: Answer, client: int) -> str | None:
        if client < 0:
            return UNKNOWN
        if answer.letter in self.earlier:
            return STALE
        return DUPLICATE if answer.letter in self.heard else None

    def _unfit(self, answer: Answer, client: int) -> str | None:
        """Why an answer cannot be used; one that can is put to the good ones."""
        if answer.has_failed:
            return FAILED
        if not answer.facts:
            return EMPTY
        if answer.facts.get("tick") != self.tick:
            return STALE
        if answer.facts.get("client") != client:
            return UNKNOWN
        if "fault" in answer.facts:
            return FAILED if answer.facts["fault"] == Refusal.TASK_FAILED else REFUSED
        reason = fault_in(answer.parcel, self.form)
        if reason is not None:
            return reason
        send = unpack(answer.parcel)
        if not is_finite(send):
            return NOT_FINITE
        is_kept, has_forgotten = (answer.facts.get(name) is True for name in ("kept", "forgot"))
        self.good[client] = Good(send, is_kept, has_forgotten, (answer.facts.get("train"), answer.facts.get("test")))
        return None
