"""ε and δ of what clients have released so far, where that is private."""

from math import isfinite
from typing import TypeVar

from kinfed.capabilities import SIGNATURE_TASK, summed_tasks_of
from kinfed.federation import Federation
from kinfed.method import Method
from kinfed.signatures import Signature

State = TypeVar("State")


def spend_privacy(method: Method[State], fed: Federation) -> dict[str, float | None]:
    """ε and δ of signatures and of training, by name; an infinite ε is None."""
    privacy, tasks = fed.privacy, summed_tasks_of(method)
    spent: dict[str, tuple[float, float]] = {}
    if privacy.signature.is_private:
        spent["signature"] = (privacy.signature.spend(count_signatures(method, fed)), privacy.signature.delta)
    if privacy.training.is_on:
        called = sum(task in tasks for _, task, *_ in fed.ledger.rounds)
        steps = max(called, sum(number for task, number in fed.released.items() if task in tasks))
        spent["training"] = (privacy.training.spend(steps, fed.fraction), privacy.training.delta)
    return {key: value for name, (epsilon, delta) in spent.items() for key, value in (
        (f"{name}_epsilon", epsilon if isfinite(epsilon) else None), (f"{name}_delta", delta),
    )}  # fmt: skip


def count_signatures(method: Method[State], fed: Federation) -> int:
    """How many signatures the client has sent, or was asked for, that sent most."""
    signature = getattr(method, "own_signature", None) or getattr(method, "signature", None)
    sent, released = fed.ledger.up.get(SIGNATURE_TASK), fed.released.items()
    asked = max((number for name, number in released if name.startswith(f"{SIGNATURE_TASK}/")), default=0)
    if sent is None or not isinstance(signature, Signature):
        return asked
    k, width = signature.size(tuple(fed.x.shape[1:]), method.model.target_groups)
    return max(asked, -(-int(sent.max()) // (4 * k * (width + 1))))  # floats: k points and k shares
