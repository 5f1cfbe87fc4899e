"""REPA's correlation (methods 5.11): are those clients similar to a method whose data are similar?

Under drift the similarity of the data is that of images: all clients' shifts are applied to the same images, which then
pass one encoder; clients are similar as far as their embeddings are.
"""

import logging
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from kinfed.data.population import Population, View
from kinfed.data.shifts import see
from kinfed.errors import ConfigError
from kinfed.models import make_autoencoder
from kinfed.signatures import Pretraining

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
    network = make_autoencoder("auto", (plain.shape[1], plain.shape[2], plain.shape[3]))
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
