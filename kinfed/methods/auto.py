"""Auto: clusters where they help, one model where they do not, personalised where that helps.

For those who do not know how their clients differ; no paper's method. Clients' held-out samples judge (Mansour et al.
2020: hypothesis clustering, model interpolation):
- before training, signatures with labels give the clusters, of which there may be one; clients that are alike: FedAvg;
- for `compare` of the rounds clients train a common model and that of their cluster side by side; then a cluster goes
  on with its own, unless the common one does better; one of few clients only if its own does better;
- for `merge` of the rounds clusters with similar models try the mean of both; they share it, if it does better;
- clients say how well they do between the model they are served (α = 0) and their own training of it (α = 1); after
  `judge` of the rounds each cluster takes the best α, and the last rounds train on all samples;
- where clients that train the first model alone do clearly better than by that α, each goes on alone;
- where rounds sample clients, the mean of the models of the last `average` of the rounds is served in the end.
A more personal model must win twice: on held-out samples as they come, and with the labels of a client weighted evenly.
"""

import logging
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from kinfed.capabilities import NONE_SUMMED
from kinfed.checks import at_least, between, within
from kinfed.clustering.hierarchy import Dendrogram
from kinfed.errors import ConfigError
from kinfed.federation import Federation, Offer, Replies
from kinfed.methods.cluster_merging import merge_pairs, pair_nearest, share_models
from kinfed.methods.cluster_models import (
    Clustered,
    ClusterModels,
    Merges,
    Stale,
    add_to_mean,
    draw_models,
    offer_assigned,
)
from kinfed.methods.held_out import (
    AMOUNTS,
    LIKELY,
    Evidence,
    JudgesOnHeldOut,
    count_members,
    explain_doubts,
    explain_own,
    explain_personal,
)
from kinfed.methods.signature_tasks import (
    ComputesSignatures,
    drop_bridges,
    drop_outliers,
    find_nearest_served,
    log_misfits,
    summarise_clusters,
)
from kinfed.models import Model
from kinfed.params import Params, Stack, count, repeat, select
from kinfed.per_client import Each, Labels
from kinfed.relatedness import Calibrated, Fit, nest_clusters
from kinfed.signatures import PartMeans, Signatures
from kinfed.training import LocalTraining

STALE: Stale = "exclude"
PHASES = ("compare", "merge", "judge", "all")
log = logging.getLogger("kinfed")


@dataclass(frozen=True)
class AutoState:
    served: ClusterModels  # model 0 is the common one, model 1 + c that of cluster c
    encoder: Params
    known: Signatures
    clusters: Labels  # [clients] the cluster found for each; -1: none
    merges: Merges
    plan: Tensor  # [3] rounds until which clients compare models, try merged ones, and hold out samples
    evidence: Evidence
    alone: Evidence  # how each α compares with training alone
    chosen: Tensor  # [clusters] the model of each
    fragile: Tensor  # [clusters] bool: its model is not better than the common one beyond chance
    partners: Tensor  # [models] the one that each may be merged with; itself: none
    gains: Each  # [clients] held-out samples that the cluster's model classified rightly beyond the common one
    amounts: Tensor  # [models] α
    averaged: Stack  # [models] the mean over the last rounds; empty before these


@dataclass(frozen=True)
class Auto(JudgesOnHeldOut, ComputesSignatures[AutoState], Clustered[AutoState]):
    """Finds clusters, and uses them, one model or personalised ones: what does best on clients' held-out samples."""

    model: Model
    local: LocalTraining = LocalTraining()
    signature: PartMeans = field(default_factory=lambda: PartMeans(embedding="random", labels=True, latent=64))
    relatedness: Calibrated = field(default_factory=Calibrated)
    hold_out: int = 10  # of so many samples of a client one is held out, until the last rounds
    compare: float = 0.2  # share of the rounds that train the clusters' models beside the common one
    merge: float = 0.06  # share of the rounds that try one model for two clusters
    judge: float = 0.5  # share of the rounds after which all samples are trained on
    alone: int = 4  # rounds, the last before that, in which clients that gain by an α also train the first model
    average: float = 0.08  # share of the rounds, the last ones, whose models are averaged, where rounds sample clients
    stale = STALE
    newcomers = "nearest"
    dynamic = False
    summed_tasks = NONE_SUMMED  # the server compares replies of single clients
    hides_clients = False

    def __post_init__(self) -> None:
        super().__post_init__()
        within(2, 1000, hold_out=self.hold_out)
        at_least(0, alone=self.alone)
        between(0, 1, average=self.average)
        if min(self.compare, self.merge) < 0 or not self.compare + self.merge <= self.judge <= 1:
            raise ConfigError(
                "wanted compare and merge >= 0 and compare + merge <= judge <= 1, "
                f"got {self.compare}, {self.merge} and {self.judge}"
            )

    def init(self, fed: Federation) -> AutoState:
        served, encoder = ClusterModels.init(self.model, STALE, fed), self.signature.encoder(fed)
        known, replied = drop_outliers(*self.collect(self.no_signatures(fed), encoder, fed.clients, fed), fed)
        known, replied = drop_bridges(known, replied, fed, lambda sent: self.label(sent, fed)[0])
        labels, differ = self.label(known.of(replied), fed)
        clusters = torch.full((fed.count,), -1, device=fed.device).index_copy(0, replied, labels)
        number, merges = int(clusters.max()) + 1, Dendrogram.none(fed.device)
        log.info("%s", summarise_clusters(number, differ, len(replied)))
        served = served.serve(served.assignment, repeat(select(served.models, 0), 1 + number))
        plan = self.make_plan(fed.rounds, number if differ else 0).to(fed.device)
        evidence, zeros = Evidence.none(1 + number, fed.device), torch.zeros(1 + number, device=fed.device)
        chosen, partners = zeros[1:].long(), torch.arange(1 + number, device=fed.device)
        gains, alone = zeros.new_zeros(fed.count), Evidence.none(1 + number, fed.device, 1 + len(AMOUNTS))
        return AutoState(
            served, encoder, known, clusters, merges, plan, evidence, alone, chosen, chosen.bool(), partners, gains,
            zeros, {},
        )  # fmt: skip

    def label(self, known: Signatures, fed: Federation) -> tuple[Tensor, bool]:
        """The cluster of each of these clients, [m], and whether they may differ."""
        return nest_clusters(self.relatedness, *self.signature.compare_by(known, known, fed, self.model))

    def make_plan(self, rounds: int, clusters: int) -> Tensor:
        """Rounds until which clients compare, merge and hold out; no clusters: clients are alike. [3]"""
        judged = round(self.judge * rounds) if clusters else 0
        compared = min(max(2, round(self.compare * rounds)), judged) if clusters > 1 else 0
        merged = min(compared + round(self.merge * rounds), judged) if clusters > 2 else compared
        return torch.tensor([compared, merged, judged])

    def round(self, state: AutoState, t: int, fed: Federation) -> AutoState:
        cohort, phase = fed.sample(), self.phase_of(state, t)
        if phase == "compare":
            state = self.train_beside(state, cohort, fed)
        elif phase == "merge":
            state = self.try_merged(state, cohort, fed)
        elif phase == "judge":
            replies = self.judge_own(state, cohort, t, fed)
            state = replace(state, served=state.served.average(replies, fed, STALE))
            state = self.weigh(state, replies, state.served.assignment, fed)
        else:
            served, since = self.train_clusters(state.served, cohort, fed), t - self.first_averaged(state, fed)
            averaged = add_to_mean(state.averaged, served.models, since) if since >= 0 else {}
            return replace(state, served=served, averaged=averaged)
        return self.decide(state, phase, fed) if self.phase_of(state, t + 1) != phase else state

    def phase_of(self, state: AutoState, t: int) -> str:
        """What round t is for."""
        return PHASES[int((t >= state.plan).sum())]

    def first_averaged(self, state: AutoState, fed: Federation) -> int:
        """The round from which models are averaged: none, where models are steady, for all clients train each round."""
        number = round(self.average * fed.rounds) if fed.fraction < 1 else 0
        return max(int(state.plan[-1]), fed.rounds - number)

    def train_beside(self, state: AutoState, cohort: Tensor, fed: Federation) -> AutoState:
        """A round in which clients train the common model, and that of their cluster beside it."""
        own, models = torch.where(state.clusters >= 0, 1 + state.clusters, 0), state.served.models
        replies = fed.run(self.train_both, cohort, Offer({"common": select(models, 0)}, {"own": models}, own[cohort]))
        common = state.served.average(Replies(replies.cohort, {"params": replies.stack("common")}), fed, STALE)
        both = common.serve(own.where(own > 0, -1), common.models)
        both = both.average(Replies(replies.cohort, {"params": replies.stack("own")}), fed, STALE)
        gains = state.gains.index_add(0, replies.cohort, replies["hits"][:, 1, 0] - replies["hits"][:, 0, 0])
        return self.weigh(replace(state, served=replace(common, models=both.models), gains=gains), replies, own, fed)

    def try_merged(self, state: AutoState, cohort: Tensor, fed: Federation) -> AutoState:
        """A round in which clients train as usual, and say how well they would do with the mean of two models."""
        offer, merged = state.served.offer(cohort), merge_pairs(state.served, state.partners, fed.weights)
        replies = fed.run(self.train_and_compare, cohort, offer._replace(each={**offer.each, "merged": merged}))
        state = replace(state, served=state.served.average(replies, fed, STALE))
        return self.weigh(state, replies, state.served.assignment, fed)

    def judge_own(self, state: AutoState, cohort: Tensor, t: int, fed: Federation) -> Replies:
        """What clients have by their own training, and in the end by training alone, where they gain by the former."""
        offer = state.served.offer(cohort)
        if t < int(state.plan[2]) - self.alone or not bool((state.evidence.choose() > 0).any()):
            return fed.run(self.train_and_judge, cohort, offer)
        first = select(draw_models(self.model, 1, fed.device), 0)
        return fed.run(self.train_from_start, cohort, offer._replace(shared={"first": first}))

    def weigh(self, state: AutoState, replies: Replies, models: Tensor, fed: Federation) -> AutoState:
        """With the evidence of these replies, each for one of the models [clients]."""
        own, rule = models[replies.cohort], fed.aggregation
        alone = state.alone.add(replies["alone"], own, rule) if "alone" in replies.send else state.alone
        return replace(state, evidence=state.evidence.add(replies["hits"], own, rule), alone=alone)

    def decide(self, state: AutoState, phase: str, fed: Federation) -> AutoState:
        """The state at the end of a phase: which model each cluster takes, which are merged, how personal they are."""
        evidence = Evidence.none(len(state.amounts), state.amounts.device)
        if phase == "compare":
            own = state.evidence.keeps_own(count_members(state.clusters, len(state.chosen)))
            chosen = (own * torch.arange(len(own), device=own.device))[1:]
            labels = torch.where(state.clusters >= 0, chosen[state.clusters], state.served.assignment)
            log.info("%d of %d clusters go on with a model of their own", int(own[1:].sum()), len(chosen))
            served = state.served.serve(labels, state.served.models)
            fragile, partners = (own & (state.evidence.choose(LIKELY) != 1))[1:], pair_nearest(served.models, chosen)
            return replace(state, served=served, chosen=chosen, fragile=fragile, partners=partners, evidence=evidence)
        if phase == "merge":
            served, names = share_models(state.served, state.partners, state.evidence, fed.weights)
            log.info("pairs of clusters that share a model: %d", len(names) - len(names.unique()))
            return replace(state, served=served, chosen=names[state.chosen], evidence=evidence)
        best = state.evidence.choose()
        amounts = torch.tensor(AMOUNTS, device=best.device)[best]
        log.info("%d of %d models are personalised", int((amounts > 0).sum()), len(state.served.assignment.unique()))
        served = state.served.part((best > 0) & state.alone.prefers_first(1 + best))
        amounts = pad(amounts, (0, count(served.models) - len(amounts)), value=1.0)
        return replace(state, served=served, amounts=amounts, evidence=evidence)

    def export_state(self, state: AutoState, clients: Tensor, sizes: Tensor) -> AutoState:
        served = replace(state.served, models=state.averaged or state.served.models)
        return super().export_state(replace(state, served=served, averaged={}), clients, sizes)

    def offer(self, state: AutoState, cohort: Tensor, fed: Federation) -> Offer:
        offer = offer_assigned(state.averaged or state.served.models, state.served.assignment, cohort)
        is_personal = bool((state.amounts > 0).any())
        return offer._replace(each={**offer.each, "amount": state.amounts}) if is_personal else offer

    def admit(self, state: AutoState, unseen: Tensor, fed: Federation) -> AutoState:
        """Unseen clients join the likeliest cluster; those that fit none are logged."""
        state = replace(state, known=self.collect(state.known, state.encoder, unseen, fed)[0])
        fit = log_misfits(self.judge_fit(state, unseen, fed))
        labels = state.chosen[fit.clusters]
        served = state.served.serve(state.served.assignment.index_copy(0, unseen, labels), state.served.models)
        return replace(state, served=served, clusters=state.clusters.index_copy(0, unseen, fit.clusters))

    def judge_fit(self, state: AutoState, clients: Tensor, fed: Federation) -> Fit:
        """Clients without labels are compared by what signatures would be without them."""
        members = fed.clients[(state.clusters >= 0).index_fill(0, clients, False)[fed.clients]]
        known, asked, clusters = state.known.of(members), state.known.of(clients), state.clusters[members]
        views = (self.signature.compare_by(each, known, fed, self.model) for each in (known, asked))
        (plain, labelled), (own_plain, own) = views
        fit = self.relatedness.fit_unseen(labelled, clusters, own)
        unlabelled = torch.isin(clients, fed.unlabelled)
        if not bool(unlabelled.any()):
            return fit
        return fit.replace_where(unlabelled, self.relatedness.fit_unseen(plain, clusters, own_plain))

    def distances_to_clusters(self, state: AutoState, clients: Tensor, fed: Federation) -> Tensor:
        return find_nearest_served(self.judge_fit(state, clients, fed).distances, state.chosen)

    def cluster_assignment(self, state: AutoState) -> Tensor:
        return state.served.assignment

    def diagnosis(self, state: AutoState) -> str:
        own, used = state.chosen > 0, state.served.assignment.unique()
        found = summarise_clusters(len(own), bool(state.plan[2] > 0), int((state.clusters >= 0).sum())).capitalize()
        said = [f"{found}, {explain_own(int(own.sum()))}" if len(own) > 1 else f"{found}, one model"]
        pairs = int(own.sum()) - len(state.chosen[own].unique())
        said += [f"{2 * pairs} of them share one with another"] if pairs else []
        alone = state.served.assignment > len(own)
        said += explain_personal(state.amounts[used[(used >= 0) & (used <= len(own))]], int(alone.sum()))
        worse = int(((state.gains < 0) & (state.served.assignment > 0) & ~alone).sum())
        return "; ".join([*said, *explain_doubts(int(state.fragile.sum()), worse)]) + "."
