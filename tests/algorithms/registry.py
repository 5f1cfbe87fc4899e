"""Every registered method with settings for the tiny population. A new method must be added here, or a test fails."""

from kinfed.algorithms import ALGORITHMS, FLT, FedAvg, Local
from kinfed.relatedness import Relatedness
from kinfed.signatures import EncoderCentroids, Pretraining
from kinfed.training import LocalTraining
from tests.problems import small_net, tiny_population

LOCAL = LocalTraining(epochs=2, batch_size=5, lr=0.05)


def population(**more):
    """Twelve clients in two planted groups, and the server's own rows."""
    whole = tiny_population((7, 23, 12, 31, 9, 18, 11, 13, 26, 8, 17, 21), **more)
    return whole


def signature(**more) -> EncoderCentroids:
    settings = {"k": 3, "tuning": "none", "latent": 8, "restarts": 2, "pretraining": Pretraining("digits", epochs=1)}
    return EncoderCentroids(**(settings | more))


def make(name: str, local: LocalTraining = LOCAL, **more):
    model = small_net()
    return {
        "fedavg": lambda: FedAvg(model, local, **more),
        "local": lambda: Local(model, local, **more),
        "flt": lambda: FLT(model, local, **({"signature": signature(), "relatedness": Relatedness()} | more)),
    }[name]()


METHODS = list(ALGORITHMS)
