"""The Flower engine: the same algorithms on Flower's nodes, simulated by Ray or deployed over a network.

    packing     tensors as typed bytes                      offers      the client's checks
    memory      what clients remember, by version           replies     the server's checks
    site        a client at home                            expected    what a reply must look like
    messages    Flower's own types, the app of a node       networked   the federation behind a network
    simulation  Ray and Flower's nodes on this machine      deployed    the server of real nodes

Flower is an extra: only `messages` and `simulation` import it, when they are used.
"""

from kinfed.engines.flower.deployed import Deployed, OwnRows
from kinfed.engines.flower.simulation import NODES, Flower, Simulation

__all__ = ["NODES", "Deployed", "Flower", "OwnRows", "Simulation"]
