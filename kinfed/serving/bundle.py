"""A bundle: all that it takes to assign an unseen client to its model, as one JSON and one safetensors file.

It holds the method's settings and the part of its last state that unseen clients need: the models, the encoder, and
what the clients that trained were assigned by. It holds no client's samples. Each file has a digest of itself, and the
JSON names that of the tensors.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from kinfed.capabilities import FindsClusters, reason_for_labels
from kinfed.checkpoint import MALFORMED, Tree, state_of, take_apart
from kinfed.config import Config, Table, flatten, read
from kinfed.config.assembly import make_method, model_for
from kinfed.data.arrays import Array, SampleKind
from kinfed.engines.sequential import unpack_offer
from kinfed.errors import BundleError, DataError, FileError, KinfedError, RoleError
from kinfed.files import (
    BLANK,
    check_finite,
    check_seal,
    clear_unfinished,
    digest_content,
    load_tensors,
    refuse_device,
    save_tensors,
    seal_text,
    write_bytes,
)
from kinfed.method import Method
from kinfed.models import MODELS, encoder_shape, make_model
from kinfed.models.module_checks import list_sizes
from kinfed.params import NOTHING, Params, model_in, select
from kinfed.registry import refuse_code
from kinfed.serving.assignment import Assignment, UnseenClientFederation
from kinfed.targets import forget_targets, is_known, require_targets

FORMAT = 3
JSON, TENSORS = "bundle.json", "bundle.safetensors"
BEGINS = '{\n "format": '  # bundle.json
CONFIG = ("method", "model", "seed", "task", "inputs", "training")  # and the method's own settings
MOST = 10_000  # of whatever a setting counts: epochs, steps, clusters, dimensions
ROUNDS = (  # when something happens
    "after",
    "every",
    "isolation",
    "recluster_every",
    "rounds_before",
    "stable_rounds",
    "step_rounds",
    "warm_rounds",
)
HARMLESS = (
    "seed",
    "batch_size",
    "tuning_batch_size",
    "samples",
    "schedule_rounds",
    "tuning_decay_epochs",
    "warm_up",
    *ROUNDS,
)  # of any size
MOST_EPOCHS = 1_000
MOST_A_SAMPLE = 100  # steps of training for each sample of a client
MOST_WEIGHTS = 2**26  # of a built-in network of which the bundle does not hold a quarter
MOST_TOKENS = 2**16  # of a sample
MOST_ACTIVATIONS = 2**25  # bytes of its largest output for a sample
TRUST = "if you trust its maker, use --trust"


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

        `test` (x, y) are samples that it does not learn from; the assignment has the model's main metric on them.
        """
        samples, labels = self.kind.check(x, y, "the client's samples", self.config.task)
        require_targets(labels, "the client's samples")
        reason = reason_for_labels(self.method)
        if reason and not bool(is_known(labels).all()):
            raise DataError(f"labels are missing, but {reason}; give y, or export a run of flt")
        tests = self.kind.check(*test, "its test samples", self.config.task) if test else (samples[:0], labels[:0])
        require_targets(tests[1], "its test samples", or_none=False)
        fed = UnseenClientFederation(self.method, self.sizes, self.server_samples, (samples, labels), tests)
        try:
            return fed.assign(self.state, self.kind)
        except KinfedError:
            raise
        except MALFORMED as error:
            what = f"{type(error).__name__}: {error}"
            raise BundleError(f"the bundle cannot assign this client, its state does not fit: {what}") from error

    def list_models(self) -> dict[int | None, Params]:
        """The model that a client of each cluster is served before it trains; of one for all, the cluster is None.

        RoleError where a method serves no whole model.
        """
        blank = self.kind.nobody().x[:1]
        own = (blank, forget_targets(self.kind.targets(None, 1, self.config.task)))
        fed = UnseenClientFederation(self.method, self.sizes, self.server_samples, own, (blank[:0], own[1][:0]))
        assignment = self.method.cluster_assignment(self.state) if isinstance(self.method, FindsClusters) else None
        clusters = [None] * len(self.sizes) if assignment is None else assignment[: len(self.sizes)].tolist()
        first = {cluster: clusters.index(cluster) for cluster in sorted(set(clusters), key=str) if cluster != -1}
        return {cluster: self._find_model(fed, cluster, client) for cluster, client in first.items()}

    def _find_model(self, fed: UnseenClientFederation, cluster: int | None, client: int) -> Params:
        """The model of a cluster that this client trained in."""
        found: Params = {}
        offer = unpack_offer(fed, self.method.offer(self.state, torch.tensor([client]), fed), 0)
        if "params" in offer:
            found = model_in(offer, "params")
        elif "models" in offer and cluster is not None:  # clients choose among all
            found = model_in({"body": NOTHING, **offer}, "body") | select(model_in(offer, "models"), cluster)
        if found.keys() != self.method.model.init().keys():
            raise RoleError(
                f"{self.config.method} serves no whole model: a client completes it. Use `kinfed assign --format`"
            )
        return found

    def save(self, folder: str | Path) -> None:
        """Writes both files."""
        folder = Path(folder)
        tensors: dict[str, Tensor] = {"sizes": self.sizes, "server_samples": self.server_samples}
        tree = take_apart(self.state, "state", tensors)
        folder.mkdir(parents=True, exist_ok=True)
        clear_unfinished(folder)
        save_tensors(folder / TENSORS, tensors)
        settings = self.config.resolve()
        method = {self.config.method: cast("Table", settings["methods"])[self.config.method]}
        table: Table = {"format": FORMAT, "digest": BLANK, "kinfed": version("kinfed")}
        table |= self.about | {"samples": vars(self.kind)}
        table |= {"config": {name: settings[name] for name in CONFIG} | {"methods": method}}
        table |= {"tensors": digest_content(tensors, {}), "state": tree}
        text = seal_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n")
        write_bytes(folder / JSON, text.encode(), private=True)


def method_of(config: Config, kind: SampleKind) -> Method[object]:
    """The method of this config for samples of this kind."""
    return make_method(config, model_for(config, kind.nobody()))


def load(folder: str | Path, trust: bool = False) -> Bundle:
    """The bundle in this folder; only with `trust` is code imported that it names, such as a method of its maker's."""
    folder = Path(folder)
    table = read_json(folder / JSON)
    tensors = read_tensors(folder / TENSORS, table.get("tensors"))
    try:
        with refuse_code(f"the bundle {folder}", trust):
            if not trust:
                check_counts(table["config"])
            config, kind = read(cast("Table", table["config"])), SampleKind.read(table["samples"])
            if not trust:
                check_epochs(config)
                check_size(config, kind, sum(tensor.numel() for tensor in tensors.values()))
            check_server_samples(tensors["server_samples"], kind)
            method = method_of(config, kind)
            state = state_of(method, cast(Tree, table["state"]), tensors)
        about = {name: table[name] for name in table if name not in ("format", "digest", "config", "tensors", "state")}
        return check_bundle(Bundle(config, kind, state, tensors["sizes"], tensors["server_samples"], about))
    except KinfedError as error:
        raise BundleError(f"the bundle {folder} cannot be used: {error}") from error
    except MALFORMED as error:
        raise BundleError(f"{folder / JSON} is incomplete, {error} is missing or invalid: export it again") from error


def check_counts(settings: object, key: str = "") -> None:
    """Raise BundleError for the first setting whose count would keep `assign` busy for ever, or fill memory."""
    name = key.rpartition(".")[2]
    if isinstance(settings, dict):
        for inner, value in settings.items():
            check_counts(value, f"{key}.{inner}" if key else str(inner))
    elif isinstance(settings, list):
        for value in settings:
            check_counts(value, key)
    elif isinstance(settings, int) and settings > MOST and name not in HARMLESS:
        raise BundleError(f"{key} is {settings:,}, at most {MOST:,} is allowed; {TRUST}")


def check_epochs(config: Config) -> None:
    """Raise BundleError for the first setting by which a client would train for hours."""
    batch = config.training.batch_size
    most = min(MOST_EPOCHS, MOST_A_SAMPLE * batch)
    for key, value in flatten(config.resolve()).items():
        name, is_own = key.rpartition(".")[2], key.startswith(("training.", f"methods.{config.method}."))
        if not is_own or not name.endswith("epochs") or name in HARMLESS or ".pretraining." in key:
            continue
        if isinstance(value, int) and value > most:
            raise BundleError(
                f"{key} is {value:,}, at most {most:,} are allowed with {batch} samples in a batch: a client would "
                f"train for long; {TRUST}"
            )


def check_size(config: Config, kind: SampleKind, held: int) -> None:
    """Raise BundleError where networks for samples of this shape fill memory; the bundle holds so many numbers."""
    x, most = kind.nothing(), max(MOST_WEIGHTS, 4 * held)
    latent = flatten(config.resolve()).get(f"methods.{config.method}.signature.latent")
    if isinstance(latent, int):
        refuse_more(f"an encoder to {latent} numbers", prod(encoder_shape(x)) * latent, "weights", most)
    if x.dtype == torch.int64:
        refuse_more("a sample", prod(kind.shape), "token ids", MOST_TOKENS)
    if config.model not in MODELS:
        return
    with torch.device("meta"), torch.no_grad(), suppress(RuntimeError):  # of networks that do not take such samples
        network = make_model(config.model, kind.shape, kind.classes, task=config.task).build().eval()
        what = f"model {config.model} for samples of shape {list(kind.shape)} and {kind.classes} classes"
        refuse_more(what, sum(weight.numel() for weight in network.parameters()), "weights", most)
        one = torch.zeros(1, *kind.shape, dtype=x.dtype if x.dtype == torch.int64 else torch.float32)
        refuse_more(what, max(list_sizes(lambda _, x: network(x), {}, one)), "bytes in an output", MOST_ACTIVATIONS)


def refuse_more(what: str, number: int, kind: str, most: int) -> None:
    """Raise BundleError where something has more than is allowed."""
    if number > most:
        raise BundleError(f"{what} has {number:,} {kind}, at most {most:,} are allowed; {TRUST}")


def check_server_samples(samples: Tensor, kind: SampleKind) -> None:
    """Raise BundleError unless these are samples of this kind: before a network is built for them."""
    if samples.shape[1:] != kind.shape or samples.dtype != kind.nothing().dtype:
        raise BundleError(f"the server's samples are {samples.dtype} {list(samples.shape)}, unlike those of clients")


def check_bundle(bundle: Bundle) -> Bundle:
    """The same; raises BundleError where its parts do not fit together."""
    sizes, about = bundle.sizes, bundle.about
    if sizes.dtype != torch.int64 or sizes.ndim != 1 or not bool((sizes >= 0).all()):
        raise BundleError(f"sizes are {sizes.dtype} {list(sizes.shape)}, wanted a number of samples for each client")
    if not isinstance(about.get("assignment_rule"), str) or not isinstance(about.get("clusters"), list):
        raise BundleError("it does not say how clients are assigned, and to which clusters")
    return bundle


def read_json(path: Path) -> Table:
    """The table in bundle.json, if it is of this format and undamaged."""
    with explain_damage(path):
        refuse_device(path)
    try:
        text = path.read_bytes().decode()
        table = json.loads(text)
    except (FileNotFoundError, NotADirectoryError):
        raise BundleError(f"no bundle at {path.parent}: wanted a folder that `kinfed export` wrote") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{path} cannot be read ({error}): it is damaged; export the run again") from error
    found = table.get("format") if isinstance(table, dict) else None
    if found != FORMAT:
        raise BundleError(f"{path} has format {found!r}, this kinfed reads {FORMAT}: {remedy(found)}")
    with explain_damage(path):
        check_seal(text, table.get("digest"))
    return cast("Table", table)


def remedy(found: object) -> str:
    """What to do about a bundle of another format."""
    is_older = isinstance(found, int) and found < FORMAT
    return "run and export it again with this kinfed" if is_older else "use the kinfed that wrote it"


def read_tensors(path: Path, wanted: object) -> dict[str, Tensor]:
    """The tensors of a bundle, if they are those that were written, and all finite."""
    with explain_damage(path):
        tensors, _ = load_tensors(path)
        if digest_content(tensors, {}) != wanted:
            raise FileError("it is not the one that bundle.json was written with")
        check_finite(tensors)
    return tensors


@contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Inside it a file that is missing or damaged is an error in one line."""
    try:
        yield
    except (FileError, OSError) as error:
        raise BundleError(f"{path} is not what was exported: {error}; copy or export the whole bundle again") from error
