"""How the server comes to an encoder: trained on another dataset or on its own public rows, or read from a file."""

import hashlib
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from kinfed.checks import above_zero, at_least
from kinfed.client import Batch, Client, Samples
from kinfed.data.datasets import cache_folder
from kinfed.errors import ConfigError, DataError, ModelError
from kinfed.keys import base_key
from kinfed.locks import lock
from kinfed.models import AutoEncoder
from kinfed.params import Params
from kinfed.server_training import fit
from kinfed.signatures.sources import sources

log = logging.getLogger("kinfed")


@dataclass(frozen=True)
class Pretraining:
    """Auto-encoder training on the server (FLT: Adam, mean squared error)."""

    source: str = "public"  # "public": the server's own rows; datasets by name, see sources.py; or a .safetensors file
    data_dir: str = ""  # where the dataset is; empty: the usual place
    epochs: int = 25  # of the auto-encoder
    batch_size: int = 64  # rows of a step
    lr: float = 1e-3  # learning rate of Adam
    least_steps: int = 300  # where rows are few, so many epochs more
    rows: int = 0  # of a dataset, at most so many; 0: all

    def __post_init__(self) -> None:
        at_least(0, epochs=self.epochs, least_steps=self.least_steps, rows=self.rows)
        at_least(1, batch_size=self.batch_size)
        above_zero(lr=self.lr)

    def __call__(self, autoencoder: AutoEncoder, public: Tensor) -> Params:
        """The weights of the auto-encoder, on the device of the public rows."""
        if self.source.endswith(".safetensors"):
            return from_file(Path(self.source), autoencoder.init(), public.device)
        if self.source != "public":
            return self._cached(autoencoder, public)
        if not len(public):
            raise ConfigError(
                "the encoder should be trained on the server's public rows, but there are none: set "
                "data.public = 0.1 (in Python: Population.public), or name another dataset or a file as the encoder's "
                "source"
            )
        return self._train(autoencoder, public)

    def _cached(self, autoencoder: AutoEncoder, public: Tensor) -> Params:
        """Trained once per dataset and setting, then kept in the user's cache folder."""
        shapes = [f"{name}{tuple(w.shape)}" for name, w in autoencoder.init().items()]
        settings = (*astuple(self), autoencoder.seed, *shapes)
        digest = hashlib.blake2b(repr(settings).encode(), digest_size=8).hexdigest()
        path = cache_folder("encoders") / f"{'+'.join(part.name for part in sources(self.source))}-{digest}.safetensors"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with lock(path.with_suffix(".lock")):
                if not path.exists():  # another process may have trained it meanwhile
                    self._keep(path, autoencoder, public)
        return from_file(path, autoencoder.init(), public.device)

    def _keep(self, path: Path, autoencoder: AutoEncoder, public: Tensor) -> None:
        """Trains on the datasets, whose rows must be as the public ones are, and writes the weights to a file."""
        parts = [part.fitting(public.shape[1:], self.data_dir) for part in sources(self.source)]
        rows = torch.cat(parts)[:: self._stride(sum(map(len, parts)))]
        weights = self._train(autoencoder, rows.to(public.device))
        beside = path.with_suffix(f".{os.getpid()}.new")
        save_file({name: w.cpu().contiguous() for name, w in weights.items()}, beside)
        beside.replace(path)

    def _stride(self, count: int) -> int:
        """Every so many rows one is taken, of all parts and labels alike."""
        return -(-count // self.rows) if self.rows else 1

    def _train(self, autoencoder: AutoEncoder, x: Tensor) -> Params:
        per_epoch = -(-len(x) // self.batch_size)
        epochs = max(self.epochs, -(-self.least_steps // per_epoch))
        log.info("pre-training the encoder on %d rows (%s), %d epochs", len(x), self.source, epochs)
        batches = _as_client(x).batches(epochs, self.batch_size)
        return fit(autoencoder, _on(autoencoder.init(), x.device), _told(batches, epochs * per_epoch), self.lr)


def _as_client(x: Tensor) -> Client:
    """The server's rows, dressed as a client's."""
    n = torch.tensor(len(x), device=x.device)
    rows = Samples(
        x, torch.zeros(len(x), dtype=torch.long, device=x.device), torch.arange(len(x), device=x.device), n, exact=True
    )
    key, zero = torch.tensor(base_key("pretraining"), device=x.device), torch.zeros_like(n)
    return Client(rows, rows, key, zero, zero, {})


def _told(batches: Iterable[Batch], steps: int) -> Iterator[Batch]:
    """The same batches; every tenth of the way is logged."""
    for done, batch in enumerate(batches, 1):
        yield batch
        if done % max(1, steps // 10) == 0:
            log.info("pre-training the encoder: %d %%", round(100 * done / steps))


def from_file(path: Path, wanted: Params, device: torch.device) -> Params:
    """The weights in a file, which must have the names and shapes of those wanted; what else it holds is left out."""
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"cannot read the encoder {path}: {error}") from error
    for name, tensor in wanted.items():
        if name not in weights or weights[name].shape != tensor.shape:
            got = tuple(weights[name].shape) if name in weights else "nothing"
            raise ModelError(
                f"the encoder {path} does not fit: wanted {name} of shape {tuple(tensor.shape)}, got {got}"
            )
    return _on({name: weights[name] for name in wanted}, device)


def _on(params: Params, device: torch.device) -> Params:
    return {name: w.to(device) for name, w in params.items()}
