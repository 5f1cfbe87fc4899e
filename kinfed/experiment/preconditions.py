"""What must hold before the first round: of settings, of clients, and of the model and its targets."""

import logging
from typing import TypeVar

from kinfed import checkpoint as checkpoints
from kinfed.capabilities import require_labels, require_private_signatures, require_private_training, require_sums
from kinfed.checks import at_least
from kinfed.data.population import Population
from kinfed.errors import ConfigError, ModelError
from kinfed.experiment.evaluation_settings import Evaluation
from kinfed.federation import Federation
from kinfed.method import Method
from kinfed.models import Model

State = TypeVar("State")
log = logging.getLogger("kinfed")


def check_experiment(
    method: Method[State], fed: Federation, rounds: int, checkpoint_every: int, evaluation: Evaluation
) -> None:
    """Raises ConfigError or ModelError where method, clients and settings cannot make an experiment."""
    at_least(1, rounds=rounds, checkpoint_every=checkpoint_every)
    if evaluation.correlation and not fed.sees_samples:
        raise ConfigError(
            "evaluation.correlation needs all clients' samples, which a deployed server does not have; leave it out"
        )
    require_sums(method, fed)
    require_private_signatures(method, fed)
    require_private_training(method, fed)
    if fed.privacy.secure_aggregation and (evaluation.correlation or evaluation.signatures == "all"):
        raise ConfigError(
            "evaluation.correlation and evaluation.signatures = 'all' ask for each client's update, which "
            "privacy.secure_aggregation hides; leave them out"
        )
    require_labels(method, fed.unlabelled, fed)
    if not len(fed.clients):
        raise ConfigError("no client trains from the first round on: leave some neither late, holdout nor unlabelled")
    checkpoints.find_state_type(method)
    check_model(method.model, fed)
    if method.model.task.metric().unit == "%" and evaluation.target > 1:
        raise ConfigError(f"evaluation.target is a share from 0 to 1, got {evaluation.target}")


def check_model(model: Model, fed: Federation) -> None:
    """Raise ModelError unless the model takes the clients' samples, where they are here, and has all their classes."""
    if model.classes < fed.population.classes:
        raise ModelError(f"the model has {model.classes} classes, wanted the {fed.population.classes} of the data")
    check_targets(model, fed.population)
    if fed.sees_samples and len(fed.population.x) > 1:
        model.check(fed.population.x[:2])
        model.check_sequences(fed.population.x, fed.population.y)
        model.check_scores(fed.population.x, fed.population.y)
        if doubt := model.doubt_samples(fed.population.x, fed.population.feature_names):
            log.warning("%s", doubt)
        if doubt := model.task.doubt_targets(fed.population.y):
            log.warning("%s", doubt)


def check_targets(model: Model, population: Population) -> None:
    """Raise ConfigError where the targets cannot be those of the model's task."""
    task, y = model.task, population.y
    if len(y) and y.is_floating_point() == task.has_classes():
        kind = "numbers" if y.is_floating_point() else "classes"
        raise ConfigError(f"the targets are {kind}, and the task is {type(task).__name__}: set another task.name")
