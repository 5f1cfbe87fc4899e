"""How alike models are: what they predict on rows that the server owns (FLIS' inference similarity)."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from kinfed.errors import ConfigError
from kinfed.federation import Federation
from kinfed.models import Model
from kinfed.params import Stack, count, select

AT_ONCE = 256  # server rows looked at in one go


def server_samples(fed: Federation) -> Tensor:
    """The rows the server owns; their labels are not looked at."""
    public = fed.population.public
    if not len(public):
        raise ConfigError(
            "models are compared on rows that the server owns, but there are none: "
            "set data.public to a share of the training rows, such as 0.05 (in Python: Population.public)"
        )
    return fed.x[public.to(fed.device)]


def predictions(model: Model, models: Stack, x: Tensor, soft: bool = False) -> Tensor:
    """What each model says of each row: [models, rows, classes], the class it names (bool) or its probabilities."""
    parts = x.split(AT_ONCE)
    each = (torch.cat([model.logits(select(models, m), part) for part in parts]) for m in range(count(models)))
    said = [one[None].softmax(2) if soft else one_hot(one[None].argmax(2), model.classes).bool() for one in each]
    nobody = torch.zeros(0, len(x), model.classes, dtype=torch.float if soft else torch.bool, device=x.device)
    return torch.cat([nobody, *said])


def similarity(some: Tensor, others: Tensor) -> Tensor:
    """The cosine of each with each of the others' predictions: [a, b]; for named classes, how often they agree."""
    dots = torch.zeros(len(some), len(others), dtype=torch.double, device=some.device)
    mine, theirs = dots.new_zeros(len(some)), dots.new_zeros(len(others))
    for part, other in zip(some.split(AT_ONCE, 1), others.split(AT_ONCE, 1), strict=True):
        a, b = part.flatten(1).double(), other.flatten(1).double()
        dots, mine, theirs = dots + a @ b.T, mine + a.square().sum(1), theirs + b.square().sum(1)
    return (dots / (mine[:, None] * theirs).sqrt()).nan_to_num(0.0)  # who predicts nothing finite is like nobody


def inference_similarity(model: Model, models: Stack, x: Tensor, soft: bool = False) -> Tensor:
    """How alike each two of these models are on these rows: [models, models], 1 for a model and itself."""
    said = predictions(model, models, x, soft)
    return similarity(said, said)
