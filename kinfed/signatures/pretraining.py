"""How the server gets an encoder: trained on another dataset or on its own public samples, or read from a file.

A source is "mnist", or several datasets with some of their labels: "cifar10+cifar100[11,20]" is all of CIFAR-10 and two
classes of CIFAR-100. "enc1" and "enc2" are the datasets of FLT's encoders (section V), for grey and for colour images.
"""

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from kinfed.checks import above_zero, at_least
from kinfed.client import Batch, Client, Samples
from kinfed.cuda_graphs import CudaGraphs
from kinfed.data import is_stored, load
from kinfed.data.datasets import cache_folder, fingerprint
from kinfed.errors import ConfigError, DataError, FileError, ModelError
from kinfed.files import check_finite, load_tensors, lock, save_tensors
from kinfed.keys import base_key
from kinfed.models import AutoEncoder, Network
from kinfed.models.module_checks import weights_of
from kinfed.params import Params

log = logging.getLogger("kinfed")
NAMED = {  # FLT's encoders: by channels of an image
    "enc1": {1: "emnist_balanced", 3: "cifar10+cifar100[11,20,22,31,37,51,54,65,86,90]"},
    "enc2": {1: "fashion_mnist", 3: "cifar100[3,8,13,15,20,22,25,29,31,37,43,46,51,54,65,84,85,86,90,92]"},
}


@dataclass(frozen=True)
class Pretraining:
    """Auto-encoder training on the server (FLT: Adam, mean squared error)."""

    source: str = "public"  # the server's own samples; or datasets by name (enc1, enc2: FLT's), a .safetensors file
    data_dir: str = ""  # where the dataset is; empty: the usual place
    epochs: int = 25  # of the auto-encoder
    batch_size: int = 64  # samples of a step
    lr: float = 1e-3  # learning rate of Adam
    least_steps: int = 300  # where samples are few, so many epochs more
    samples: int = 0  # of a dataset, at most so many; 0: all

    def __post_init__(self) -> None:
        at_least(0, epochs=self.epochs, least_steps=self.least_steps, samples=self.samples)
        at_least(1, batch_size=self.batch_size)
        above_zero(lr=self.lr)

    def __call__(self, autoencoder: AutoEncoder, public: Tensor) -> Params:
        """The weights of the auto-encoder, on the device of the public samples."""
        if self.source.endswith(".safetensors"):
            return from_file(Path(self.source), autoencoder.init(), public.device)
        if self._is_public(public):
            return self._train(autoencoder, public)
        return self.name_datasets(public.shape[1:])._cached(autoencoder, public)

    def load(self, public: Tensor) -> Tensor:
        """The samples that encoders are trained on: the public ones, or others that are as these are."""
        if self._is_public(public):
            return public
        sources = parse_sources(self.name_datasets(public.shape[1:]).source)
        parts = [part.load_as(public.shape[1:], self.data_dir) for part in sources]
        return torch.cat(parts)[:: self._stride(sum(map(len, parts)))].to(public.device)

    def check(self, shape: torch.Size) -> None:
        """Raises where the encoder's source, unless it is the server's own samples, is not here nor can be fetched."""
        if self.source.endswith(".safetensors"):
            if not Path(self.source).is_file():
                raise DataError(f"no encoder at {self.source}: give an existing .safetensors file, or name a dataset")
        elif self.source != "public":
            for part in parse_sources(self.name_datasets(shape).source):
                if not is_stored(part.name, self.data_dir or None):
                    load(part.name, self.data_dir or None)

    def name_datasets(self, shape: torch.Size) -> "Pretraining":
        """The same with the datasets of FLT's encoder for samples of this shape, where its source is one by name."""
        if self.source not in NAMED:
            return self
        found = NAMED[self.source].get(shape[0]) if len(shape) == 3 else None
        if found is None:
            raise ConfigError(
                f"FLT's encoder '{self.source}' is for images of one or three channels, got samples of shape "
                f"{list(shape)}: name a dataset of that shape as the source"
            )
        return replace(self, source=found)

    def _is_public(self, public: Tensor) -> bool:
        """Whether the server's own samples are meant, of which there must be some then."""
        if self.source == "public" and not len(public):
            raise ConfigError(
                "the encoder should be trained on the server's public samples, but there are none: set "
                "data.public = 0.1 (in Python: OwnSettings(public=0.1)), or name another dataset or a file as the "
                "encoder's source"
            )
        return self.source == "public"

    def _cached(self, autoencoder: AutoEncoder, public: Tensor) -> Params:
        """Trained once per content of the datasets and setting, then kept in the user's cache folder."""
        self.check(public.shape[1:])
        names = [part.name for part in parse_sources(self.source)]
        contents = [fingerprint(name, self.data_dir or None) for name in names]
        shapes = [f"{name}{tuple(w.shape)}" for name, w in autoencoder.init().items()]
        settings = (*astuple(replace(self, data_dir="")), *contents, autoencoder.seed, *shapes)
        digest = hashlib.blake2b(repr(settings).encode(), digest_size=8).hexdigest()
        path = cache_folder("encoders") / f"{'+'.join(names)}-{digest}.safetensors"
        if not is_whole(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with lock(path.with_suffix(".lock"), waits="waiting for another process, which pre-trains this encoder"):
                if not is_whole(path):  # another process may have trained it meanwhile
                    save_tensors(path, self._train(autoencoder, self.load(public)))
        return from_file(path, autoencoder.init(), public.device)

    def _stride(self, count: int) -> int:
        """Every so many samples one is taken, of all parts and labels alike."""
        return -(-count // self.samples) if self.samples else 1

    def _train(self, autoencoder: AutoEncoder, x: Tensor) -> Params:
        per_epoch = -(-len(x) // self.batch_size)
        epochs = max(self.epochs, -(-self.least_steps // per_epoch))
        log.info("pre-training the encoder on %d samples (%s), %d epochs", len(x), self.source, epochs)
        batches = _as_client(x).batches(epochs, self.batch_size)
        return fit(
            autoencoder, _move(autoencoder.init(), x.device), _log_progress(batches, epochs * per_epoch), self.lr
        )


def _as_client(x: Tensor) -> Client:
    """The server's samples, as a client's."""
    n = torch.tensor(len(x), device=x.device)
    own = Samples(
        x, torch.zeros(len(x), dtype=torch.long, device=x.device), torch.arange(len(x), device=x.device), n, exact=True
    )
    key, zero = torch.tensor(base_key("pretraining"), device=x.device), torch.zeros_like(n)
    return Client(own, own, key, zero, zero, {})


def _log_progress(batches: Iterable[Batch], steps: int) -> Iterator[Batch]:
    """The same batches; every tenth of the way is logged."""
    for done, batch in enumerate(batches, 1):
        yield batch
        if done % max(1, steps // 10) == 0:
            log.info("pre-training the encoder: %d %%", round(100 * done / steps))


def is_whole(path: Path) -> bool:
    """Whether a file in the cache is there and undamaged; otherwise it is made anew."""
    try:
        load_tensors(path)
    except FileNotFoundError:
        return False
    except FileError as error:
        log.warning("the encoder %s is not used, %s: training it anew", path, error)
        return False
    return True


def from_file(path: Path, wanted: Params, device: torch.device) -> Params:
    """The weights in a file, which must have the names and shapes of those wanted; what else it holds is left out."""
    try:
        weights = load_tensors(path, must_be_sealed=False)[0]
        check_finite(weights)
    except (OSError, FileError) as error:
        raise DataError(f"cannot read the encoder {path}: {error}") from error
    for name, tensor in wanted.items():
        if name not in weights or weights[name].shape != tensor.shape:
            got = tuple(weights[name].shape) if name in weights else "nothing"
            raise ModelError(
                f"the encoder {path} does not fit: wanted {name} of shape {tuple(tensor.shape)}, got {got}"
            )
    return _move({name: weights[name].to(tensor.dtype) for name, tensor in wanted.items()}, device)


def _move(params: Params, device: torch.device) -> Params:
    return {name: w.to(device) for name, w in params.items()}


PART = re.compile(r"([A-Za-z0-9_-]+)(\[[\d, ]+\])?")


@dataclass(frozen=True)
class Source:
    """Training samples of a dataset: all, or those of some labels."""

    name: str
    labels: tuple[int, ...] = ()

    def load(self, data_dir: str) -> Tensor:
        """The samples: [n, channels, height, width]."""
        found = load(self.name, data_dir or None)
        chosen = np.isin(found.y_train, self.labels) if self.labels else slice(None)
        return torch.from_numpy(found.x_train[chosen])

    def load_as(self, shape: torch.Size, data_dir: str) -> Tensor:
        """The samples, which must be of the shape that the clients' samples have."""
        samples = self.load(data_dir)
        if samples.shape[1:] != shape:
            raise ConfigError(
                f"the encoder's source '{self.name}' has samples of shape {list(samples.shape[1:])}, the clients' "
                f"are of shape {list(shape)}: name a dataset of that shape, or 'public' for samples of the server's own"
            )
        return samples


def parse_sources(text: str) -> list[Source]:
    """The datasets that a source names."""
    found = []
    for word in text.split("+"):
        part = PART.fullmatch(word.strip())
        if part is None:
            raise ConfigError(f"wanted datasets as in mnist or cifar10+cifar100[11,20], got the source '{text}'")
        found.append(Source(part[1], tuple(int(label) for label in re.findall(r"\d+", part[2] or ""))))
    return found


WARM_UP = 3  # eager steps before one is captured
MOST = 4  # shapes of batches whose steps are captured


def fit(network: Network, start: Params, batches: Iterable[Batch], lr: float) -> Params:
    """The weights after a step of Adam on each of these batches; without padding, and on the weights' device."""
    trainer = AdamTrainer(network, network.module_with(start), lr)
    for batch in batches:
        trainer.step(batch)
    return weights_of(trainer.module)


class AdamTrainer:
    """A module in training."""

    def __init__(self, network: Network, module: nn.Module, lr: float) -> None:
        self.network, self.module = network, module
        self.on_gpu = next(module.parameters()).is_cuda
        self.optimiser = torch.optim.Adam(module.parameters(), lr, fused=True, capturable=self.on_gpu)
        self.graphs = CudaGraphs(MOST, WARM_UP)

    def step(self, batch: Batch) -> None:
        """One step of Adam."""
        inputs = {name: t for name, t in batch._asdict().items() if isinstance(t, Tensor)}

        def take(tensors: Params) -> Params:
            self._step(Batch(**tensors, exact=batch.exact))
            return {}

        if self.on_gpu:
            self.graphs.run("step", take, inputs)
        else:
            take(inputs)

    def _step(self, batch: Batch) -> None:
        self.module.train(not self.network.needs_evaluation_mode(batch))
        loss = self.network.loss_of(self.module(self.network.inputs(batch.x)), batch).mean()
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad()  # last: a capture must not free what eager steps left
