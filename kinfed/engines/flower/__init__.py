"""The Flower engine: the same methods on Flower's nodes, simulated by Ray or deployed over a network.

    messages     what crosses the wire, and the checks    network_federation  tasks as messages, replies aggregated
    node         a client on its node, and its memory     simulation          Ray and Flower's nodes on this machine
    transport    Flower's own types and apps              deployed            the server of a deployed federation
    secure_sums  sums over clients, none of which it sees
    reply_specs  dtypes and shapes of replies             patience            how long the server waits for clients

Flower is an extra: only `transport`, `simulation` and `secure_sums` import it, when they are used.
"""

from kinfed.engines.flower.deployed import DeployedFederation
from kinfed.engines.flower.simulation import NODES, Flower, Simulation

__all__ = ["NODES", "DeployedFederation", "Flower", "Simulation"]
