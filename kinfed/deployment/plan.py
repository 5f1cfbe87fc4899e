"""What server and nodes of a deployment agree on beside the config, since nobody sees all the samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kinfed.aggregation import DEPLOYED, MEAN, Aggregation
from kinfed.checks import above_zero, at_least, fraction, within
from kinfed.client_tasks import networks_of
from kinfed.config import Config, read_toml
from kinfed.config.assembly import make_method, model_for
from kinfed.config.schema import build
from kinfed.data.arrays import LARGEST_SAMPLE, ServerSamples, as_features, as_labels
from kinfed.data.partitions.split import others
from kinfed.data.population import check_classes
from kinfed.data.readers import TABLES, read_own_table
from kinfed.engines.flower.deployed import DEPLOYED_PATIENCE
from kinfed.engines.flower.node import ClientData
from kinfed.errors import ConfigError, DataError, FileError
from kinfed.files import Arrays, read_arrays, write_arrays
from kinfed.method import Method
from kinfed.targets import as_numbers

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
        if min(self.shape, default=0) < 1 or prod(self.shape) > LARGEST_SAMPLE:
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
        if self.dtype == "int64":
            data = data._replace(x=as_tokens(data.x), test_x=as_tokens(data.test_x))
        for x, y in ((data.x, data.y), (data.test_x, data.test_y)):
            if tuple(x.shape[1:]) != self.shape or x.dtype != KINDS[self.dtype] or len(x) != len(y):
                raise DataError(
                    f"wanted samples {self.dtype} {list(self.shape)} and as many labels, got {x.dtype} "
                    f"{list(x.shape[1:])}, {len(x)} samples and {len(y)} labels"
                )
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


FILE, OLD_FILE = "samples.npz", "rows.npz"


def load_folder(folder: Path, class_names: Sequence[str] = ()) -> ClientData:
    """The samples in the folder's `samples.npz`, or in its table `samples.csv` or `samples.parquet`."""
    for suffix in TABLES:
        if not has_samples(folder) and (table := folder / f"samples{suffix}").exists():
            return load_file(table, class_names)
    if not has_samples(folder) and (folder / OLD_FILE).exists():
        raise DataError(f"{OLD_FILE} was renamed {FILE}: rename {folder / OLD_FILE}")
    return load_file(folder / FILE)


def has_samples(folder: Path) -> bool:
    """Whether a folder has a `samples.npz`."""
    return (folder / FILE).exists()


def load_file(path: Path, class_names: Sequence[str] = ()) -> ClientData:
    """The samples in an .npz file: x and test_x, and y and test_y where there are labels; or in a table.

    Images are uint8 [n, h, w], [n, h, w, 3] or [n, 3, h, w], other samples are taken as float32. Without `y` a client
    wants a model and does not train; without `test_x` it is not evaluated.
    """
    if path.suffix.lower() in TABLES:
        return load_table(path, class_names)
    arrays = read_samples(path)
    x = torch.from_numpy(as_features(arrays["x"]))
    y = as_targets(arrays["y"]) if "y" in arrays else torch.full((len(x),), -1)
    if len(alone := {"test_x", "test_y"} & set(arrays)) == 1:
        raise DataError(f"{path} has {alone.pop()} alone; wanted test_x and test_y, or neither")
    if "test_x" not in arrays:
        return ClientData(x, y, x[:0], y[:0])
    return ClientData(x, y, torch.from_numpy(as_features(arrays["test_x"])), as_targets(arrays["test_y"]))


def load_table(path: Path, class_names: Sequence[str]) -> ClientData:
    """The samples in a table of one client; a class that is not among those known is refused."""
    features, targets, test = read_own_table(path, class_names)
    x = torch.from_numpy(features)
    y = torch.full((len(x),), -1) if targets is None else as_targets(targets)
    train = torch.from_numpy(others(len(x), test))
    return ClientData(x[train], y[train], x[test], y[test])


def as_targets(y: npt.NDArray[np.generic]) -> Tensor:
    """Labels as int64, numbers as float32."""
    return torch.from_numpy(as_numbers(y, "y") if y.dtype.kind == "f" else as_labels(y))


def read_samples(path: Path) -> Arrays:
    """The arrays of an .npz file, among them x."""
    try:
        arrays = read_arrays(path)
    except (OSError, FileError) as error:
        raise DataError(f"{path} cannot be read: {error}; wanted an .npz of arrays x, y, test_x, test_y") from error
    if "x" not in arrays:
        raise DataError(f"{path} has no array x, only {', '.join(arrays) or 'nothing'}")
    return arrays


def save_folder(folder: Path, arrays: dict[str, Tensor]) -> None:
    """Writes samples as `load_folder` reads them; they are their owner's alone."""
    folder.mkdir(parents=True, exist_ok=True)
    write_arrays(folder / FILE, {name: t.numpy() for name, t in arrays.items()})
