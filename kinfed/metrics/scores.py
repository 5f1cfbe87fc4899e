"""How every client's model does on its test samples, and what that comes to (methods 5.1 to 5.4, 5.6, 5.12).

The main metric of the model's task is what is compared: the accuracy of a classifier, which is a fraction.
"""

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from kinfed.client_tasks import evaluate, evaluate_adapted, evaluate_all, measured_names
from kinfed.federation import Federation, Replies
from kinfed.method import Method
from kinfed.quality import Metric

State = TypeVar("State")


@dataclass(frozen=True)
class Scores:
    """Every client's main metric after a round; not a number where a client was not scored."""

    main: Tensor  # [clients], its model as served
    adapted: Tensor  # [clients], after local adaptation
    loss: Tensor  # [clients], mean over its test samples
    samples: Tensor  # [clients], test samples
    trains: Tensor  # [clients] bool: it takes part in training


def score_clients(method: Method[State], state: State, fed: Federation, adapt: bool) -> Scores:
    """Every present client scored on its test samples; with `adapt` also after local training, if it has labels."""
    blank = torch.full((fed.count,), torch.nan, dtype=torch.double)
    replies = fed.run(evaluate, fed.real, method.offer(state, fed.real, fed))
    at, samples = replies.cohort.cpu(), replies["samples"].cpu()
    return Scores(
        main=blank.index_copy(0, at, main_metric(method, replies)),
        adapted=score_adapted(method, state, fed) if adapt else blank.clone(),
        loss=blank.index_copy(0, at, replies["loss"].cpu().double() / samples),
        samples=torch.zeros(fed.count, dtype=torch.long).index_copy(0, at, samples),
        trains=torch.isin(torch.arange(fed.count), fed.clients.cpu()),
    )


def score_adapted(method: Method[State], state: State, fed: Federation) -> Tensor:
    """Accuracies after local training, of all clients, unseen ones too, that have labelled samples to train on."""
    sizes = fed.sizes.tolist()
    able = [i for i in fed.real.tolist() if fed.roles[i].labelled and sizes[i]]
    clients = torch.tensor(able, dtype=torch.long, device=fed.device)
    replies: Replies = fed.run(evaluate_adapted, clients, method.offer(state, clients, fed))
    found = main_metric(method, replies)
    return torch.full((fed.count,), torch.nan, dtype=torch.double).index_copy(0, replies.cohort.cpu(), found)


def main_metric(method: Method[State], replies: Replies) -> Tensor:
    """The main metric of clients that replied to an evaluation: [replies]."""
    return method.model.task.finish(accuracy_of(replies["metric"].cpu(), replies["samples"].cpu()))


def summarise_scores(scores: Scores, metric: Metric, target: float) -> dict[str, float]:
    """The main metric of the training clients, and of unseen ones where there are some, by name."""
    scored, tuned = ~scores.main.isnan(), ~scores.adapted.isnan()
    ours, unseen = scored & scores.trains, scored & ~scores.trains
    own, name = scores.main[ours], metric.name
    metrics = {
        name: mean_accuracy(own),
        f"{name}_val": sample_accuracy(own, scores.samples[ours]),
        "variance": variance(own, metric.scale),
        "worst_decile": worst_decile(own, metric.lower_is_better),
        "at_target": share_at_target(own, target, metric.lower_is_better),
    }
    if bool((ours & tuned).any()):
        metrics[f"{name}_adapted"] = mean_accuracy(scores.adapted[ours & tuned])
    if bool(unseen.any()):
        metrics[f"{name}_unseen"] = mean_accuracy(scores.main[unseen])
        metrics[f"{name}_holdout"] = sample_accuracy(scores.main[unseen], scores.samples[unseen])
    if bool((unseen & tuned).any()):
        metrics[f"{name}_unseen_adapted"] = mean_accuracy(scores.adapted[unseen & tuned])
    return metrics


def measure_clients(method: Method[State], state: State, fed: Federation) -> dict[str, float]:
    """All metrics of the task, each the mean over the training clients whose test samples define it."""
    replies = fed.run(evaluate_all, fed.clients, method.offer(state, fed.clients, fed))
    names = measured_names(method)
    values, known = replies["values"].cpu().double(), replies["known"].cpu()
    held = zip(names, values.T, known.T, strict=True)
    return {name: float(value[defined].mean()) for name, value, defined in held if bool(defined.any())}


def accuracy_of(correct: Tensor, samples: Tensor) -> Tensor:
    """Accuracies of clients; not a number for those without test samples."""
    return torch.where(samples > 0, correct.double() / samples.clamp(min=1), torch.nan)


def mean_accuracy(accuracy: Tensor) -> float:
    """The plain mean over clients: each counts the same, however many samples it has."""
    return float(accuracy.double().mean())


def sample_accuracy(accuracy: Tensor, samples: Tensor) -> float:
    """REPA's VAL and HO: the mean over clients weighted by their test samples, so that each sample counts the same."""
    return float((accuracy.double() * samples).sum() / samples.sum())


def standard_error(mean: float, samples: int) -> float:
    """FLT's ±: the binomial standard error √(p(1-p)/N) of an accuracy over N test samples."""
    return float((mean * (1 - mean) / samples) ** 0.5)


def variance(accuracy: Tensor, scale: float = 100.0) -> float:
    """Fairness: population variance over clients in squared percentage points; lower is fairer."""
    return float((scale * accuracy.double()).var(correction=0)) if len(accuracy) else float("nan")


def worst_decile(accuracy: Tensor, lower_is_better: bool = False) -> float:
    """The mean over the tenth of the clients (at least one) that fare worst."""
    worst = accuracy.double().sort(descending=lower_is_better).values[: max(1, len(accuracy) // 10)]
    return float(worst.mean())


def share_at_target(accuracy: Tensor, target: float, lower_is_better: bool = False) -> float:
    """The share of clients that reach the target."""
    return float((accuracy <= target if lower_is_better else accuracy >= target).double().mean())
