"""Clients whose planted groups disagree on what the same images are called."""

from dataclasses import replace

import torch

from kinfed.data import Population
from kinfed.training import LocalTraining
from tests.problems import small_net, tiny_population

LOCAL = LocalTraining(epochs=2, batch_size=8, lr=0.1)
TWO = ((0, 1, 2, 3), (1, 0, 3, 2))  # what each group calls classes 0 to 3
FOUR = ((0, 1, 2, 3), (1, 2, 3, 0), (2, 3, 0, 1), (3, 0, 1, 2))
NESTED = ((0, 1, 2, 3), (1, 0, 2, 3), (0, 1, 3, 2), (1, 0, 3, 2))  # groups that differ in one swap are nearer


def renamed(calls: tuple[tuple[int, ...], ...] = TWO, clients: int = 12, rows: int = 24, **more: object) -> Population:
    """Client m is of group m mod groups; all see the same kinds of images, but call them as their group does."""
    plain = tiny_population((rows,) * clients, classes=4, clusters=1, **more)
    cluster_of, y = torch.arange(clients) % len(calls), plain.y.clone()
    for client, cluster in enumerate(cluster_of.tolist()):
        own = torch.cat([plain.train[client], plain.test[client]])
        y[own] = torch.tensor(calls[cluster])[plain.y[own]]
    return replace(plain, y=y, true_clusters=cluster_of)


def net():
    return small_net(classes=4)
