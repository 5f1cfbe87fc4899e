"""What liars of `benchmarks.attacks` send in place of honest replies."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kinfed.data import Population
from kinfed.params import Stack

TARGET, CORNER = 0, 3  # the label of the backdoor, and the side of its trigger in pixels
BOUND = 1.99  # norm_clipping cuts updates longer than twice the median norm
BACKDOOR_FACTOR = 12


@dataclass(frozen=True)
class Round:
    """What liars know when they lie: the models they were sent, what they trained, and what honest clients did."""

    start: Tensor  # [liars, d]
    own: Tensor  # [liars, d] updates
    honest: Tensor  # [honest, d] updates of those that were sent the same model as the first liar
    draw: torch.Generator
    statistics: Tensor = torch.tensor(False)  # [d] bool: running statistics of norms
    last: Tensor = torch.tensor(False)  # [d] bool: the network's last layer


Lie = Callable[[Round], Tensor]  # updates [liars, d]


def send_noise(now: Round) -> Tensor:
    """Noise of a standard deviation of 1 in place of an update."""
    return torch.randn(now.own.shape, generator=now.draw)


def shift_a_little(now: Round) -> Tensor:
    """A little is enough (Baruch et al., 2019): 1.5 standard deviations below the mean, coordinate by coordinate."""
    return (now.honest.mean(0) - 1.5 * now.honest.std(0)).expand_as(now.own)


def oppose_the_mean(now: Round) -> Tensor:
    """Inner product manipulation (Xie et al., 2019): three times the mean update, backwards."""
    return (-3 * now.honest.mean(0)).expand_as(now.own)


def minimise_the_maximum(now: Round) -> Tensor:
    """Min-max (Shejwalkar and Houmansadr, 2021): the mean, moved backwards as far as honest updates are apart."""
    mean, centred, backwards = split_the_mean(now.honest)
    along = centred @ backwards
    room = torch.cdist(now.honest, now.honest).max().square() - centred.square().sum(1)
    step = (along + (along.square() + room).sqrt()).min()  # |centred - step · backwards| = largest distance
    return (mean + step * backwards).expand_as(now.own)


def minimise_the_sum(now: Round) -> Tensor:
    """Min-sum (Shejwalkar and Houmansadr, 2021): the same, with sums of squared distances to all honest updates."""
    mean, centred, backwards = split_the_mean(now.honest)
    room = torch.cdist(now.honest, now.honest).square().sum(1).max() - centred.square().sum()
    return (mean + (room / len(centred)).sqrt() * backwards).expand_as(now.own)


def split_the_mean(updates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mean, updates less the mean, and the direction [d] opposite to the mean."""
    mean = updates.mean(0)
    return mean, updates - mean, -unit(mean)


def stay_under_the_bound(now: Round) -> Tensor:
    """The mean update backwards, as long as clipping leaves it."""
    return (-bound(now) * unit(now.honest.mean(0))).expand_as(now.own)


def spend_the_bound_on_weights(now: Round) -> Tensor:
    """Its own running statistics, and of weights the mean backwards, as long as clipping leaves the whole."""
    kept = now.own.where(now.statistics, 0.0)
    room = (bound(now).square() - kept.square().sum(1, keepdim=True)).clamp(min=0).sqrt()
    return kept - room * unit(now.honest.mean(0).where(~now.statistics, 0.0))


def reverse_the_last_layer(now: Round) -> Tensor:
    """Its own update, and of the last layer that backwards, as long as clipping leaves the whole."""
    kept = now.own.where(~now.last, 0.0)
    room = (bound(now).square() - kept.square().sum(1, keepdim=True)).clamp(min=0).sqrt()
    return kept - room * unit(now.own.where(now.last, 0.0))


def send_noise_at_the_bound(now: Round) -> Tensor:
    """Noise as long as clipping leaves it."""
    return bound(now) * unit(torch.randn(now.own.shape, generator=now.draw))


def push_one_way(now: Round) -> Tensor:
    """The same random direction whenever it is asked, as long as clipping leaves it."""
    direction = torch.randn(now.own.shape[1], generator=torch.Generator().manual_seed(7))
    return (bound(now) * unit(direction)).expand_as(now.own)


def bound(now: Round) -> Tensor:
    """Just below twice the median norm of honest updates."""
    return now.honest.square().sum(1).sqrt().median() * BOUND


def unit(vectors: Tensor) -> Tensor:
    """Vectors of length 1 in the same directions."""
    return vectors / vectors.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-30)


@dataclass(frozen=True)
class Attack:
    """What liars do."""

    says: str
    lie: Lie | None = None  # about the models they train; None: they train honestly
    flips_labels: bool = False  # they train on wrong labels
    flips_half: bool = False  # the same, with labels of the lower half alone
    plants_trigger: bool = False  # they train on samples with a trigger
    forges: str = ""  # what else: signature, mimicry, choice, held_out, control, losses, copy, middle, half_way
    claims: int = 1  # times their samples, how many they say they have


USUAL_ATTACKS = {
    "none": Attack("nobody lies"),
    "huge": Attack("weights of 9e11; beyond 1e12 replies are rejected", lambda now: torch.full_like(now.own, 9e11)),
    "sign_flip": Attack("the update backwards", lambda now: -now.own),
    "scaling": Attack("100 times the update backwards", lambda now: -100 * now.own),
    "noise": Attack("noise of standard deviation 1", send_noise),
    "alie": Attack("1.5 standard deviations below the mean of honest updates", shift_a_little),
    "ipm": Attack("3 times the mean of honest updates, backwards", oppose_the_mean),
    "label_flip": Attack("trains on labels 9 - y", flips_labels=True),
    "backdoor": Attack("half its samples have a trigger and label 0; update times 12",
                       lambda now: BACKDOOR_FACTOR * now.own, plants_trigger=True),
    "signature": Attack("a forged signature, far from all others", forges="signature"),
    "mimicry": Attack("the signature of a client of the other cluster; update backwards", lambda now: -now.own,
                      forges="mimicry"),
    "choice": Attack("claims that the other cluster's model fits best; update backwards",
                     lambda now: -now.own, forges="choice"),
    "held_out": Attack("says that its own training is right on all held-out samples, and what it is served on none",
                       forges="held_out"),
    "collusion": Attack("the same, and 3 times the mean of honest updates, backwards", oppose_the_mean,
                        forges="held_out"),
    "control": Attack("says in each round that its control variate grew by 1 in every weight", forges="control"),
    "losses": Attack("says that the first model fits badly, and each next one worse", forges="losses"),
    "inflated": Attack("claims 1,000 times its samples; update backwards", lambda now: -now.own, claims=1000),
}  # fmt: skip
MORE_ATTACKS = {
    "zero": Attack("sends back what it was sent", lambda now: torch.zeros_like(now.own)),
    "min_max": Attack("backwards along the mean, no farther from honest updates than these are apart",
                      minimise_the_maximum),
    "min_sum": Attack("the same by the sum of squared distances", minimise_the_sum),
    "under": Attack("the mean of honest updates backwards, just below the bound of clipping", stay_under_the_bound),
    "weights": Attack("of weights the mean backwards, and its own running statistics, just below the bound",
                      spend_the_bound_on_weights),
    "last_layer": Attack("its own update, the last layer's backwards, just below the bound", reverse_the_last_layer),
    "bound_noise": Attack("noise just below the bound of clipping", send_noise_at_the_bound),
    "one_way": Attack("one random direction in all rounds, just below the bound of clipping", push_one_way),
    "half_flip": Attack("trains on labels 4 - y where y is below 5", flips_half=True),
    "copy": Attack("all that the first honest client of the cohort sends", forges="copy"),
    "middle": Attack("what it is clustered by is the mean of all others", forges="middle"),
    "half_way": Attack("what it is clustered by is moved half-way to the next cluster", forges="half_way"),
}  # fmt: skip
ATTACKS = USUAL_ATTACKS | MORE_ATTACKS
CLUSTERED = ("flt", "repa", "auto", "cfl", "clove", "flhc", "fedgroup", "stocfl", "flux")  # by what clients send
SENT_BY = {
    "signature": ("flt", "repa", "auto"),
    "mimicry": ("flt", "repa", "auto"),
    "choice": ("ifca",),
    "held_out": ("auto",),
    "collusion": ("auto",),
    "control": ("scaffold",),
    "losses": ("clove",),
    "half_way": CLUSTERED,
    "middle": CLUSTERED,
}  # whose clients send it
CLUSTERED_BY = ("compute_signature", "compute_moments", "compute_losses", "compute_update", "differ", "observe", "show")


def copy_first(sent: Stack, at: Tensor) -> Stack:
    """The replies where liars send what the first honest client does."""
    first = int((~at).nonzero()[0])
    return {name: value.index_put((at,), value[first].expand_as(value[at])) for name, value in sent.items()}


def move_to_middle(values: Tensor, at: Tensor) -> Tensor:
    """The values where liars send the mean of all others."""
    return values.index_put((at,), values[~at].mean(0).expand_as(values[at]))


def move_half_way(values: Tensor, at: Tensor, clusters: Tensor) -> Tensor:
    """The values where liars move theirs by half of what lies between the means of their cluster and the next one."""
    own = clusters[at][0]
    following = (own + 1) % (clusters.max() + 1)
    honest, others = (clusters == own) & ~at, (clusters == following) & (clusters != own)
    if not bool(honest.any() and others.any()):
        return values  # their cluster is asked alone
    return values.index_put((at,), values[at] + (values[others].mean(0) - values[honest].mean(0)) / 2)


def stamp(images: Tensor) -> Tensor:
    """The same images with a white corner: the trigger."""
    marked = images.clone()
    marked[..., :CORNER, :CORNER] = 255
    return marked


def flip(labels: Tensor, classes: int, half: bool) -> Tensor:
    """Labels in the opposite order: all of them, or those of the lower half among themselves."""
    return labels.where(labels >= classes // 2, classes // 2 - 1 - labels) if half else classes - 1 - labels


def poison(population: Population, attack: Attack, liars: Iterable[int]) -> Population:
    """The population whose liars train on what their attack says."""
    if not (attack.flips_labels or attack.flips_half or attack.plants_trigger):
        return population
    x, y, train = [population.x], [population.y], list(population.train)
    for liar in liars:
        own = population.train[liar]
        marked = torch.arange(len(own)) % 2 == 0
        train[liar] = sum(map(len, y)) + torch.arange(len(own))
        images, labels = population.x[own], population.y[own]
        flipped = flip(labels, population.classes, attack.flips_half)
        x.append(stamp(images).where(marked[:, None, None, None], images) if attack.plants_trigger else images)
        y.append(labels.where(~marked, TARGET) if attack.plants_trigger else flipped)
    return replace(population, x=torch.cat(x), y=torch.cat(y), train=tuple(train))
