"""What FLIS' two methods share: the similarity of what models predict, and models that clients keep.

Where labels or tokens are learnt, each of them is compared; where numbers are, it is the cosine of the outputs.
A client uses the model it trained itself when it last took part, and remembers it; one that never took part uses the
first model, an unseen client that has not trained yet what it is served.
"""

from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from kinfed.client import Client, Reply
from kinfed.clustering.hierarchy import Linkage, search_height
from kinfed.errors import ConfigError
from kinfed.fastpath import compute_each, has_evaluation_kernels
from kinfed.federation import Federation
from kinfed.learning_tasks import LearningTask, MultiLabel
from kinfed.method import Method
from kinfed.models import Model
from kinfed.params import Params, Payload, Stack, count, each_leaf, select

State = TypeVar("State")
AT_ONCE = {"cuda": 1024}  # samples; a GPU waits for the launches of small products
FEW = 256  # samples at once elsewhere
SIDE_BY_SIDE = 16  # models
CANDIDATES = 100  # similarities that are tried
ROUNDING = 1e-9


def server_samples(fed: Federation) -> Tensor:
    """The samples that the server owns; their labels are not used."""
    public = fed.population.public
    if not len(public):
        raise ConfigError(
            "models are compared on samples that the server owns, but there are none: "
            "set data.public to a share of the training samples, such as 0.05 (in Python: OwnSettings(public=0.05))"
        )
    return fed.x[public.to(fed.device)]


def samples_at_once(x: Tensor) -> int:
    """How many samples are predicted or compared by one operation on the device of these."""
    return AT_ONCE.get(x.device.type, FEW)


def predict(model: Model, models: Stack, x: Tensor, soft: bool = False) -> Tensor:
    """What each model predicts: [models, samples, classes], its class (bool) or its probabilities; or numbers."""
    together = SIDE_BY_SIDE if has_evaluation_kernels(model, x) else 1
    said: list[Tensor] = []
    for begin in range(0, count(models), together):
        some = select(models, slice(begin, begin + together))
        outputs = torch.cat([compute_each(model, some, part) for part in x.split(samples_at_once(x))], 1)
        said += [as_predictions(model.task, output, soft) for output in outputs]
    return torch.stack(said) if said else torch.zeros(0, len(x), model.classes, device=x.device)


def as_predictions(task: LearningTask, output: Tensor, soft: bool) -> Tensor:
    """What is compared of an output: [n, classes], of tokens and labels for each of them; numbers as they are."""
    if isinstance(task, MultiLabel):
        output = torch.stack([output, torch.zeros_like(output)], -1)  # it has the label, or has not
    elif not task.has_classes():
        return output.flatten(1)
    flat = output.flatten(0, -2)
    return flat.softmax(1) if soft else one_hot(flat.argmax(1), flat.shape[1]).bool()


def compare_predictions(some: Tensor, others: Tensor) -> Tensor:
    """The cosine of each with each of the others' predictions: [a, b]; for classes, how often they agree."""
    dots = torch.zeros(len(some), len(others), dtype=torch.double, device=some.device)
    mine, theirs = dots.new_zeros(len(some)), dots.new_zeros(len(others))
    size = samples_at_once(some)
    for part, other in zip(some.split(size, 1), others.split(size, 1), strict=True):
        a, b = part.flatten(1).double(), other.flatten(1).double()
        dots, mine, theirs = dots + a @ b.T, mine + a.square().sum(1), theirs + b.square().sum(1)
    return (dots / (mine[:, None] * theirs).sqrt()).nan_to_num(
        0.0
    )  # a model that predicts nothing finite is like no other


def search_beta(alike: Tensor, linkage: Linkage, doubted: int = 0) -> float:
    """The similarity at which clusters of these models ([m, m]) have the best silhouette; 0 where none is good."""
    height = search_height(1 - alike, linkage, CANDIDATES, doubted)  # the merge at it is not made
    return max(0.0, 1 - height + ROUNDING)


def inference_similarity(model: Model, models: Stack, x: Tensor, soft: bool = False) -> Tensor:
    """How alike each two of these models are on these samples: [models, models], 1 for a model and itself."""
    said = predict(model, models, x, soft)
    return compare_predictions(said, said)


def first_memory(model: Model) -> Payload:
    """Client: the first model is its own."""
    return {"params": model.init(), "owns": torch.ones((), dtype=torch.bool)}


def train_own(method: Method[State], client: Client, start: Params) -> Reply:
    """Client: what training from `start` gives, sent and remembered."""
    trained, _ = method.local(client, start, method.model.gradient)
    return Reply({"params": trained}, keep={"params": trained, "owns": torch.ones_like(client.recall("owns"))})


def drop_own(client: Client, reply: Reply) -> Reply:
    """Client: this reply, after which it uses what it is served."""
    return reply._replace(keep={"owns": torch.zeros_like(client.recall("owns"))})


def own_or(client: Client, served: Params) -> Params:
    """Client: the model it trained last, or what it is served."""
    owns = client.recall("owns")
    return each_leaf(lambda mine, other: torch.where(owns, mine, other), client.recall_model("params"), served)
