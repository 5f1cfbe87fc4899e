"""Client tasks that every method has: evaluation, and the update that a served model would get."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar, cast

import torch
from torch import Tensor
from torch.func import vmap

from kinfed.capabilities import SelectsModel, SendsNetworks, ServesNetwork
from kinfed.client import ASKS_GPU, Batch, Client, Reply, Samples, Task, client_task, mark_of
from kinfed.errors import ConfigError
from kinfed.fastpath import compute_logits, has_evaluation_kernels
from kinfed.federation import Replies
from kinfed.learning_tasks import MOST, LearningTask, OwnMetrics, is_built_in
from kinfed.method import Method
from kinfed.models import Model
from kinfed.params import NOTHING, Params, Payload, Stack, Value, count, flatten, lanes_first, select, subtract
from kinfed.quality import MEASURED
from kinfed.ranges import FLAG, SLACK, Facts, Range
from kinfed.targets import fill_unknown
from kinfed.training import LocalTraining

State = TypeVar("State")


def find_task_of(facts: Facts) -> LearningTask:
    """What the method's model learns."""
    return cast("Method[object]", facts.method).model.task


def limit_scores(facts: Facts, sign: int) -> Tensor:
    """What the scores of a client's test samples come to at least (-1) or at most (1)."""
    task = find_task_of(facts)
    each = task.most() if sign > 0 else task.least()
    slack = 0.0 if is_built_in(task) else SLACK * abs(each)  # sums of one's own are rounded
    return (facts.test * (each + sign * slack)).clamp(-MOST, MOST)


def least_loss(facts: Facts) -> float:
    """The least loss: those of a task of one's own, as of a likelihood, may be negative."""
    return 0.0 if is_built_in(find_task_of(facts)) else -torch.finfo().max


SCORES = {
    "metric": Range(lambda facts: limit_scores(facts, -1), lambda facts: limit_scores(facts, 1)),
    "samples": Range(lambda facts: facts.test, lambda facts: facts.test),
    "loss": Range(least_loss, torch.finfo().max),
}


@client_task(ranges=SCORES, takes_outputs=True)
def evaluate(method: Method[object], client: Client, **offer: Value) -> Reply:
    """Client task: how its model does on its test samples."""
    model = find_client_model(method)
    if client.test.outputs is None:
        return Reply(score(model, method.personalise(client, offer), client.test))
    return Reply(sum_scores(model, client.test, predict(method, client, offer)))


@client_task(ranges=SCORES)
def evaluate_adapted(method: Method[object], client: Client, **offer: Value) -> Reply:
    """Client task: the same after some epochs of local training."""
    model = find_client_model(method)
    adapted, _ = method.local.for_adaptation()(client, method.personalise(client, offer), model.gradient)
    return Reply(score(model, adapted, client.test))


def find_limits(facts: Facts) -> tuple[Tensor, Tensor]:
    """The least and the largest number of each metric of a whole test set: a share is one, an error not negative.

    [1, metrics] each. Metrics of the user's own may have any size, and so may the main one of a task of one's own.
    """
    method, task = cast("Method[object]", facts.method), find_task_of(facts)
    own = "" if is_built_in(task) else task.metric().name
    known = [None if name == own else MEASURED.get(name) for name in task.measured()]
    known += [None] * (len(measured_names(method)) - len(known))
    least = [-MOST if m is None or not (m.unit == "%" or m.lower_is_better) else 0.0 for m in known]
    most = [MOST if m is None or m.unit != "%" else 1 + SLACK for m in known]
    low, high = torch.tensor([least, most], dtype=torch.double, device=facts.train.device)[:, None]
    return low, high


VALUES = Range(lambda facts: find_limits(facts)[0], lambda facts: find_limits(facts)[1])


@client_task(ranges={"values": VALUES, "known": FLAG}, takes_outputs=True)
def evaluate_all(method: Method[object], client: Client, **offer: Value) -> Reply:
    """Client task: all metrics of the task on its test samples, and which of them are defined there."""
    names, model = measured_names(method), find_client_model(method)
    client.execution.reads.add(ASKS_GPU)
    parts = [(output, batch.y, batch.mask) for batch, output in predict(method, client, offer)]
    if not parts:
        nothing = torch.zeros(len(names), device=client.key.device)
        return Reply({"values": nothing, "known": nothing > 0})
    apply = cast("Callable[..., tuple[Tensor, Tensor]]", _Measure.apply)
    values, known = apply(model.task, names, *(torch.cat(part) for part in zip(*parts, strict=True)))
    return Reply({"values": values, "known": known})


COUNTS = Range(0, lambda facts: facts.test, total=(0, lambda facts: facts.test))


@client_task(ranges={"counts": COUNTS}, takes_outputs=True)
def count_predictions(method: Method[object], client: Client, **offer: Value) -> Reply:
    """Client task: how many of its test samples of each class (row) are taken for each class (column).

    [classes, classes + 1]: the last column counts outputs that are not finite, which stand for no class.
    """
    model = find_client_model(method)
    columns = torch.arange(model.classes + 1, device=client.key.device)
    classes = columns[:-1]
    counts = torch.zeros(len(classes), len(columns), device=columns.device)
    for batch, output in predict(method, client, offer):
        said = torch.where(torch.isfinite(output).all(1), output.argmax(1), model.classes)
        held = (fill_unknown(batch.y)[:, None] == classes) & batch.mask[:, None]
        counts = counts + held.float().T @ (said[:, None] == columns).float()
    return Reply({"counts": counts})


def predict(method: Method[object], client: Client, offer: Payload) -> Iterator[tuple[Batch, Tensor]]:
    """A client's test samples in batches, and what the model that it uses makes of each.

    Where an engine has evaluated the samples already, the batches have no x.
    """
    test, known = client.test, client.test.outputs
    if known is None:
        return compute_batches(find_client_model(method), method.personalise(client, offer), test)
    if known.model is None:
        return test.look_up(known, cast("SelectsModel", method).select_offered(client, offer))
    return test.look_up(known, known.model)


def measured_names(method: Method[State]) -> tuple[str, ...]:
    """The names of the metrics that clients measure of their whole test sets, in order."""
    task = method.model.task
    return (*task.measured(), *(task.metric_names if isinstance(task, OwnMetrics) else ()))


class _Measure(torch.autograd.Function):
    """The metrics of a client's outputs as one operation: a vmap hands over the plain tensors of all its clients."""

    @staticmethod
    def forward(
        task: LearningTask, names: tuple[str, ...], output: Tensor, y: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        values, known = _Measure.measure_lanes(task, names, [t[None] for t in (output, y, mask)])
        return values[0], known[0]

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        """Nothing is kept: nobody differentiates a metric."""

    @staticmethod
    def vmap(
        info: object, dims: tuple[int | None, ...], task: LearningTask, names: tuple[str, ...], *lane: Tensor
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return _Measure.measure_lanes(task, names, lanes_first(info, lane, dims[2:])), (0, 0)

    @staticmethod
    def measure_lanes(task: LearningTask, names: tuple[str, ...], lanes: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The values of all lanes, and which of them are defined: [lanes, names]."""
        found = [measure(task, *lane) for lane in zip(*(t.cpu() for t in lanes), strict=True)]
        values = [[own.get(name, 0.0) for name in names] for own in found]
        known = [[name in own for name in names] for own in found]
        device = lanes[0].device
        return torch.tensor(values, device=device), torch.tensor(known, device=device)


def measure(task: LearningTask, output: Tensor, y: Tensor, mask: Tensor) -> dict[str, float]:
    """All metrics of the task for these outputs; none where there are no samples."""
    if not bool(mask.any()):
        return {}
    output, y = output[mask], y[mask]
    return task.measure(output, y) | (task.measure_own(output, y) if isinstance(task, OwnMetrics) else {})


@client_task(key="differ_from_served")  # its first name: another key would draw other batches, and change results
def compute_update(method: Method[object], client: Client, **offer: Value) -> Reply:
    """Client task: Δw, what local training changes in the model it uses."""
    start, model = method.personalise(client, offer), find_client_model(method)
    return train_update(method.local.outside_rounds, client, start, model)


def select_weights(model: Model, models: Stack) -> Stack:
    """What is compared of models: weights without buffers, for batch-norm statistics are no place of a gradient's."""
    return {name: models[name] for name in model.weights}


def flatten_updates(model: Model, replies: Replies) -> Tensor:
    """What training changed in these clients' weights: [replies, parameters]."""
    return flatten(select_weights(model, replies.stack("update")))


def train_update(local: LocalTraining, client: Client, params: Params, model: Model) -> Reply:
    """Client: Δw, what local training changes in these weights of a model."""
    trained, _ = local(client, params, model.gradient)
    return Reply({"update": subtract(trained, params)})


COMMON: dict[str, Task] = {
    "evaluate": evaluate,
    "evaluate_adapted": evaluate_adapted,
    "evaluate_all": evaluate_all,
    "count_predictions": count_predictions,
    "compute_update": compute_update,
}


def find_task(method: object, name: str) -> Task:
    """The task of this name: the method's own, or one that every method has."""
    own: Task | None = getattr(method, name, None)
    if own is not None and mark_of(own):
        return own
    if name in COMMON:
        return partial(COMMON[name], method)
    raise ConfigError(f"'{name}' is no client task of {type(method).__name__}, nor one that every method has")


def networks_of(method: Method[State], shape: tuple[int, ...]) -> tuple[Params, ...]:
    """The networks whose weights clients may be sent: the model, unless the method has others."""
    return method.networks(shape) if isinstance(method, SendsNetworks) else (method.model.init(),)


def find_client_model(method: Method[State]) -> Model:
    """The network that a client uses in the end: the method's model, unless it serves another."""
    return method.client_model() if isinstance(method, ServesNetwork) else method.model


def is_sequential(task: Task) -> bool:
    """Whether engines run this task client by client."""
    mark = mark_of(task)
    return mark is not None and mark.sequential


def score(model: Model, params: Params, samples: Samples) -> dict[str, Tensor]:
    """The summed scores (NaN: the worst), the samples in all, and the summed loss (not finite: the largest number).

    The scores of a classifier are the samples classified rightly.
    """
    found = sum_scores(model, samples, compute_batches(model, params, samples))
    if len(samples):
        return found
    return {**found, "metric": found["metric"].to(type_of_scores(model, params, samples))}


def compute_batches(model: Model, params: Params, samples: Samples) -> Iterator[tuple[Batch, Tensor]]:
    """Samples in batches, and what a model makes of each."""
    return ((batch, compute_logits(model, params, batch.x)) for batch in samples.in_order())


def sum_scores(model: Model, samples: Samples, outputs: Iterable[tuple[Batch, Tensor]]) -> dict[str, Tensor]:
    """The same of outputs for each batch of the samples."""
    total, loss = torch.zeros_like(samples.size), torch.zeros((), device=samples.size.device)
    for batch, output in outputs:
        total = total + model.scores_of(output, batch).sum()
        loss = loss + (model.task.losses(output, fill_unknown(batch.y)) * batch.mask).sum()
    if total.is_floating_point():
        task = model.task
        worst = task.most() if task.metric().lower_is_better else task.least()
        total = torch.where(total.isnan(), samples.size * worst, total).clamp(-MOST, MOST)
    largest = torch.finfo().max  # that of double precision would be out of range
    finite = torch.nan_to_num(loss, nan=largest).clamp(-largest, largest)
    return {"metric": total, "samples": samples.size.clone(), "loss": finite}


def score_each(
    model: Model, models: Stack, samples: Samples, body: Mapping[str, Tensor] = NOTHING
) -> dict[str, Tensor]:
    """The same of each model of a stack, [models]; they may be some layers, and `body` the others."""
    if has_evaluation_kernels(model, samples.x):
        found: dict[str, Tensor] = vmap(lambda one: score(model, {**body, **one}, samples))(models)
        return found
    scores = [score(model, {**body, **select(models, m)}, samples) for m in range(count(models))]
    return {name: torch.stack([one[name] for one in scores]) for name in scores[0]}


def type_of_scores(model: Model, params: Params, samples: Samples) -> torch.dtype:
    """The type that sums of scores have: a client without samples sends the same as others."""
    x, y = (torch.zeros(1, *t.shape[1:], dtype=t.dtype, device=t.device) for t in (samples.x, samples.y))
    return model.task.scores(model.logits(params, x), y).sum().dtype
