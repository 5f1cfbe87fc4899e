"""FLT's server with 30,000 clients: prints the mebibytes it needed beyond the clients themselves, and what it found.

Run as a process of its own by test_many_clients.py, since the peak of memory is a process's.
"""

import json
import resource
import sys
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kinfed.data import Population, Role
from kinfed.engines import Vectorised
from kinfed.federation import Federation
from kinfed.methods import FLT
from kinfed.metrics import agreement
from kinfed.params import Params
from kinfed.relatedness import Relatedness, embeddings
from kinfed.signatures import Pretraining, Signatures
from tests.methods.registry import LOCAL, signature
from tests.problems import small_net

CLIENTS, UNSEEN, CLUSTERS = 25_000, 5_000, 8


@dataclass(frozen=True)
class Given(FLT):
    """FLT whose clients' signatures are given to the server at once: asking so many takes minutes."""

    def collect(
        self, known: Signatures, encoder: Params, clients: Tensor, fed: Federation
    ) -> tuple[Signatures, Tensor]:
        draw = torch.Generator().manual_seed(0)
        places = 6 * torch.randn(CLUSTERS, 3, 8, generator=draw)
        points = places[fed.true_clusters] + torch.randn(fed.count, 3, 8, generator=draw)
        shares = torch.full((fed.count, 3), 1 / 3).index_fill(0, clients[:7], 0.0)  # some stay silent
        replied = clients[7:]
        after = Signatures(known.centroids.clone(), known.shares.clone())
        after.centroids[replied], after.shares[replied] = points[replied], shares[replied]
        return after, replied


def population() -> Population:
    """Clients with one sample each; the last of them never train."""
    count = CLIENTS + UNSEEN
    cluster_of = torch.arange(count) % CLUSTERS
    x = torch.zeros(CLUSTERS, 1, 8, 8, dtype=torch.uint8)
    samples = tuple(cluster_of.split(1))
    roles = tuple(Role(holdout=i >= CLIENTS) for i in range(count))
    none = (samples[0][:0],) * count
    return Population(
        x, torch.zeros(CLUSTERS, dtype=torch.long), samples, none, 3, roles=roles, true_clusters=cluster_of
    )


def main(case: str, newcomers: str) -> None:
    embeddings.FITTED = 2000
    torch.set_num_threads(1)
    encoder = signature(pretraining=Pretraining("digits", epochs=1, least_steps=1))  # nobody uses it
    flt = Given(small_net(), LOCAL, encoder, Relatedness(), case=case, newcomers=newcomers)  # type: ignore[arg-type]
    fed = Vectorised(flt, population())
    flt.signature.encoder(fed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    state = flt.admit(flt.init(fed), fed.unseen, fed)
    cohort = torch.arange(0, fed.count, 5000)
    cohort = cohort[cohort < CLIENTS]
    replies = fed.run(flt.train, cohort, flt.offer(state, cohort, fed))
    state = replace(state, served=state.served.average(replies, fed, flt.stale))
    neighbours = flt.neighbours(state)
    needed = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10
    found = agreement(state.clusters, fed.true_clusters)
    own = neighbours.rows[neighbours.whose[CLIENTS - 1]]
    right = bool((own[:CLIENTS][8:] == (fed.true_clusters[:CLIENTS] == fed.true_clusters[CLIENTS - 1])[8:]).all())
    print(json.dumps({"MiB": needed, "ari": found["ari"], "models": len(state.served.contributors), "right": right}))


if __name__ == "__main__":
    main(*sys.argv[1:])
