"""How alike two clients' images look, whoever's they are: the similarity behind REPA's correlation under drift (5.11).

All clients' shifts are applied to the same images, which then pass one encoder; clients are alike as far as the
encoder sees no difference.
"""

import logging
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from kinfed.data.population import Population, View
from kinfed.data.views import see
from kinfed.errors import ConfigError
from kinfed.models import make_autoencoder
from kinfed.signatures import Pretraining

IMAGES = 64
STREAM = 0  # seed of the random numbers that all clients' shifts draw from
ENCODER = Pretraining(epochs=5, least_steps=500)  # on the rows it is given
KNOWN: "WeakKeyDictionary[Population, Tensor]" = WeakKeyDictionary()  # methods of one comparison share their clients
log = logging.getLogger("kinfed")


def drift_similarity(population: Population, device: torch.device) -> Tensor | None:
    """1 - the mean Jensen-Shannon divergence of the clients' views of some held-out images: [clients, clients].

    None where no client's images look different from another's, or no rows are held out.
    """
    chains = [population.views_of(client) for client in range(population.clients)]
    distinct = list(dict.fromkeys(chains))
    if len(distinct) < 2 or not len(population.held_out):
        return None
    if population in KNOWN:
        return KNOWN[population]
    plain = population.x[population.held_out]
    looks = [seen(views, plain[spread(len(plain))]) for views in distinct]
    if all(torch.equal(look, looks[0]) for look in looks):
        return None
    log.info("learning to see how alike the clients' images look, for evaluation.correlation")
    alike = 1 - divergences(encoded(plain, looks, device))
    at = torch.tensor([distinct.index(views) for views in chains])
    return KNOWN.setdefault(population, alike[at[:, None], at])


def spread(rows: int) -> Tensor:
    """Places of at most IMAGES rows, evenly spread."""
    return torch.linspace(0, rows - 1, min(rows, IMAGES)).long()


def seen(views: Sequence[View], images: Tensor) -> Tensor:
    """The images as a client with these views has them; all draw from the same stream."""
    nothing = torch.zeros(len(images), dtype=torch.long)
    return see(views, images, nothing, np.random.default_rng(STREAM))[0]


def encoded(plain: Tensor, looks: Sequence[Tensor], device: torch.device) -> Tensor:
    """The softmax of each look's embeddings, by an auto-encoder trained on the plain images: [looks, images, e]."""
    if plain.dim() != 4:
        raise ConfigError(
            f"evaluation.correlation under drift needs images, got rows of shape {tuple(plain.shape[1:])}"
        )
    network = make_autoencoder("auto", (plain.shape[1], plain.shape[2], plain.shape[3]))
    weights = ENCODER(network, plain.to(device))
    embedded = [network.embed(weights, look.to(device)) for look in looks]
    return torch.stack(embedded).double().softmax(2).cpu()


def divergences(chances: Tensor) -> Tensor:
    """Mean Jensen-Shannon divergences, base 2, of distributions [looks, images, e]: [looks, looks]."""
    own = entropy(chances)
    rows = [(entropy((mine + chances) / 2) - (entropy(mine) + own) / 2).mean(1) for mine in chances]
    return torch.stack(rows).clamp(0, 1)


def entropy(chances: Tensor) -> Tensor:
    """The entropy in bits along the last axis; 0 · log 0 is 0."""
    return -(chances * chances.clamp(min=1e-300).log2()).sum(-1)
