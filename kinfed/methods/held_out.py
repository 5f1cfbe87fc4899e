"""Held-out samples as judges: what a client's own training, or another model, has beyond the model it is served.

A more personal model must win twice: on held-out samples as they come, and with the labels of a client weighted evenly.
So a client with few samples of some labels does not lose these.
"""

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from kinfed.aggregation import MEAN, Aggregation
from kinfed.client import Client, Reply, Samples, client_task
from kinfed.models import Model
from kinfed.params import Params, Payload, interpolate, model_in, tensor_in
from kinfed.ranges import Facts, Range
from kinfed.relatedness import FEWEST
from kinfed.targets import fill_unknown, is_known
from kinfed.training import LabelledGradient, LocalTraining

AMOUNTS = (0.0, 0.25, 0.5, 0.75, 1.0)  # α: how much of its own training a client adds to the model it is served
LONGER = 5  # times the training of a round: by that, from the first model, it is judged whether clients train alone
CLEAR = 0.03  # of held-out samples that they must gain by it at least: a common model gets better, too
LIKELY, CERTAIN = 1.0, 2.0  # standard errors
FEW = 10  # a label with fewer samples than these weighs by their number
TINY = 1e-9
EVEN = 0.5  # of what clusters of few gain: by evenly weighted labels, at least
REMEMBERED = 0.9  # of the evidence of earlier rounds: models change


def most_hits(facts: Facts) -> Tensor:
    """How many samples a client holds out: it can have no more of them right."""
    return facts.train // cast("JudgesOnHeldOut", facts.method).hold_out


HITS = {"hits": Range(0, most_hits)}


@dataclass(frozen=True)
class Evidence:
    """What candidates have beyond the first, by model: held-out samples as they come, and labels weighted evenly."""

    gain: Tensor  # [models, candidates, 2] summed over replies
    square: Tensor  # [models, candidates, 2] its squares, by which chance is judged
    total: Tensor  # [models, 2] what a candidate would have that is always right
    replies: Tensor  # [models] that say so

    @staticmethod
    def none(models: int, device: torch.device, candidates: int = len(AMOUNTS)) -> "Evidence":
        """No client has replied yet."""
        zero = torch.zeros(models, candidates, 2, device=device)
        return Evidence(zero, zero.clone(), zero[:, 0].clone(), zero[:, 0, 0].clone())

    def add(self, hits: Tensor, models: Tensor, aggregation: Aggregation = MEAN) -> "Evidence":
        """With the hits of clients [m, candidates + 1, 2], each for one of the models [m]; the last are the totals.

        Where clients may lie, none counts for much more than the others of its model.
        """
        reported, whose = torch.cat([hits[:, :-1] - hits[:, :1], hits[:, -1:]], 1), one_hot(models, len(self.gain))
        reported = aggregation.limit_reported(reported, models)
        gain, total = reported[:, :-1], reported[:, -1]
        said = (gain, gain.square(), total, torch.ones_like(total[:, 0]))
        sums = [torch.einsum("mj,m...->j...", whose.float(), value) for value in said]
        return Evidence(*(REMEMBERED * old + new for old, new in zip(self.sums(), sums, strict=True)))

    def sums(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All that is summed over replies."""
        return self.gain, self.square, self.total, self.replies

    def pool(self, partners: Tensor) -> "Evidence":
        """The evidence of each model and its partner together ([models]; itself: none, so no evidence)."""
        paired = partners != torch.arange(len(partners), device=partners.device)
        return Evidence(*(torch.einsum("j,j...->j...", paired, sums + sums[partners]) for sums in self.sums()))

    def choose(self, errors: float | Tensor = CERTAIN) -> Tensor:
        """The candidate that gains most in the worse of both ways, if by so many errors; else the first: [models]."""
        gains = (self.gain > errors * self.square.sqrt()).all(2)
        worse = (self.gain / self.total.clamp(min=TINY)[:, None]).amin(2)
        return worse.where(gains, 0.0).argmax(1)

    def prefers_merged(self) -> Tensor:
        """Whether candidate 1 gains, beyond chance where few say so, who may all be lucky: bool [models]."""
        errors = torch.where(self.replies < FEWEST, CERTAIN, LIKELY)
        return self.choose(errors[:, None, None]) == 1

    def prefers_first(self, candidates: Tensor) -> Tensor:
        """Whether the first has clearly more than the candidate of each model ([models]), both ways: bool [models]."""
        own = torch.arange(len(candidates), device=candidates.device), candidates
        ahead = -self.gain[own]
        return ((ahead > CERTAIN * self.square[own].sqrt()) & (ahead >= CLEAR * self.total)).all(1)

    def loses(self, candidate: int) -> Tensor:
        """Whether this candidate has less than the first, beyond chance: bool [models]."""
        lost = -self.gain[:, candidate, 0]
        return lost > CERTAIN * self.square[:, candidate, 0].sqrt()

    def is_no_worse(self, candidate: int) -> Tensor:
        """Whether it is known how this candidate does, and it likely has no less than the first: bool [models].

        A few replies that all lose are likely a loss, but never one beyond chance.
        """
        gain, square = self.gain[:, candidate, 0], self.square[:, candidate, 0]
        return (self.total[:, 0] > 0) & ((gain >= 0) | (-gain < LIKELY * square.sqrt()))

    def keeps_own(self, members: Tensor) -> Tensor:
        """Whether a cluster's own model (candidate 1) goes on, for clusters of so many members: bool [models].

        That of many unless it loses; those of few, which signatures alone do not tell from chance, only if together
        they gain in both ways, where anything is known, and by evenly weighted labels at least half as much: what is
        gained on frequent labels alone would be lost on others. Where all clusters together lose, those that do not
        gain go on with the common model, too: it is as good as it is because all train it.
        """
        few = (members > 0) & (members < FEWEST)
        gain, square, total = (sums[few].sum(0) for sums in (self.gain[:, 1], self.square[:, 1], self.total))
        as_they_come, evenly = gain / total.clamp(min=TINY)
        wins = (gain >= LIKELY * square.sqrt()).all() & (evenly >= EVEN * as_they_come)
        keeps: Tensor = ~self.loses(1) & (~few | wins)
        gain, square = (sums[members > 0, 1, 0].sum() for sums in (self.gain, self.square))
        lose = -gain > CERTAIN * square.sqrt()
        return keeps & (~lose | (self.choose(LIKELY) == 1))


def count_members(clusters: Tensor, number: int) -> Tensor:
    """How many clients each cluster has, after a zero for those of no cluster: [1 + number]."""
    counts = one_hot(1 + clusters, 1 + number).sum(0)
    return counts.index_fill(0, torch.zeros(1, dtype=torch.long, device=counts.device), 0)


class JudgesOnHeldOut:
    """The client tasks of a method that lets held-out samples decide."""

    model: Model
    local: LocalTraining
    hold_out: int

    def tells_copies(self) -> bool:
        return True

    @client_task(ranges=HITS)
    def train_and_judge(self, client: Client, params: Params) -> Reply:
        """Client task: E epochs without the held-out samples, and how well each α of it does on these."""
        rest, held = client.train.hold_out(self.hold_out)
        trained, _ = self.local(client.with_train(rest), params, self.model.gradient)
        candidates = [interpolate(params, trained, amount) for amount in AMOUNTS]
        return Reply({"params": trained, "hits": self.count_hits(candidates, client, held)})

    @client_task(key="train_and_judge", ranges={**HITS, "alone": HITS["hits"]})
    def train_from_start(self, client: Client, params: Params, first: Params) -> Reply:
        """Client task: the same, and how each α compares with training the first model alone, for longer."""
        send, (rest, held) = self.train_and_judge(client, params).send, client.train.hold_out(self.hold_out)
        longer = replace(self.local, epochs=LONGER * self.local.epochs, steps=LONGER * self.local.steps)
        alone, _ = longer(client.with_train(rest), first, self.model.gradient)
        trained = model_in(send, "params")
        candidates = [alone, *(interpolate(params, trained, amount) for amount in AMOUNTS)]
        return Reply({**send, "alone": self.count_hits(candidates, client, held)})

    @client_task(ranges=HITS)
    def train_both(self, client: Client, common: Params, own: Params) -> Reply:
        """Client task: E epochs from either model, and how well these did on the held-out samples before."""
        rest, held = client.train.hold_out(self.hold_out)
        trained = [self.local(client.with_train(rest), start, self.model.gradient)[0] for start in (common, own)]
        candidates = [common, own, *[common] * (len(AMOUNTS) - 2)]
        return Reply({"common": trained[0], "own": trained[1], "hits": self.count_hits(candidates, client, held)})

    @client_task(ranges=HITS)
    def train_and_compare(self, client: Client, params: Params, merged: Params) -> Reply:
        """Client task: E epochs without the held-out samples, and how well this model and a merged one did on these."""
        rest, held = client.train.hold_out(self.hold_out)
        trained, _ = self.local(client.with_train(rest), params, self.model.gradient)
        candidates = [params, merged, *[params] * (len(AMOUNTS) - 2)]
        return Reply({"params": trained, "hits": self.count_hits(candidates, client, held)})

    def count_hits(self, candidates: list[Params], client: Client, held: Samples) -> Tensor:
        """Client: held-out samples that each classifies rightly, and with its labels weighted evenly; all in the end.

        [candidates + 1, 2]. Where targets are no classes, each sample counts by how its losses compare, and all samples
        weigh the same.
        """
        task, total = self.model.task, torch.zeros(len(candidates) + 1, 2, device=client.key.device)
        counts = (
            count_labels(client.train.drop_copies(), self.model.classes) if is_classified(self.model, held) else None
        )
        for batch in held.in_order():
            outputs = torch.stack([self.model.logits(params, batch.x) for params in candidates])
            known = (batch.mask & is_known(batch.y)).float()
            right = torch.cat([task.compare(outputs, fill_unknown(batch.y)) * known, known[None]])
            even = 1.0 if counts is None else 1 / counts[batch.y.clamp(min=0)].clamp(min=FEW)
            total = total + torch.stack([right, right * even], 2).sum(1)
        return total

    def personalise(self, client: Client, offer: Payload) -> Params:
        params = model_in(offer, "params")
        if "amount" not in offer:
            return params
        tuned, _ = self.local.for_adaptation()(client, params, LabelledGradient(self.model.gradient))
        return interpolate(params, tuned, tensor_in(offer, "amount"))


def is_classified(model: Model, samples: Samples) -> bool:
    """Whether each sample has one class."""
    return model.task.has_classes() and samples.y.dim() == 1


def count_labels(samples: Samples, classes: int) -> Tensor:
    """How many samples have each label: [classes]."""
    counts = torch.zeros(classes, device=samples.size.device)
    for batch in samples.in_order():
        counts = counts + (one_hot(batch.y.clamp(min=0), classes) * (batch.mask & (batch.y >= 0))[:, None]).sum(0)
    return counts


def explain_own(clusters: int) -> str:
    """How many clusters have a model that no others use."""
    return f"{clusters} with a model of {'its' if clusters == 1 else 'their'} own"


def explain_personal(amounts: Tensor, alone: int) -> list[str]:
    """How many of the models that are used are personalised (α above 0), and how many clients train alone."""
    said = [f"personalised: {int((amounts > 0).sum())} of {len(amounts)} models"] if bool(amounts.any()) else []
    return said + ([f"{alone} client{' trains' if alone == 1 else 's train'} alone"] if alone else [])


def explain_doubts(fragile: int, worse: int) -> list[str]:
    """How many clusters, and how many clients, may be no better off by their clusters' models."""
    clusters = "1 cluster is" if fragile == 1 else f"{fragile} clusters are"
    clients = "1 client did worse by its" if worse == 1 else f"{worse} clients did worse by their"
    said = [f"fragile: {clusters} not better off beyond chance"] if fragile else []
    return said + ([f"{clients} cluster's model on held-out samples"] if worse else [])
