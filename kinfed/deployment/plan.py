"""What server and nodes of a deployment agree on beside the config, since nobody sees all the samples."""

from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from kinfed.aggregation import DEPLOYED, MEAN, Aggregation
from kinfed.checks import above_zero, at_least, fraction, within
from kinfed.client_tasks import networks_of
from kinfed.config import Config, read_toml
from kinfed.config.assembly import make_method, model_for
from kinfed.config.schema import build
from kinfed.data.arrays import LARGEST_SAMPLE, SampleKind, ServerSamples, check_finite, refuse_unknown_tokens
from kinfed.data.population import check_classes
from kinfed.deployment.node_data import load_folder
from kinfed.engines.flower.deployed import DEPLOYED_PATIENCE
from kinfed.engines.flower.node import ClientData
from kinfed.errors import ConfigError, DataError
from kinfed.learning_tasks import LearningTask
from kinfed.method import Method
from kinfed.targets import is_known, require_targets

KINDS = {"uint8": torch.uint8, "float32": torch.float32, "int64": torch.int64}


@dataclass(frozen=True)
class Plan:
    """How many clients there can be, what their samples look like, and when training begins."""

    clients: int  # at most, late-joining ones included
    shape: tuple[int, ...]  # of one sample
    classes: int
    dtype: str = "uint8"  # of samples: uint8 for images, int64 for token ids, else float32
    wait_for: int = 1  # clients that must have enrolled before training begins
    wait_seconds: float = 600.0
    server_samples: str = ""  # a folder with the server's own samples, where the method needs some
    quorum: float = DEPLOYED_PATIENCE.quorum  # share of the asked clients that must reply before a deadline is set
    grace_seconds: float = DEPLOYED_PATIENCE.grace  # that the others have then, or as long again
    max_samples: int = 10**7  # that a client may say it has
    class_names: tuple[str, ...] = ()  # of the classes, where tables of clients name them
    feature_names: tuple[str, ...] = ()  # columns of a client's table, in this order; none: all but the target
    bind_names: bool = True  # a name belongs to one node's key; false only where nodes have no keys of their own

    def __post_init__(self) -> None:
        if not 1 <= self.wait_for <= self.clients or self.classes < 1 or self.dtype not in KINDS:
            raise ConfigError(
                f"wanted 1 <= wait_for <= clients, some classes and a dtype of {', '.join(KINDS)}; got wait_for "
                f"{self.wait_for}, clients {self.clients}, classes {self.classes}, dtype {self.dtype!r}"
            )
        fraction(quorum=self.quorum)
        within(1, 2**40, max_samples=self.max_samples)
        above_zero(wait_seconds=self.wait_seconds)
        at_least(0, grace_seconds=self.grace_seconds)
        check_classes(self.classes)
        if self.class_names and len(set(self.class_names)) != self.classes:
            raise ConfigError(f"wanted {self.classes} different class_names, or none, got {list(self.class_names)}")
        if min(self.shape, default=0) < 1 or prod(self.shape) > LARGEST_SAMPLE:
            raise ConfigError(f"shape must be sizes of at least 1 as in 3,32,32, got {list(self.shape)}")

    @property
    def kind(self) -> SampleKind:
        """What a sample looks like."""
        return SampleKind(self.shape, self.dtype, self.classes)

    def load_server_samples(self) -> ServerSamples:
        """The server's own samples; none, but of the right kind, where it has no folder."""
        if not self.server_samples:
            x = torch.empty(0, *self.shape, dtype=KINDS[self.dtype])
            return ServerSamples(x, torch.empty(0).long(), self.classes, self.class_names, self.feature_names)
        try:
            data = self.check(load_folder(Path(self.server_samples)))
        except DataError as error:
            raise DataError(f"server_samples of plan.toml is '{self.server_samples}', but {error}") from error
        return ServerSamples(data.x, data.y, self.classes, self.class_names, self.feature_names)

    def targets(self, y: Tensor, task: LearningTask) -> Tensor:
        """Targets as this task has them; of a client that has none for some samples, as they are."""
        has_all = len(y) and bool(is_known(y).all())
        return self.kind.targets(y.numpy(), len(y), task) if has_all or not task.has_classes() else y

    def check(self, data: ClientData, task: LearningTask | None = None) -> ClientData:
        """The same data, with targets as this task has them; raises DataError where the samples are not as planned."""
        if task:
            data = data._replace(y=self.targets(data.y, task), test_y=self.targets(data.test_y, task))
            require_targets(data.y, "training samples")
            require_targets(data.test_y, "test samples", or_none=False)
        if self.dtype == "int64":
            data = data._replace(x=as_tokens(data.x), test_x=as_tokens(data.test_x))
        for x, y in ((data.x, data.y), (data.test_x, data.test_y)):
            if tuple(x.shape[1:]) != self.shape or x.dtype != KINDS[self.dtype] or len(x) != len(y):
                raise DataError(
                    f"wanted samples {self.dtype} {list(self.shape)} and as many labels, got {x.dtype} "
                    f"{list(x.shape[1:])}, {len(x)} samples and {len(y)} labels"
                )
            check_finite(x.numpy())
            refuse_unknown_tokens(x, self.classes, "samples", task)
            if not y.is_floating_point() and len(y) and not (int(y.min()) >= -1 and int(y.max()) < self.classes):
                raise DataError(f"wanted labels 0..{self.classes - 1}, -1 for none, got {int(y.min())}..{int(y.max())}")
        return data


def as_tokens(x: Tensor) -> Tensor:
    """Token ids; DataError where these are none."""
    if len(x) and (bool((x < 0).any()) or bool((x != x.long()).any())):
        raise DataError(f"token ids must be whole numbers from 0 on, got {x.min():g}..{x.max():g}")
    return x.long()


def make_planned_method(config: Config, plan: Plan, samples: ServerSamples) -> Method[object]:
    """The method of this config; raises where it, or one of its networks, does not take samples like these."""
    method = make_method(config, model_for(config, samples.population(plan.clients)))
    networks_of(method, plan.shape)
    return method


def choose_aggregation(config: Config) -> Aggregation:
    """The rule of a deployment: as it is set, else norm clipping, or the mean where the server sees sums alone."""
    return config.aggregation or (MEAN if config.privacy.secure_aggregation else DEPLOYED)


def read_plan(path: Path) -> Plan:
    """The plan in a TOML file."""
    return build(Plan, read_toml(path), "plan")
