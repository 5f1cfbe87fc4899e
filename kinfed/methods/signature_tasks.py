"""Clusters by signatures: how FLT and Auto collect them, compare unseen clients and drop those between clusters."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, Literal, Protocol, TypeVar, cast

import torch
from torch import Tensor

from kinfed.aggregation import FEW, measure_isolation
from kinfed.capabilities import (
    AssignsUnseen,
    Diagnoses,
    FindsClusters,
    HasSignatures,
    JudgesAssignment,
    MergesClients,
    NeedsServerSamples,
    SendsNetworks,
)
from kinfed.client import Client, Reply, client_task
from kinfed.clustering.hierarchy import Dendrogram
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.errors import ConfigError
from kinfed.federation import Federation, Offer
from kinfed.methods.cluster_models import ClusterModels, require_signatures
from kinfed.models import Model, encoder_shape
from kinfed.params import NOTHING, Params, Payload, select
from kinfed.per_client import Each
from kinfed.privacy import UNPROTECTED
from kinfed.ranges import Facts, Range
from kinfed.relatedness import FEWEST, Calibrated, Clusterer, Fit, JudgesFit, cluster_distances, nearest_clusters
from kinfed.signatures import Signature, Signatures
from kinfed.training import SAME_RATE

Newcomers = Literal["nearest", "relate"]
ENCODER_SUMMED: Mapping[str, str] = MappingProxyType({"train": "", "train_encoder": ""})
MOST_BRIDGES, MANY = 3, 100  # clients between clusters that are looked for, and clients of whom one joins no clusters
log = logging.getLogger("kinfed")


class SignatureState(Protocol):
    """A server state that holds signatures, the clusters and merges found by them, and their models."""

    @property
    def known(self) -> Signatures: ...

    @property
    def clusters(self) -> Tensor: ...  # [clients]; -1: not assigned

    @property
    def merges(self) -> Dendrogram: ...

    @property
    def served(self) -> ClusterModels: ...


Z = TypeVar("Z", bound=SignatureState)


def most_shares(facts: Facts) -> Tensor:
    """What a client's shares come to at most: 1, or its samples where they are numbers of samples.

    Means with noise of m samples count as m² at most (`SignaturePrivacy.release_means`).
    """
    signature = cast("ComputesSignatures[SignatureState]", facts.method).signature
    if not signature.has_parts():
        return torch.ones_like(facts.train)
    return facts.train.square() if getattr(signature, "protection", UNPROTECTED).is_private else facts.train


SHARES = Range(0, most_shares, total=(0, most_shares))  # all 0: no signature


class ComputesSignatures(
    FindsClusters[Z], MergesClients[Z], AssignsUnseen[Z], JudgesAssignment[Z], Diagnoses[Z], HasSignatures[Z],
    SendsNetworks, NeedsServerSamples,
):  # fmt: skip
    """The client tasks and capabilities of a method that compares clients by their signatures."""

    model: Model
    signature: Signature
    relatedness: Clusterer
    newcomers: Newcomers
    dynamic: bool
    stores_signatures: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.relatedness.needs_parts() == self.signature.has_parts():
            return
        got = f"got {type(self.relatedness).__name__} and {type(self.signature).__name__}"
        if self.signature.has_parts():
            raise ConfigError(
                "signature.name = 'part_means' goes with relatedness.name = 'calibrated'; other relatedness compares "
                f"centroids: set signature.name = 'encoder_centroids'; {got}"
            )
        raise ConfigError(
            "relatedness.name = 'calibrated' measures noise between parts of a client's samples, which only "
            f"signature.name = 'part_means' has: set that, or relatedness.name = 'relatedness'; {got}"
        )

    @property
    def own_signature(self) -> Signature:
        """The signature, for this method's model."""
        return self.signature.for_model(self.model)

    @client_task(
        key="describe", ranges={"shares": SHARES}
    )  # its first name: another key would draw other centroids, and change results
    def compute_signature(self, client: Client, encoder: Mapping[str, Tensor] = NOTHING) -> Reply:
        """Client task: its signature."""
        return Reply(self._payload(client, dict(encoder)), keep=self._memory(client.round))

    @client_task(key="describe_and_pass_on", ranges={"shares": SHARES})  # its first name, as above
    def tune_in_turn(self, client: Client, encoder: Params, rates: Tensor = SAME_RATE) -> Reply:
        """Client task: its signature and the tuned encoder, which the next client goes on from (FLT's first code)."""
        tuned = self.signature.tune(client, encoder, rates)
        return Reply({**self._payload(client, tuned), "encoder": tuned}, keep=self._memory(client.round))

    def no_signatures(self, fed: Federation) -> Signatures:
        """Server: no client has sent a signature yet."""
        size = self.own_signature.size(tuple(fed.x.shape[1:]), self.model.target_groups)
        return Signatures.none(fed.count, *size, fed.device)

    def collect(
        self, known: Signatures, encoder: Params, clients: Tensor, fed: Federation
    ) -> tuple[Signatures, Tensor]:
        """Server: all signatures, those of these clients computed anew, and the clients that sent one."""
        log.info("%d clients compute their signatures", len(clients))
        if self.signature.tunes_in_turn():
            known, replied = self._collect_in_turn(known, encoder, clients, fed)
        else:
            replies = fed.run(self.compute_signature, clients, Offer(shared={"encoder": encoder}))
            known, replied = known.update(replies), replies.cohort
        return known, replied[known.exist()[replied]]

    def _collect_in_turn(
        self, known: Signatures, encoder: Params, clients: Tensor, fed: Federation
    ) -> tuple[Signatures, Tensor]:
        """The same where clients tune one encoder in turn; as soon as it stands still, all others take it at once.

        Where rates fall, those who come first decide what it becomes: the order is random.
        """
        shape, replied = encoder_shape(fed.x), [clients[:0]]
        waiting = fed.shuffle(clients) if len(self.signature.rates_in_turn(0)) else clients
        while len(waiting):
            rates = self.signature.rates_in_turn(sum(map(len, replied))).to(fed.device)
            offer: Payload = {"encoder": encoder, "rates": rates} if len(rates) else {"encoder": encoder}
            if self.signature.stands_still(encoder, rates, shape):
                replies = fed.run(self.compute_signature, waiting.sort().values, Offer(shared={"encoder": encoder}))
                waiting = waiting[:0]
            else:
                replies, waiting = fed.run(self.tune_in_turn, waiting[:1], Offer(shared=offer)), waiting[1:]
                encoder = select(replies.stack("encoder"), 0) if len(replies.cohort) else encoder
            known, replied = known.update(replies), [*replied, replies.cohort]
        return known, clients[torch.isin(clients, torch.cat(replied))]

    def initial_memory(self) -> Payload:
        return self._memory(torch.tensor(-1))

    def networks(self, shape: tuple[int, ...]) -> tuple[Params, ...]:
        return self.model.init(), *self.own_signature.networks(shape)

    def needs_server_samples(self) -> bool:
        return self.signature.needs_server_samples()

    def tells_copies(self) -> bool:
        return self.signature.has_parts()

    def admits_by_server_samples(self) -> bool:
        return False

    def cluster_assignment(self, state: Z) -> Tensor:
        return state.clusters

    def dendrogram(self, state: Z) -> Dendrogram:
        return state.merges

    def signatures(self, state: Z, fed: Federation) -> Tensor:
        known = state.known.of(fed.clients)
        return known.means().where(known.exist()[:, None], torch.nan)

    def scale(self, known: Signatures, like: Signatures) -> Signatures:
        """Server: what is compared; targets that are numbers in units of their noise in `like`, so in no unit."""
        return self.signature.scale_numbers(known, like, self.model)

    def judge_fit(self, state: Z, clients: Tensor, fed: Federation) -> Fit | None:
        if not isinstance(self.relatedness, JudgesFit):
            return None
        others = ((state.clusters >= 0) & state.known.exist()).index_fill(0, clients, False)
        train = fed.clients[others[fed.clients]]  # an unseen client that fits nowhere must not widen a cluster
        like, asked = state.known.of(train), state.known.of(clients)
        return self.relatedness.fit_unseen(self.scale(like, like), state.clusters[train], self.scale(asked, like))

    def distances_to_clusters(self, state: Z, clients: Tensor, fed: Federation) -> Tensor:
        fit = self.judge_fit(state, clients, fed)
        if fit is not None:
            return fit.distances
        others = ((state.clusters >= 0) & state.known.exist()).index_fill(0, clients, False).nonzero()[:, 0]
        return cluster_distances(state.known.of(others), state.clusters[others], state.known.of(clients))

    def diagnosis(self, state: Z) -> str:
        if not isinstance(self.relatedness, Calibrated):
            return ""
        exist = state.known.exist()
        known = state.known.of(exist)
        model, used = self.relatedness.fit(self.scale(known, known)), len(state.clusters[exist].unique())
        found, misfits = model.summary(), self._count_misfits(self.relatedness, state)
        if used != len(model.mixture):  # their number was set, or clients joined later
            found = f"{used} clusters in use; all signatures together show {found}"
        return f"{found[0].upper()}{found[1:]}{misfits}."

    def _count_misfits(self, by: Calibrated, state: Z) -> str:
        """How many of the clients that never train fit no cluster, in words; empty where all fit."""
        placed, trains = state.known.exist() & (state.clusters >= 0), state.served.contributors.any(0)
        unseen, members = placed & ~trains, placed & trains
        if not bool(unseen.any()) or not bool(members.any()):
            return ""
        like, asked = state.known.of(members), state.known.of(unseen)
        fits = by.fit_unseen(self.scale(like, like), state.clusters[members], self.scale(asked, like)).fits
        some = f"; {int((~fits).sum())} of {len(fits)} clients that never train fit none of the clusters"
        return "" if bool(fits.all()) else some

    def assignment_rule(self) -> str:
        if isinstance(self.relatedness, JudgesFit):
            return "a client joins the likeliest cluster; its p-value says whether it fits any"
        if self.newcomers == "nearest":
            return "a client joins the cluster whose mean signature is nearest to its own"
        return "a client is served the mean of those whose signatures are near its own, or else of the nearest cluster"

    def _payload(self, client: Client, encoder: Params) -> Params:
        samples = client.train
        own = client.with_train(replace(samples, y=self.model.task.scale_targets(samples.y)))
        points, shares = self.own_signature.compute(own, encoder, self.model.target_groups)
        weighted = self.relatedness.needs_shares() or self.signature.needs_shares()
        return {"centroids": points, "shares": shares} if weighted else {"centroids": points}

    def _memory(self, round: Tensor) -> Payload:
        return {"computed": round} if self.dynamic else {}  # the round of its signature


def drop_outliers(known: Signatures, clients: Tensor, fed: Federation) -> tuple[Signatures, Tensor]:
    """The signatures without those that are far from all others, and the clients that are left to form clusters.

    A signature is a claim. A client that nobody is near forms no cluster and moves none; it trains alone.
    """
    require_signatures(clients)
    own = known.of(clients)
    outlying = clients[fed.find_outliers(clients, own.centroids, own.shares > 0)]
    if not len(outlying):
        return known, clients
    return remove(known, outlying), clients[torch.isin(clients, outlying, invert=True)]


def remove(known: Signatures, clients: Tensor) -> Signatures:
    """The signatures without those of these clients."""
    return Signatures(*(part.index_fill(0, clients, 0) for part in (known.centroids, known.shares)))


def drop_bridges(
    known: Signatures, clients: Tensor, fed: Federation, cluster: Callable[[Signatures], Tensor]
) -> tuple[Signatures, Tensor]:
    """The same without those between clusters that are one with them, and several without.

    Such a client has nobody near it. Those are tried whose nearest other client is farthest away, a tenth of all: one
    alone, or several together. Clusters of fewer than four count for none, and among many clients nobody joins any.
    """
    doubted = min(fed.aggregation.count_doubted(len(clients)), MOST_BRIDGES)
    if not doubted or len(clients) > MANY:
        return known, clients
    own = known.of(clients)
    nearest, _ = measure_isolation(own.centroids, own.shares > 0)
    remote, before = nearest.argsort(descending=True, stable=True)[:doubted], cluster(own)
    tried = [remote[at : at + 1] for at in range(doubted)] + [remote[:several] for several in range(2, doubted + 1)]
    for some in tried:
        is_kept = torch.isin(clients, clients[some], invert=True)
        kept = clients[is_kept]
        if splits_some(before[is_kept], cluster(known.of(kept))):
            names = ", ".join(fed.name_client(client) for client in clients[some].tolist())
            log.warning("between clusters, which are found without them: %s (%d of %d clients)",
                        names, len(some), len(clients))  # fmt: skip
            return remove(known, clients[some]), kept
    return known, clients


def label_clients(
    by: Clusterer, clusters: int, scale: Callable[[Signatures, Signatures], Signatures], known: Signatures
) -> Tensor:
    """The cluster of each of these clients, [m], without a line in the log."""
    scaled = scale(known, known)
    if isinstance(by, Calibrated):
        return by.fit(scaled, clusters).label(scaled)
    return by.compare(scaled).clusters(clusters)


def splits_some(before: Tensor, after: Tensor) -> bool:
    """Whether a cluster is several by the labels after, each with so many clients that one of them is no quarter."""
    parts, counts = torch.stack([before, after], 1).unique(dim=0, return_counts=True)
    large = parts[counts >= FEW, 0]
    return len(large) > len(large.unique())


def relate_to_members(
    rule: Newcomers, by: Clusterer, known: Signatures, clusters: Tensor, unseen: Signatures, fit: Fit | None = None
) -> tuple[Tensor, NeighbourSets]:
    """The cluster of each unseen client, and which of the members (known, in these clusters) are its neighbours.

    "nearest": all of the cluster with the nearest mean, or of the likeliest, where clusters are fitted; "relate": those
    that are near it, where there are some.
    """
    exist = known.exist()
    own = nearest_clusters(known.of(exist), clusters[exist], unseen) if fit is None else fit.clusters
    names, whose = own.unique(return_inverse=True)
    mates = NeighbourSets(clusters == names[:, None], whose)
    if rule == "nearest":
        return own, mates
    near = by.relate_unseen(known.of(exist), unseen)
    rows = torch.zeros(len(near.rows), len(clusters), dtype=torch.bool, device=clusters.device)
    rows[:, exist] = near.rows
    whose = torch.where(rows.any(1)[near.whose], near.whose, len(rows) + mates.whose)
    return own, NeighbourSets(torch.cat([rows, mates.rows]), whose)


@dataclass(frozen=True)
class Flagged:
    """The flags in a server state: what clients say of their data."""

    flags: Each  # [clients] bool: "my data changed" or "I am new"  δ
    rests: Each  # [clients, 2] the first round in which its next flag counts, and for how many rounds none will then


H = TypeVar("H", bound=Flagged)


FLAG_REST = 5  # rounds from a client's first flag to the next one that counts


def lower_flags(fed: Federation) -> tuple[Tensor, Tensor]:
    """Flags that no client has raised, and when those of each client count (`raise_flags`)."""
    rests = torch.tensor([[0, FLAG_REST]], device=fed.device).repeat(fed.count, 1)
    return torch.zeros_like(rests[:, 0], dtype=torch.bool), rests


def raise_flags(state: H, clients: Tensor, t: int) -> H:
    """The state with the flags that these clients raise in round t.

    Each flag doubles the rounds in which no other of the client counts: one that always raises its own makes the others
    recluster a few times alone, and that of one whose data change again counts later.
    """
    first, rest = state.rests[clients].unbind(1)
    counts = first <= t
    rests = state.rests.index_copy(0, clients[counts], torch.stack([t + rest, 2 * rest], 1)[counts])
    return replace(state, flags=state.flags.index_fill(0, clients[counts], True), rests=rests)


def find_nearest_served(distances: Tensor, models: Tensor) -> Tensor:
    """The distance to each model, of distances to clusters [S, clusters] that are served these models: [S, models].

    That to the nearest cluster where several share a model; infinite for a model that no cluster is served.
    """
    models = models[: distances.shape[1]].expand(len(distances), -1)  # the last clusters may have no other member
    apart = distances.new_full((len(distances), int(models.max()) + 1), torch.inf)
    return apart.scatter_reduce(1, models, distances, "amin")


F = TypeVar("F", Fit, Fit | None)


def log_misfits(fit: F) -> F:
    """The same, once it is logged how many unseen clients fit none of the clusters, where there are some."""
    if fit is not None and not bool(fit.fits.all()):
        number = int(fit.distances.isfinite().any(0).sum())
        log.info("%d of %d unseen clients fit none of the %d clusters: each is served the likeliest",
                 int((~fit.fits).sum()), len(fit.fits), number)  # fmt: skip
    return fit


def summarise_clusters(number: int, differ: bool, clients: int) -> str:
    """What was found, in one line."""
    if number > 1:
        return f"{number} clusters, well separated"
    if clients < FEWEST:
        few = "1 client is" if clients == 1 else f"{clients} clients are"
        return f"one cluster: {few} too few for signatures to decide"
    return "one cluster: clients differ by degrees" if differ else "one cluster: clients are alike"
