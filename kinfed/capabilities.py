"""What some methods can do beyond the core contract: protocols, asked for with isinstance.

A method names its capabilities beside `Method` in its class line, or simply has their members.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from kinfed.aggregation import DEPLOYED, MEAN
from kinfed.client import Client, HasMemory
from kinfed.clustering.hierarchy import Dendrogram
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.errors import ConfigError, RoleError
from kinfed.federation import Federation
from kinfed.models import Model
from kinfed.params import Params, Payload
from kinfed.per_client import cut_to
from kinfed.privacy import UNPROTECTED, find_epsilon
from kinfed.relatedness import Fit
from kinfed.signatures import Signature

SIGNATURE_TASK = "compute_signature"
State = TypeVar("State")
Seen = TypeVar("Seen", contravariant=True)  # a state that is only read


@runtime_checkable
class FindsClusters(Protocol[Seen]):
    """Assigns clients to clusters."""

    def cluster_assignment(self, state: Seen) -> Tensor:
        """Server: the cluster of each client: [clients], -1 for one that is not assigned."""


@runtime_checkable
class RelatesClients(Protocol[Seen]):
    """Says which clients are related."""

    def neighbours(self, state: Seen) -> NeighbourSets:
        """Server: who is related to whom; each different set of neighbours is held once."""


@runtime_checkable
class MergesClients(Protocol[Seen]):
    """Finds clusters by merging clients."""

    def dendrogram(self, state: Seen) -> Dendrogram:
        """Server: the merges by which clusters were found; without members where there were none."""


@runtime_checkable
class ExplainsAssignment(Protocol):
    """Says how an unseen client gets its model."""

    def assignment_rule(self) -> str:
        """How an unseen client gets its model, in one sentence."""


@runtime_checkable
class AssignsUnseen(ExplainsAssignment, Protocol[Seen]):
    """Assigns unseen clients by a distance."""

    def distances_to_clusters(self, state: Seen, clients: Tensor, fed: Federation) -> Tensor:
        """Server: distances from admitted clients to each cluster, by the method's own measure: [clients, clusters].

        Infinite for a cluster that nobody else is in.
        """


@runtime_checkable
class JudgesAssignment(Protocol[Seen]):
    """Tests whether an unseen client fits any cluster."""

    def judge_fit(self, state: Seen, clients: Tensor, fed: Federation) -> Fit | None:
        """Server: whether admitted clients fit any cluster of the training ones; None where its rule has no test."""


@runtime_checkable
class Exportable(Protocol[State]):
    """Can serve unseen clients after the run, from a bundle."""

    def export_state(self, state: State, clients: Tensor, sizes: Tensor) -> State:
        """Server: what it takes to admit one more client after the run; RoleError where that cannot be.

        It is the state of those who trained (ids, and samples of every client), numbered from 0, and of one unseen.
        """
        return cut_to(state, clients)


@runtime_checkable
class HasSignatures(Protocol[Seen]):
    """Compares clients by signatures."""

    stores_signatures: ClassVar[bool]  # they are in the state, and no client is asked for them

    def signatures(self, state: Seen, fed: Federation) -> Tensor:
        """Server: one vector for each of fed.clients, NaN for one that did not reply: [clients, d]."""


@runtime_checkable
class Diagnoses(Protocol[Seen]):
    """Says in words what it found."""

    def diagnosis(self, state: Seen) -> str:
        """Server: what it found of the clients, and how far to trust it, in a sentence or two; may be empty."""


@runtime_checkable
class ServesNetwork(Protocol):
    """Clients use another network than they train."""

    def client_model(self) -> Model:
        """The network whose weights `personalise` makes, where it is another than the one that clients train."""


@runtime_checkable
class SelectsModel(Protocol):
    """Each client uses one of the `models` that all are offered, as it is; layers of a `body` complete them all."""

    def select_offered(self, client: Client, offer: Payload) -> Tensor:
        """Client: which of the models it uses: a scalar."""


@runtime_checkable
class SendsNetworks(Protocol):
    """Sends weights of other networks than its model."""

    def networks(self, shape: tuple[int, ...]) -> tuple[Params, ...]:
        """Client: all networks whose weights it may be sent, for samples of this shape."""


@runtime_checkable
class TellsCopies(Protocol):
    """Treats samples that a client has several times apart from others."""

    def tells_copies(self) -> bool:
        """Client: whether its tasks are given the names of samples (`Samples.names`)."""


@runtime_checkable
class NeedsLabels(Protocol):
    """Assigns labelled clients only."""

    needs_labels: ClassVar[str]  # why it cannot assign a client without labels


@runtime_checkable
class NeedsServerSamples(Protocol):
    """May need samples that the server owns."""

    def needs_server_samples(self) -> bool:
        """Whether training takes samples that the server owns."""

    def admits_by_server_samples(self) -> bool:
        """Whether admitting an unseen client takes them too."""


@runtime_checkable
class ClustersLater(Protocol):
    """Trains for some rounds before it looks for clusters."""

    clusters_after: ClassVar[str]  # the setting that holds after how many rounds it looks for clusters


@runtime_checkable
class StepsBySGD(Protocol):
    """Is defined for steps of SGD."""

    sgd_reason: ClassVar[str]  # why training.optimiser = "adam" does not suit it


@runtime_checkable
class SumsReplies(Protocol):
    """Its server needs sums over clients alone, so that secure aggregation can hide single replies."""

    summed_tasks: ClassVar[Mapping[str, str]]  # of whose replies a server needs sums over clients that were offered the
    # same, weighted by samples -> the field by which clients are summed apart; empty: none


@runtime_checkable
class HidesClients(SumsReplies, Protocol):
    """Its server makes means alone of updates, so that noise can hide a client."""

    hides_clients: ClassVar[bool]  # all that its server makes of updates is means that can be private


TRAIN_SUMMED: Mapping[str, str] = MappingProxyType({"train": ""})
NONE_SUMMED: Mapping[str, str] = MappingProxyType({})


def summed_tasks_of(method: object) -> Mapping[str, str]:
    """The tasks of whose replies the server needs only sums, and by which field of a reply clients are summed apart."""
    return method.summed_tasks if isinstance(method, SumsReplies) else NONE_SUMMED


def require_sums(method: object, fed: Federation) -> None:
    """Raises ConfigError where secure aggregation is asked for and this method, or this engine, cannot do it."""
    if not fed.privacy.secure_aggregation:
        return
    signature = getattr(method, "signature", None)
    if not fed.sums_securely:
        raise ConfigError("privacy.secure_aggregation needs engine.name = 'flower', or a deployment: it hides messages")
    if fed.aggregation != MEAN:
        raise ConfigError(
            "privacy.secure_aggregation hides single updates, which a robust rule compares: set aggregation.name = "
            "'mean', or leave one of them out"
        )
    if not summed_tasks_of(method):
        raise ConfigError(
            f"privacy.secure_aggregation: {type(method).__name__}'s server needs more than sums over clients; use "
            "fedavg, fedprox, fednova, fedper, flt, repa or ifca, or leave it out"
        )
    if isinstance(signature, Signature) and signature.tunes_in_turn():
        raise ConfigError(
            "privacy.secure_aggregation: signature.tuning = 'sequential' shows each client's encoder; set another"
        )


def require_private_signatures(method: object, fed: Federation) -> None:
    """Raises ConfigError where private signatures are asked for, and this method's clients do not protect theirs so."""
    asked, signature = fed.privacy.signature, getattr(method, "signature", None)
    if asked == UNPROTECTED:
        return
    if not isinstance(signature, Signature):
        raise ConfigError(
            f"privacy.signature: {type(method).__name__} has no signature that can be protected, and only those of "
            "encoder_centroids and part_means can be: use flt, or leave it out"
        )
    if signature.protect(asked) != signature:
        raise ConfigError(
            f"privacy.signature is not what the signature of this {type(method).__name__} adds: give it "
            "signature=signature.protect(privacy.signature), or run it by kinfed.run, which does so"
        )


def require_private_training(method: object, fed: Federation) -> None:
    """Raises ConfigError where private training is asked for and cannot be, or cannot be accounted for."""
    training = fed.privacy.training
    if not training.is_on:
        return
    if fed.privacy.secure_aggregation:
        raise ConfigError("privacy.training clips updates that privacy.secure_aggregation hides; use one of them")
    if fed.aggregation not in (MEAN, DEPLOYED):  # a deployment's default clips, as private training does
        raise ConfigError(
            f"privacy.training clips updates and takes their mean, got aggregation {type(fed.aggregation).__name__}: "
            "leave one of them out"
        )
    if not (isinstance(method, HidesClients) and method.hides_clients and method.summed_tasks):
        raise ConfigError(
            f"privacy.training: {type(method).__name__}'s server makes more of updates than means over clusters; use "
            "fedavg, fedprox, fedper, flt with case = 'clusters' or repa, or leave it out"
        )
    if getattr(method, "aggregate_over", "participants") != "participants":
        raise ConfigError("privacy.training needs aggregate_over = 'participants'")
    find_epsilon(training.noise, training.delta, 1, fed.fraction)  # raises where the accountant is not installed


def reason_for_labels(method: object) -> str:
    """Why a method, or a class of methods, needs labels to assign a client; empty where it needs none."""
    return method.needs_labels if isinstance(method, NeedsLabels) else ""


def require_labels(method: object, clients: Tensor, fed: Federation) -> None:
    """Raises RoleError where the method needs labels, and some of these clients have no labelled training samples."""
    sizes, reason = fed.sizes.tolist(), reason_for_labels(method)
    without = [i for i in clients.tolist() if not fed.roles[i].labelled or not sizes[i]]
    if without and reason:
        raise RoleError(
            f"clients {without} have no labelled training samples, but {reason}; "
            "use a method that needs none, such as flt"
        )


def takes_server_samples(method: object) -> bool:
    """Whether training takes samples that the server owns."""
    return isinstance(method, NeedsServerSamples) and method.needs_server_samples()


def explain_assignment(method: object) -> str:
    """How an unseen client gets its model, in one sentence."""
    if isinstance(method, ExplainsAssignment):
        return method.assignment_rule()
    return reason_for_labels(method) or "every client is served the same model"


def diagnose(method: object, state: object) -> str:
    """What the method found of the clients, where it says so."""
    return method.diagnosis(state) if isinstance(method, Diagnoses) and state is not None else ""


def neighbours_of(method: object, state: object) -> NeighbourSets | None:
    """Who is related to whom, where the method finds out and has a state."""
    return method.neighbours(state) if isinstance(method, RelatesClients) and state is not None else None


__all__ = [
    "NONE_SUMMED", "TRAIN_SUMMED", "AssignsUnseen", "ClustersLater", "Diagnoses", "ExplainsAssignment", "Exportable",
    "FindsClusters", "HasMemory", "HasSignatures", "HidesClients", "JudgesAssignment", "MergesClients", "NeedsLabels",
    "NeedsServerSamples", "RelatesClients", "SelectsModel", "SendsNetworks", "ServesNetwork", "StepsBySGD",
    "SumsReplies", "diagnose", "explain_assignment", "neighbours_of", "reason_for_labels", "require_labels",
    "require_private_training", "require_sums", "summed_tasks_of", "takes_server_samples",
]  # fmt: skip
