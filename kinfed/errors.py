"""Every error kinfed raises on purpose.

KinfedError
├── ConfigError        a setting is unknown, misspelt, or does not fit the others
│   ├── UnknownKey     unknown config key
│   └── UntrustedCode  a file that somebody sent names code of its maker
├── DataError          a dataset, partition or population cannot be what was asked for
├── ModelError         a network does not fit the data or the classes
├── CheckpointError    a run folder cannot be read or belongs to another config
├── BundleError        a bundle cannot be read, or is not for this kinfed
├── FileError          a file is damaged, or cannot be written
├── RoleError          a method cannot serve a client of this role
├── NetworkError       clients cannot be reached, do not answer, or are all excluded
├── OutOfMemory        a GPU has not enough memory for a run
└── SequentialOnly     a task is not vectorised; engines catch it and loop over the clients
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, local


class KinfedError(Exception):
    """What the command line prints in one line, without a traceback."""


class ConfigError(KinfedError, ValueError):
    """A setting is unknown, misspelt, or does not fit the others."""


class UnknownKey(ConfigError):
    """Unknown config key; `known` are those of its section."""

    def __init__(self, message: str, at: str, name: str, known: tuple[str, ...]) -> None:
        super().__init__(message)
        self.at, self.name, self.known = at, name, known


class UntrustedCode(ConfigError):
    """A file that somebody sent names code of its maker, which would be imported."""


class DataError(KinfedError, ValueError):
    """A dataset, partition or population cannot be what was asked for."""


class ModelError(KinfedError, ValueError):
    """A network does not fit the data or the classes."""


class CheckpointError(KinfedError):
    """A run folder cannot be read, or belongs to another config."""


class BundleError(KinfedError):
    """A bundle cannot be read, or is not for this kinfed."""


class FileError(KinfedError):
    """A file is damaged, or cannot be written."""


class RoleError(KinfedError):
    """A method cannot serve a client of this role."""


class NetworkError(KinfedError):
    """Clients cannot be reached, or do not answer."""


class OutOfMemory(KinfedError):
    """A GPU has not enough memory for a run, alone or beside others."""


class SequentialOnly(KinfedError):
    """A task is not vectorised; engines catch it and loop over the clients."""


OF_NEW_TENSORS = "in-place operations on new tensors (h = torch.zeros(2); h += x) are not vectorised"
OF_SHAPES = "shapes that depend on values (boolean masks, nonzero, unique) are not vectorised"
OF_FUNCTIONS = "an autograd.Function without setup_context and generate_vmap_rule = True is not vectorised"
MEANINGS = {  # what torch says of a task that is not vectorised -> what that means
    "data-dependent control flow": "deciding by values of samples or weights (if, while) is not vectorised",
    "calling .item()": "reading numbers out of tensors (.item(), float(), int()) is not vectorised",
    "dynamic shape": OF_SHAPES,
    "differently shaped": OF_SHAPES,
    "for aten::nonzero": OF_SHAPES,
    "stack expects each tensor to be equal size": OF_SHAPES,
    "called random operation": "drawing from torch's own generator is not vectorised",
    "Cannot access data pointer": "reading tensors as NumPy arrays or lists is not vectorised",
    "has more elements than `self`": OF_NEW_TENSORS,
    "doesn't match the broadcast shape": OF_NEW_TENSORS,
    "accessing `data`": "reading .data of a tensor is not vectorised (.detach() is)",
    "call Tensor.requires_grad_()": "requires_grad_() of a tensor in forward is not vectorised (torch.func.grad is)",
    "In order to use an autograd.Function": OF_FUNCTIONS,
    "does not have vmap support": OF_FUNCTIONS,
    "escaped from inside a function being vmapped": (
        "tensors that are kept from one call to the next, or computed again in the backward pass "
        "(torch.utils.checkpoint), are not vectorised"
    ),
}
OPERATION = re.compile(r"(?:not implemented for aten::|not yet support aten::|vmap over torch\.)(\w+)")


def shorten_refusal(refusal: Exception) -> str:
    """Why a task is not vectorised, in a sentence; of an error of torch that is not known, its first."""
    said = str(refusal).strip()
    for words, meaning in MEANINGS.items():
        if words in said:
            return meaning
    if named := OPERATION.search(said):
        return f"torch.{named[1]} is not vectorised"
    first = said.splitlines()[0].split(". ")[0].rstrip(".")
    return f"an operation is not vectorised ({first})" if "vmap" in first else first


_work = local()


class Cancelled(BaseException):
    """Raised inside a worker whose work was cancelled."""


@contextmanager
def cancel_on(event: Event) -> Iterator[None]:
    """Inside it, this thread's work ends at its next batch once the event is set."""
    _work.cancelled = event
    try:
        yield
    finally:
        _work.cancelled = None


def raise_if_cancelled() -> None:
    """Raises Cancelled if this thread's work was cancelled; tasks call it with every batch."""
    event: Event | None = getattr(_work, "cancelled", None)
    if event is not None and event.is_set():
        raise Cancelled
