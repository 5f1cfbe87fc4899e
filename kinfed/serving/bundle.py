"""A bundle: all that it takes to assign an unseen client to its model, as one JSON and one safetensors file.

It holds the method's settings and the part of its last state that unseen clients need: the models, the encoder, and
what the clients that trained were assigned by. It holds no client's samples.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import cast

from safetensors.torch import load_file
from torch import Tensor

from kinfed.capabilities import reason_for_labels
from kinfed.checkpoint import Tree, state_of, take_apart
from kinfed.config import Config, Table, read
from kinfed.config.assembly import make_method, model_for
from kinfed.data.arrays import Array, SampleKind
from kinfed.errors import BundleError, DataError, KinfedError
from kinfed.method import Method
from kinfed.runs.logs import write_text
from kinfed.serving.assignment import Assignment, UnseenClientFederation, write_tensors

FORMAT = 2
JSON, TENSORS = "bundle.json", "bundle.safetensors"
CONFIG = ("method", "model", "seed", "training")  # and the method's own settings


@dataclass(frozen=True)
class Bundle:
    """A method as a run left it, ready to serve unseen clients."""

    config: Config
    kind: SampleKind
    state: object
    sizes: Tensor  # [clients] training samples of each client that trained
    server_samples: Tensor  # [n, ...]; none, unless the method compares models on them
    about: Table  # where it is from, how it assigns, how well it did

    @cached_property
    def method(self) -> Method[object]:
        """The method, as the run had it."""
        return method_of(self.config, self.kind)

    def assign(self, x: Array, y: Array | None = None, test: tuple[Array, Array] | None = None) -> Assignment:
        """The model of a client with these samples: x [n, ...], and y [n] where it has labels.

        `test` (x, y) are samples that it does not learn from; the assignment has the model's accuracy on them.
        """
        samples, labels = self.kind.check(x, y, "the client's samples")
        reason = reason_for_labels(self.method)
        if reason and bool((labels < 0).any()):
            raise DataError(f"labels are missing, but {reason}; give y, or export a run of flt")
        tests = self.kind.check(*test, "its test samples") if test else (samples[:0], labels[:0])
        fed = UnseenClientFederation(self.method, self.sizes, self.server_samples, (samples, labels), tests)
        return fed.assign(self.state, self.kind)

    def save(self, folder: Path) -> None:
        """Writes both files."""
        tensors: dict[str, Tensor] = {"sizes": self.sizes, "server_samples": self.server_samples}
        tree = take_apart(self.state, "state", tensors)
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / TENSORS, tensors)
        settings = self.config.resolve()
        method = {self.config.method: cast("Table", settings["methods"])[self.config.method]}
        table: Table = {"format": FORMAT, "kinfed": version("kinfed"), **self.about, "samples": vars(self.kind)}
        table |= {"config": {name: settings[name] for name in CONFIG} | {"methods": method}}
        table |= {"sha256": compute_sha256(folder / TENSORS), "state": tree}
        write_text(folder / JSON, json.dumps(table, indent=1, ensure_ascii=False) + "\n")


def method_of(config: Config, kind: SampleKind) -> Method[object]:
    """The method of this config for samples of this kind."""
    return make_method(config, model_for(config, kind.nobody()))


def load(folder: str | Path, trust: bool = False) -> Bundle:
    """The bundle in this folder; only with `trust` is a model that is the user's own code imported."""
    folder = Path(folder)
    table = read_json(folder / JSON)
    tensors = read_tensors(folder / TENSORS, table.get("sha256"))
    try:
        config, kind = read(cast("Table", table["config"])), SampleKind.read(table["samples"])
        if ":" in config.model and not trust:
            raise BundleError(f"its model is code of its maker, '{config.model}': trust it (--trust) to import that")
        method = method_of(config, kind)
        state = state_of(method, cast(Tree, table["state"]), tensors)
        about = {name: table[name] for name in table if name not in ("format", "config", "sha256", "state")}
        return Bundle(config, kind, state, tensors["sizes"], tensors["server_samples"], about)
    except KinfedError as error:
        raise BundleError(f"the bundle {folder} cannot be used: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise BundleError(f"{folder / JSON} is incomplete, {error} is missing or invalid: export it again") from error


def read_json(path: Path) -> Table:
    """The table in bundle.json, if it is of this format."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BundleError(f"no bundle at {path.parent}: wanted a folder that `kinfed export` wrote") from None
    except (OSError, ValueError) as error:
        raise BundleError(f"{path} cannot be read ({error}): it is damaged; export the run again") from error
    found = table.get("format") if isinstance(table, dict) else None
    if found != FORMAT:
        raise BundleError(f"{path} has format {found!r}, this kinfed reads {FORMAT}: {remedy(found)}")
    return cast("Table", table)


def remedy(found: object) -> str:
    """What to do about a bundle of another format."""
    is_older = isinstance(found, int) and found < FORMAT
    return "run and export it again with this kinfed" if is_older else "use the kinfed that wrote it"


def read_tensors(path: Path, wanted: object) -> dict[str, Tensor]:
    """The tensors of a bundle, if they are those that were written."""
    try:
        is_complete = compute_sha256(path) == wanted
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error}; copy or export the whole bundle again") from error
    if not is_complete:
        raise BundleError(f"{path} is not what was exported: it is damaged or cut off; copy or export it again")
    return load_file(path)


def compute_sha256(path: Path) -> str:
    """The SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
