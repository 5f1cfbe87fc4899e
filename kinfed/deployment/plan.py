"""What server and nodes of a deployment agree on beside the config, since nobody sees all the samples."""

from dataclasses import dataclass
from pathlib import Path

import torch

from kinfed.client_tasks import networks_of
from kinfed.config import Config, read_toml
from kinfed.config.assembly import make_method, model_for
from kinfed.config.schema import build
from kinfed.data.arrays import ServerSamples
from kinfed.deployment.samples_file import load_folder
from kinfed.engines.flower.node import ClientData
from kinfed.errors import ConfigError, DataError
from kinfed.method import Method

KINDS = {"uint8": torch.uint8, "float32": torch.float32}


@dataclass(frozen=True)
class Plan:
    """How many clients there can be, what their samples look like, and when training begins."""

    clients: int  # at most, late-joining ones included
    shape: tuple[int, ...]  # of one sample
    classes: int
    dtype: str = "uint8"  # of samples: uint8 for images, else float32
    wait_for: int = 1  # clients that must have enrolled before training begins
    wait_seconds: float = 600.0
    server_samples: str = ""  # a folder with the server's own samples, where the method needs some

    def __post_init__(self) -> None:
        if not 1 <= self.wait_for <= self.clients or self.classes < 1 or self.dtype not in KINDS:
            raise ConfigError(
                f"wanted 1 <= wait_for <= clients, some classes and a dtype of {', '.join(KINDS)}; got wait_for "
                f"{self.wait_for}, clients {self.clients}, classes {self.classes}, dtype {self.dtype!r}"
            )
        if min(self.shape, default=0) < 1:
            raise ConfigError(f"shape must be sizes of at least 1 as in 3,32,32, got {list(self.shape)}")

    def load_server_samples(self) -> ServerSamples:
        """The server's own samples; none, but of the right kind, where it has no folder."""
        if not self.server_samples:
            x = torch.empty(0, *self.shape, dtype=KINDS[self.dtype])
            return ServerSamples(x, torch.empty(0).long(), self.classes)
        try:
            data = self.check(load_folder(Path(self.server_samples)))
        except DataError as error:
            raise DataError(f"server_samples of plan.toml is '{self.server_samples}', but {error}") from error
        return ServerSamples(data.x, data.y, self.classes)

    def check(self, data: ClientData) -> ClientData:
        """The same data; raises DataError where the samples are not as planned."""
        for x, y in ((data.x, data.y), (data.test_x, data.test_y)):
            if tuple(x.shape[1:]) != self.shape or x.dtype != KINDS[self.dtype] or len(x) != len(y):
                raise DataError(
                    f"wanted samples {self.dtype} {list(self.shape)} and as many labels, got {x.dtype} "
                    f"{list(x.shape[1:])}, {len(x)} samples and {len(y)} labels"
                )
            if len(y) and not (int(y.min()) >= -1 and int(y.max()) < self.classes):
                raise DataError(f"wanted labels 0..{self.classes - 1}, -1 for none, got {int(y.min())}..{int(y.max())}")
        return data


def make_planned_method(config: Config, plan: Plan, samples: ServerSamples) -> Method[object]:
    """The method of this config; raises where it, or one of its networks, does not take samples like these."""
    method = make_method(config, model_for(config, samples.population(plan.clients)))
    networks_of(method, plan.shape)
    return method


def read_plan(path: Path) -> Plan:
    """The plan in a TOML file."""
    return build(Plan, read_toml(path), "plan")
