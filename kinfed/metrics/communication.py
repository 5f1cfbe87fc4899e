"""What crossed the wire: bytes of a method, replies that were not used, and the papers' formulas of parameters."""

from collections import Counter
from collections.abc import Sequence

from kinfed.ledger import Ledger
from kinfed.replies import EXCLUDED, LONG_UPDATE, OUTLYING, Rejected

QUESTIONS = ("evaluate", "evaluate_adapted", "evaluate_all", "count_predictions")  # of the experiment, not of a method


def method_bytes(ledger: Ledger) -> int:
    """All bytes a method moved, both ways; evaluation is the experimenter's and does not count."""
    return ledger.total(without=QUESTIONS)


def count_bytes(ledger: Ledger) -> tuple[int, int]:
    """The same down to clients, and up from them."""
    down, up = (
        sum(int(t.sum()) for task, t in table.items() if task not in QUESTIONS) for table in (ledger.down, ledger.up)
    )
    return down, up


def count_unused(rejected: Sequence[Rejected]) -> dict[str, int]:
    """How many replies were not used or did not come, by reason, and how many clients are excluded or suspected."""
    reasons = Counter(reply.reason for reply in rejected)
    kinds = {EXCLUDED: "excluded", OUTLYING: "outlying", LONG_UPDATE: "with_long_update"}
    clients = {f"clients_{name}": reasons.pop(kind) for kind, name in kinds.items() if kind in reasons}
    return {f"replies_{reason.replace(' ', '_')}": count for reason, count in sorted(reasons.items())} | clients


def fedavg_parameters(participants: int, weights: int, rounds: int) -> int:
    """2ρM·W per round: FedAvg, FedProx, FedNova, Per-FedAvg, CFL, FeSEM."""
    return 2 * participants * weights * rounds


def flt_parameters(
    clients: int, encoder: int, centroids: int, latent: int, participants: int, weights: int, rounds: int
) -> int:
    """M·W_enc down and k·M·e up once, then 2ρM·W per round."""
    return clients * (encoder + centroids * latent) + fedavg_parameters(participants, weights, rounds)


def repa_parameters(clients: int, encoder: int, statistics: int, participants: int, weights: int, rounds: int) -> int:
    """W_enc down and the statistics up once for each client, then 2ρM·W per round; the encoder's training is extra."""
    return clients * (encoder + statistics) + fedavg_parameters(participants, weights, rounds)


def megabits_per_client(moved_bytes: int, clients: int) -> float:
    """FLIS' "Mb": megabits per client, averaged over all clients of the federation."""
    return moved_bytes * 8 / 1e6 / clients
