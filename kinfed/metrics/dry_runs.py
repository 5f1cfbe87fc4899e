"""What a method answers in a dry run, where nothing is counted or remembered.

Signatures; REPA's robustness (methods 5.10): are clients that resemble a member of a cluster assigned to that cluster?
REPA's correlation (5.11): are those clients similar to a method whose data are similar?
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Literal, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from kinfed.capabilities import FindsClusters, HasSignatures
from kinfed.client_tasks import compute_update, count_predictions
from kinfed.data.population import Population, View
from kinfed.data.shifts import see
from kinfed.errors import ConfigError
from kinfed.federation import Federation
from kinfed.keys import seed_generators
from kinfed.learning_tasks import Classification
from kinfed.method import Method
from kinfed.models import make_autoencoder
from kinfed.params import flatten
from kinfed.signatures import Pretraining

State = TypeVar("State")
Wanted = Literal["own", "all", "none"]
WIDTH = 32  # numbers a client that are kept
MOST_CONFUSED, MOST_COUNTS = 100, 4_000_000  # of confusion matrices
TOGETHER = 500  # clients whose confusion matrices are held at once


@contextmanager
def dry_run(fed: Federation) -> Iterator[None]:
    """Inside it clients can be asked; afterwards the federation is as it was before."""
    before = fed.ledger, fed.calls, fed.memory, fed.rejected, fed.is_dry_run
    fed.ledger, fed.calls, fed.rejected = deepcopy(fed.ledger), dict(fed.calls), list(fed.rejected)
    fed.is_dry_run = True
    try:
        yield
    finally:
        fed.ledger, fed.calls, fed.memory, fed.rejected, fed.is_dry_run = before


def collect_signatures(
    method: Method[State], state: State, fed: Federation, wanted: Wanted
) -> tuple[Tensor, Tensor] | None:
    """The ids and signatures of training clients, [n] and [n, up to 32]; None where there are none.

    "own" looks at methods that have signatures; with "all" the clients of other methods train once more for Δw. Real
    clients elsewhere are not asked: a deployed server has what its method knows already.
    """
    if wanted == "none" or (wanted == "own" and not isinstance(method, HasSignatures)):
        return None
    if not fed.sees_samples and not (isinstance(method, HasSignatures) and method.stores_signatures):
        return None
    with dry_run(fed):
        vectors = compute_signatures(method, state, fed)
    sound = vectors.isfinite().all(1)
    return fed.clients[sound].cpu(), reduce_width(vectors[sound].cpu().float())


def compute_signatures(method: Method[State], state: State, fed: Federation) -> Tensor:
    """The method's own signatures of those who train, or else the update Δw of each (REPA's "WD"): [clients, d].

    Row i is of fed.clients[i], NaN if it did not reply.
    """
    if isinstance(method, HasSignatures):
        own: Tensor = method.signatures(state, fed)
        return own
    replies = fed.run(compute_update, fed.clients, method.offer(state, fed.clients, fed))
    return replies.align(fed.clients, flatten(replies.stack("update")))


def collect_confusions(
    method: Method[State], state: State, fed: Federation, clusters: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """The clusters of training clients and the confusion matrix of each, summed: [k] and [k, classes, classes].

    Where outputs are not finite there is a column more, of no class. Without clusters, or with too many, there is one
    of all, called -1. None where the task has no single class a sample, there are too many classes, or clients are
    elsewhere: their labels would leave them.
    """
    classes = method.model.classes
    if not isinstance(method.model.task, Classification) or classes > MOST_CONFUSED or not fed.sees_samples:
        return None
    own = torch.full((fed.count,), -1) if clusters is None else clusters.cpu()
    names = own[fed.clients.cpu()].unique()
    names = names if len(names) * classes**2 <= MOST_COUNTS else names.new_tensor([-1])
    counts = torch.zeros(len(names), classes, classes + 1, dtype=torch.long)
    with dry_run(fed):
        for some in fed.clients.split(TOGETHER):
            replies = fed.run(count_predictions, some, method.offer(state, some, fed))
            place = torch.searchsorted(names, own[replies.cohort.cpu()]).clamp(max=len(names) - 1)
            counts.index_add_(0, place, replies["counts"].cpu().long())
    return names, counts if bool(counts[..., -1].any()) else counts[..., :-1]


def reduce_width(vectors: Tensor, width: int = WIDTH) -> Tensor:
    """The vectors in their first principal directions, if they are wider ([n, d] -> [n, width])."""
    most = min(width, len(vectors))
    if vectors.shape[1] <= width or not most:
        return vectors
    with torch.random.fork_rng(devices=[]):  # it starts from random directions, and nobody else's draws change
        seed_generators(0)
        u, s, _ = torch.pca_lowrank(vectors, q=most)
    return u * s


def originals_of(fed: Federation) -> Tensor:
    """For each client the one it was made to resemble; -1 for a real one: [clients]."""
    return torch.tensor([-1 if role.look_alike_of is None else role.look_alike_of for role in fed.roles])


def assign_look_alikes(method: Method[State], state: State, fed: Federation) -> Tensor | None:
    """The clusters once all look-alikes are assigned too ([clients]); None if the method has none."""
    unseen = (originals_of(fed) >= 0).nonzero()[:, 0].to(fed.device)
    if not len(unseen) or not isinstance(method, FindsClusters):
        return None
    with dry_run(fed):
        clusters: Tensor = method.cluster_assignment(method.admit(state, unseen, fed))
    return clusters.cpu()


def robustness(clusters: Tensor, originals: Tensor, members: Tensor) -> dict[str, float]:
    """The mean over clusters of the share of their members' look-alikes that are in the cluster, and its error.

    clusters and originals: [clients]; members: ids of the clients that the clusters are made of. Nothing where no
    look-alike was given a cluster.
    """
    counts = torch.isin(originals, members) & (originals >= 0)
    counts &= clusters[originals.clamp(min=0)] >= 0
    home, now = clusters[originals[counts]], clusters[counts]
    if not bool((now >= 0).any()):
        return {}
    shares = torch.stack([(now[home == cluster] == cluster).double().mean() for cluster in home.unique()])
    error = {} if len(shares) < 2 else {"robustness_se": float(shares.std() / len(shares) ** 0.5)}
    return {"robustness": float(shares.mean())} | error


RESAMPLES = 100
IMAGES = 64
STREAM = 0  # seed of the random numbers that all clients' shifts draw from
ENCODER = Pretraining(epochs=5, least_steps=500)  # on the samples it is given
KNOWN: "WeakKeyDictionary[Population, Tensor]" = WeakKeyDictionary()  # methods of one comparison share their clients
log = logging.getLogger("kinfed")


def correlation(name: str, seen: Tensor, true: Tensor, seed: int) -> dict[str, float]:
    """The correlation of two client-by-client similarities and its error, by name; nothing where there is none."""
    a, b = pairs_of(seen), pairs_of(true)
    value = pearson(a, b)
    if value is None:
        return {}
    error = bootstrap_error(a, b, seed)
    return {f"correlation_{name}": value} | ({} if error is None else {f"correlation_{name}_se": error})


def pairs_of(similarity: Tensor) -> Tensor:
    """The upper triangle without the diagonal: each pair of different clients once."""
    above = torch.ones_like(similarity, dtype=torch.bool).triu(1)
    return similarity[above].double().cpu()


def pearson(a: Tensor, b: Tensor) -> float | None:
    """Pearson's correlation of two lists of numbers; None where one of them is constant or has fewer than two."""
    if len(a) < 2 or float(a.max() - a.min()) < 1e-12 or float(b.max() - b.min()) < 1e-12:
        return None
    from scipy.stats import pearsonr  # seconds: not for every command

    return float(pearsonr(a.numpy(), b.numpy()).statistic)


def bootstrap_error(a: Tensor, b: Tensor, seed: int, resamples: int = RESAMPLES) -> float | None:
    """REPA's standard error: the deviation of the correlations of resampled pairs, over √resamples."""
    generator = torch.Generator().manual_seed(seed)
    picks = (torch.randint(len(a), (len(a),), generator=generator) for _ in range(resamples))
    found = [value for pick in picks if (value := pearson(a[pick], b[pick])) is not None]
    return float(np.std(found)) / resamples**0.5 if found else None


def drift_similarity(population: Population, device: torch.device) -> Tensor | None:
    """1 - the mean Jensen-Shannon divergence of the clients' views of some held-out images: [clients, clients].

    None where no client's images look different from another's, or no samples are held out.
    """
    chains = [population.views_of(client) for client in range(population.clients)]
    distinct = list(dict.fromkeys(chains))
    if len(distinct) < 2 or not len(population.held_out):
        return None
    if population in KNOWN:
        return KNOWN[population]
    plain = population.x[population.held_out]
    views = [apply_views(chain, plain[spread(len(plain))]) for chain in distinct]
    if all(torch.equal(view, views[0]) for view in views):
        return None
    log.info("training an auto-encoder that compares the clients' images, for evaluation.correlation")
    similarity = 1 - divergences(encode_views(plain, views, device))
    at = torch.tensor([distinct.index(chain) for chain in chains])
    return KNOWN.setdefault(population, similarity[at[:, None], at])


def spread(samples: int) -> Tensor:
    """Indices of at most IMAGES samples, evenly spread."""
    return torch.linspace(0, samples - 1, min(samples, IMAGES)).long()


def apply_views(views: Sequence[View], images: Tensor) -> Tensor:
    """The images as a client with these views has them; all draw from the same stream."""
    nothing = torch.zeros(len(images), dtype=torch.long)
    return see(views, images, nothing, np.random.default_rng(STREAM))[0]


def encode_views(plain: Tensor, views: Sequence[Tensor], device: torch.device) -> Tensor:
    """The softmax of each view's embeddings, by an auto-encoder trained on the plain images: [views, images, e]."""
    if plain.dim() != 4:
        raise ConfigError(
            f"evaluation.correlation under drift needs images, got samples of shape {tuple(plain.shape[1:])}"
        )
    network = make_autoencoder("auto", tuple(plain.shape[1:]))
    weights = ENCODER(network, plain.to(device))
    embeddings = [network.embed(weights, view.to(device)) for view in views]
    return torch.stack(embeddings).double().softmax(2).cpu()


def divergences(distributions: Tensor) -> Tensor:
    """Mean Jensen-Shannon divergences, base 2, of distributions [views, images, e]: [views, views].

    scipy's `jensenshannon` is their root, which is not a number where rounding makes one negative.
    """
    from scipy.special import rel_entr

    all_views = distributions.numpy()
    rows = []
    for view in all_views:
        middle = (view + all_views) / 2
        nats = (rel_entr(view, middle) + rel_entr(all_views, middle)).sum(-1) / 2
        rows.append(nats.mean(1) / np.log(2))
    return torch.from_numpy(np.stack(rows)).clamp(0, 1)
