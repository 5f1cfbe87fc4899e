"""How every client's model does on its test rows, and what that comes to (methods 5.1 to 5.4, 5.6, 5.12)."""

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from kinfed.client_tasks import evaluate, evaluate_adapted
from kinfed.federation import Federation, Replies
from kinfed.method import Method
from kinfed.metrics.clients import (
    accuracy_of,
    mean_accuracy,
    sample_accuracy,
    share_at_target,
    variance,
    worst_decile,
)

State = TypeVar("State")


@dataclass(frozen=True)
class Scores:
    """Every client's accuracy after a round; not a number where a client was not scored."""

    accuracy: Tensor  # [clients], its model as served
    adapted: Tensor  # [clients], after local adaptation
    loss: Tensor  # [clients], mean over its test rows
    rows: Tensor  # [clients], test rows
    trains: Tensor  # [clients] bool: it takes part in training


def score_clients(method: Method[State], state: State, fed: Federation, adapt: bool) -> Scores:
    """Every present client scored on its test rows; with `adapt` also after training on its own, if it has labels."""
    blank = torch.full((fed.count,), torch.nan, dtype=torch.double)
    who = fed.real
    replies = fed.run(evaluate, who, method.offer(state, who, fed))
    at, rows = replies.cohort.cpu(), replies["samples"].cpu()
    adapted = adapted_accuracy(method, state, fed) if adapt else blank.clone()
    return Scores(
        accuracy=blank.index_copy(0, at, accuracy_of(replies["correct"].cpu(), rows)),
        adapted=adapted,
        loss=blank.index_copy(0, at, replies["loss"].cpu().double() / rows),
        rows=torch.zeros(fed.count, dtype=torch.long).index_copy(0, at, rows),
        trains=torch.isin(torch.arange(fed.count), fed.clients.cpu()),
    )


def adapted_accuracy(method: Method[State], state: State, fed: Federation) -> Tensor:
    """Accuracies after local training, of the clients, strangers too, that have labelled rows to train on."""
    sizes = fed.sizes.tolist()
    able = [i for i in fed.real.tolist() if fed.roles[i].labelled and sizes[i]]
    who = torch.tensor(able, dtype=torch.long, device=fed.device)
    replies: Replies = fed.run(evaluate_adapted, who, method.offer(state, who, fed))
    accuracy = accuracy_of(replies["correct"].cpu(), replies["samples"].cpu())
    return torch.full((fed.count,), torch.nan, dtype=torch.double).index_copy(0, replies.cohort.cpu(), accuracy)


def accuracies(scores: Scores, target: float) -> dict[str, float]:
    """Accuracies of those who train, and of strangers where there are some, by name."""
    scored, tuned = ~scores.accuracy.isnan(), ~scores.adapted.isnan()
    ours, unseen = scored & scores.trains, scored & ~scores.trains
    own = scores.accuracy[ours]
    metrics = {
        "accuracy": mean_accuracy(own),
        "accuracy_val": sample_accuracy(own, scores.rows[ours]),
        "variance": variance(own),
        "worst_decile": worst_decile(own),
        "at_target": share_at_target(own, target),
    }
    if bool((ours & tuned).any()):
        metrics["accuracy_adapted"] = mean_accuracy(scores.adapted[ours & tuned])
    if bool(unseen.any()):
        metrics["accuracy_unseen"] = mean_accuracy(scores.accuracy[unseen])
        metrics["accuracy_holdout"] = sample_accuracy(scores.accuracy[unseen], scores.rows[unseen])
    if bool((unseen & tuned).any()):
        metrics["accuracy_unseen_adapted"] = mean_accuracy(scores.adapted[unseen & tuned])
    return metrics
