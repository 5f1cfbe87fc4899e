"""An unseen client is assigned and served: by the method's own rules, with no other client there."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from kinfed.capabilities import AssignsUnseen, FindsClusters, JudgesAssignment
from kinfed.client import Client, Samples
from kinfed.client_tasks import find_client_model, score
from kinfed.data.arrays import Array, SampleKind
from kinfed.data.population import NO_SAMPLES, Population, Role
from kinfed.engines.sequential import Sequential, make_client, unpack_offer
from kinfed.errors import ConfigError, DataError, FileError
from kinfed.files import SEAL, begins_with, read_metadata, refuse_foreign, save_tensors
from kinfed.keys import base_key, fold, seed_generators
from kinfed.method import Method
from kinfed.models import Model
from kinfed.params import Params, select
from kinfed.runs.logs import write_text
from kinfed.targets import forget_targets, is_known

LabelledSamples = tuple[Tensor, Tensor]  # x and y
MODEL, ASSIGNMENT = "model.safetensors", "assignment.json"
ASSIGNMENT_BEGINS = '{\n "cluster": '
BATCH = 256  # samples


@dataclass(frozen=True)
class Assignment:
    """A client's model, its cluster, and its distances to that and the other clusters."""

    model: Model
    params: Params
    kind: SampleKind  # of the samples it takes
    cluster: int | None  # None: the method has no clusters, or none for this client
    distances: dict[int, float]  # to each cluster, by the method's own measure; empty where it has none
    samples: int  # by which it was assigned
    test_samples: int
    test_metric: float | None  # the main metric on test samples; None: there are none
    fits: bool | None = None  # whether it fits any cluster; None: the method does not test it
    p_value: float | None = None  # how often a client of its cluster is as far from it
    probability: float | None = None  # of its cluster, if it belongs to any

    @property
    def nearest(self) -> list[int]:
        """The clusters, nearest first."""
        return sorted(self.distances, key=self.distances.__getitem__)

    @property
    def margin(self) -> float | None:
        """How sure the cluster is: 1 - nearest / next distance, so 0 is a tie and 1 a perfect match."""
        first = [self.distances[cluster] for cluster in self.nearest[:2]]
        return 1 - first[0] / first[1] if len(first) == 2 and first[1] > 0 else None

    def predict(self, x: Array) -> Tensor:
        """The task's prediction for samples as in training: [n, classes] probabilities, or [n, k] numbers."""
        samples, _ = self.kind.check(x, None, "the samples to predict", self.model.task)
        with torch.no_grad():
            outputs = torch.cat([self.model.logits(self.params, part) for part in samples.split(BATCH)])
            return self.model.task.predict(outputs)

    def module(self) -> nn.Module:
        """The network itself with its weights, in evaluation mode; it takes images scaled to 0..1."""
        network = self.model.build_module()
        network.load_state_dict(self.params, strict=False)  # counters of batch norm are not weights
        return network.eval()

    def summary(self) -> dict[str, object]:
        """All but the weights, as JSON."""
        judged: dict[str, object] = {"fits": self.fits, "p_value": self.p_value, "probability": self.probability}
        return {
            "cluster": self.cluster,
            "distance": None if self.cluster is None else self.distances.get(self.cluster),
            "margin": self.margin,
            "distances": {str(cluster): self.distances[cluster] for cluster in self.nearest},
            "samples": self.samples,
            "test_samples": self.test_samples,
            f"test_{self.model.task.metric().name}": self.test_metric,
            **(judged if self.fits is not None else {}),
        }

    def save(self, folder: Path, about: dict[str, object]) -> None:
        """Writes the weights, and beside them the summary and what else is said about them."""
        folder.mkdir(parents=True, exist_ok=True)
        save_tensors(folder / MODEL, self.params, private=False)
        write_text(folder / ASSIGNMENT, json.dumps(self.summary() | about, indent=1, ensure_ascii=False) + "\n")


class UnseenClientFederation(Sequential):
    """The clients that trained, of which only the sizes are known, and one unseen client with its samples."""

    method: Method[object]

    def __init__(
        self, method: Method[object], sizes: Tensor, server_samples: Tensor, own: LabelledSamples, test: LabelledSamples
    ) -> None:
        unknown = forget_targets(own[1].new_empty(len(server_samples), *own[1].shape[1:]))
        parts = [(server_samples, unknown), own, test]
        public, mine, tests = torch.arange(sum(len(y) for _, y in parts)).split([len(y) for _, y in parts])
        unseen = Role(holdout=True, labelled=bool(is_known(own[1]).all()))
        empty = (NO_SAMPLES,) * len(sizes)
        roles = (*(Role(holdout=True),) * len(sizes), unseen)
        pool = (torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]))
        population = Population(
            *pool, (*empty, mine), (*empty, tests), method.model.classes, roles=roles, public=public
        )  # fmt: skip
        super().__init__(method, population, seed=method.model.seed)
        self.roles = (*(Role(),) * len(sizes), unseen)
        self.known_sizes = torch.cat([sizes, torch.tensor([len(mine)])])
        self.is_over = self.in_vain = True  # what cannot be used is an error of its own, no matter of training

    @property
    def sizes(self) -> Tensor:
        return self.known_sizes

    def assign(self, state: object, kind: SampleKind) -> Assignment:
        """The unseen client's model and cluster, once it is admitted to this state."""
        method, unseen = self.method, torch.tensor([self.count - 1])
        state = method.admit(state, unseen, self)
        if self.rejected:
            largest = float(self.population.x[self.population.train[int(unseen)]].abs().max())
            raise DataError(
                "the method cannot assign this client: what it computes of its samples, of up to "
                f"{largest:.2g}, is not finite; give samples in the units of training"
            )
        client = self.make_client(unseen)
        params = self.personalise(method, client, state, unseen)
        clusters = method.cluster_assignment(state) if isinstance(method, FindsClusters) else None
        distances = method.distances_to_clusters(state, unseen, self) if isinstance(method, AssignsUnseen) else None
        fit = method.judge_fit(state, unseen, self) if isinstance(method, JudgesAssignment) else None
        model = find_client_model(method)
        return Assignment(
            model, params, kind,
            cluster=None if clusters is None or int(clusters[unseen]) < 0 else int(clusters[unseen]),
            distances={} if distances is None else finite_distances(distances[0]),
            samples=len(client.train), test_samples=len(client.test),
            test_metric=test_metric(model, params, client.test),
            fits=None if fit is None else bool(fit.fits), p_value=None if fit is None else float(fit.p_values),
            probability=None if fit is None else float(fit.probabilities),
        )  # fmt: skip

    def make_client(self, unseen: Tensor) -> Client:
        """The client with its samples and its memory by now."""
        key = fold(torch.tensor(base_key(self.seed, "serve")), unseen)[0]
        return make_client(self, int(unseen), key, select(self.memory_of(unseen), 0))

    def personalise(self, method: Method[object], client: Client, state: object, unseen: Tensor) -> Params:
        """The model that the client makes of what it is offered."""
        offer = unpack_offer(self, method.offer(state, unseen, self), 0)
        with torch.random.fork_rng(devices=[]):
            seed_generators(int(client.key) & 0x7FFFFFFFFFFFFFFF)
            return method.personalise(client, offer)


def test_metric(model: Model, params: Params, samples: Samples) -> float | None:
    """The main metric on these samples; None where there are none."""
    if not len(samples):
        return None
    found = score(model, params, samples)
    return float(model.task.finish(found["metric"].double() / found["samples"]))


def finite_distances(distances: Tensor) -> dict[int, float]:
    """The distance to each cluster that is not empty."""
    return {cluster: float(d) for cluster, d in enumerate(distances) if torch.isfinite(d)}


@dataclass(frozen=True)
class OutputFolder:
    """A folder to write."""

    folder: Path
    force: bool = False

    def check(self, name: str, begins: str, others: Sequence[str], what: str) -> None:
        """Raises if there is such a file already and it must not be replaced, or others are there without it.

        It `begins` so where kinfed wrote it; with --force such a folder is written anew, and no other one.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise ConfigError(f"{self.folder} is a file; choose another folder")
        is_own = begins_with(self.folder / name, begins)
        if is_own and not self.force:
            raise ConfigError(f"{self.folder / name} is there already: choose another folder, or use --force")
        if not is_own:
            refuse_foreign(self.folder, [name, *(each for each in others if not self.has_sealed(each))], what)

    def has_sealed(self, name: str) -> bool:
        """Whether a file of tensors has kinfed's digest, as one that an interrupted command left."""
        try:
            return name.endswith(".safetensors") and SEAL in read_metadata(self.folder / name)
        except (FileError, FileNotFoundError):
            return False
