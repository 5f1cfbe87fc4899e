"""Communication (methods 5.5, 5.7): what the ledger counted, and the papers' formulas to hold it against."""

from kinfed.ledger import Ledger

QUESTIONS = ("evaluate", "evaluate_adapted")  # asked by the experiment, not by a method


def method_bytes(ledger: Ledger) -> int:
    """All bytes a method moved, both ways; evaluation is the experimenter's and does not count."""
    return ledger.total(without=QUESTIONS)


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
