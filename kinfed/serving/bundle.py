"""A bundle: all that it takes to place a stranger and hand it its model, as one JSON and one safetensors file.

It holds the method's settings and the part of its last state that strangers need: the models, the encoder, and what
placed the clients that trained. It holds no client's rows.
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
from kinfed.config import Config, read
from kinfed.config.assembly import make_method, model_for
from kinfed.config.tables import Table
from kinfed.data.arrays import Array
from kinfed.data.sample_kind import SampleKind
from kinfed.errors import BundleError, DataError, KinfedError
from kinfed.method import Method
from kinfed.runs.logs import write_text
from kinfed.serving.assigned import Assigned
from kinfed.serving.desk import Desk
from kinfed.serving.files import write_tensors

FORMAT = 1
JSON, TENSORS = "bundle.json", "bundle.safetensors"
CONFIG = ("method", "model", "seed", "training")  # and the method's own settings


@dataclass(frozen=True)
class Bundle:
    """A method as it was left by a run, ready to serve strangers."""

    config: Config
    rows: SampleKind
    state: object
    sizes: Tensor  # [clients] rows of each that trained
    server_samples: Tensor  # [n, ...]; none, unless the method compares models on them
    about: Table  # for people: where it is from, how it places, how well it did

    @cached_property
    def method(self) -> Method[object]:
        """The method, as the run had it."""
        return method_of(self.config, self.rows)

    def assign(self, x: Array, y: Array | None = None, test: tuple[Array, Array] | None = None) -> Assigned:
        """The model of a client with these rows: x [n, ...], and y [n] where it has labels.

        `test` (x, y) are rows that it does not learn from; the model's accuracy on them is noted.
        """
        rows, labels = self.rows.checked(x, y, "the client's rows")
        reason = reason_for_labels(self.method)
        if reason and bool((labels < 0).any()):
            raise DataError(f"labels are missing, but {reason}; give y, or export a run of flt")
        tested = self.rows.checked(*test, "its test rows") if test else (rows[:0], labels[:0])
        return Desk(self.method, self.sizes, self.server_samples, (rows, labels), tested).serve(self.state, self.rows)

    def save(self, folder: Path) -> None:
        """Writes both files."""
        tensors: dict[str, Tensor] = {"sizes": self.sizes, "server_samples": self.server_samples}
        tree = take_apart(self.state, "state", tensors)
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / TENSORS, tensors)
        settings = self.config.resolve()
        method = {self.config.method: cast("Table", settings["methods"])[self.config.method]}
        said: Table = {"format": FORMAT, "kinfed": version("kinfed"), **self.about, "rows": vars(self.rows)}
        said |= {"config": {name: settings[name] for name in CONFIG} | {"methods": method}}
        said |= {"sha256": digest(folder / TENSORS), "state": tree}
        write_text(folder / JSON, json.dumps(said, indent=1, ensure_ascii=False) + "\n")


def method_of(config: Config, rows: SampleKind) -> Method[object]:
    """The method of this config for rows of this kind."""
    return make_method(config, model_for(config, rows.nobody()))


def load(folder: str | Path, trust: bool = False) -> Bundle:
    """The bundle in this folder; only with `trust` is a model that is the user's own code imported."""
    folder = Path(folder)
    said = read_json(folder / JSON)
    tensors = read_tensors(folder / TENSORS, said.get("sha256"))
    try:
        config, rows = read(cast("Table", said["config"])), SampleKind.read(said["rows"])
        if ":" in config.model and not trust:
            raise BundleError(f"its model is code of its maker, '{config.model}': trust it (--trust) to import that")
        method = method_of(config, rows)
        state = state_of(method, cast(Tree, said["state"]), tensors)
        about = {name: said[name] for name in said if name not in ("format", "config", "sha256", "state")}
        return Bundle(config, rows, state, tensors["sizes"], tensors["server_samples"], about)
    except KinfedError as error:
        raise BundleError(f"the bundle {folder} cannot be used: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise BundleError(f"{folder / JSON} is not whole, {error} is missing or wrong: export it again") from error


def read_json(path: Path) -> Table:
    """What bundle.json says, if this kinfed understands it."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BundleError(f"no bundle at {path.parent}: wanted a folder that `kinfed export` wrote") from None
    except (OSError, ValueError) as error:
        raise BundleError(f"{path} cannot be read ({error}): it is damaged; export the run again") from error
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        got = said.get("format") if isinstance(said, dict) else None
        raise BundleError(f"{path} has format {got!r}, this kinfed reads {FORMAT}: use the kinfed that wrote it")
    return said


def read_tensors(path: Path, wanted: object) -> dict[str, Tensor]:
    """The tensors of a bundle, if they are those that were written."""
    try:
        is_whole = digest(path) == wanted
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error}; copy or export the whole bundle again") from error
    if not is_whole:
        raise BundleError(f"{path} is not what was exported: it is damaged or cut off; copy or export it again")
    return load_file(path)


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
