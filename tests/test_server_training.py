"""A network fitted by the server equals one that a client trains with Adam on the same batches."""

import torch
from torch.testing import assert_close

from kinfed.client import Batch, Client, Samples
from kinfed.models import make_autoencoder
from kinfed.signatures.pretraining import fit
from kinfed.training import LocalTraining


def the_server(size: int, shape: tuple[int, int, int] = (1, 8, 8)) -> Client:
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (size, *shape), dtype=torch.uint8, generator=generator)
    number, zero = torch.tensor(size), torch.tensor(0)
    own = Samples(x, torch.zeros(size, dtype=torch.long), torch.arange(size), number, exact=True)
    return Client(own, own, torch.tensor(5), zero, zero, {})


def test_fitting_is_local_training_with_adam() -> None:
    server, network = the_server(20), make_autoencoder("conv_ae", (1, 8, 8), 4)
    wanted, _ = LocalTraining(3, 8, 1e-3, optimiser="adam")(server, network.init(), network.gradient)
    got = fit(network, network.init(), server.batches(3, 8), 1e-3)
    assert got.keys() == wanted.keys()
    for name, weight in got.items():
        assert_close(weight, wanted[name], atol=2e-5, rtol=1e-4)
        assert not torch.equal(weight, network.init()[name])


def test_what_it_starts_from_is_left_as_it_was() -> None:
    server, network = the_server(8), make_autoencoder("conv_ae", (1, 8, 8), 4)
    start = network.init()
    fit(network, start, server.batches(1, 4), 1e-3)
    assert all(torch.equal(start[name], weight) for name, weight in network.init().items())


def test_batch_norm_takes_a_last_batch_of_one_sample() -> None:
    server, network = the_server(5, (3, 8, 8)), make_autoencoder("residual_ae", (3, 8, 8), 4)
    got = fit(network, network.init(), server.batches(1, 4), 1e-3)
    assert all(torch.isfinite(weight).all() for weight in got.values())
    means = {name for name in got if name.endswith("running_mean")}
    assert means and all(got[name].abs().sum() > 0 for name in means)


def test_no_batch_changes_nothing() -> None:
    network = make_autoencoder("conv_ae", (1, 8, 8), 4)
    nothing: list[Batch] = []
    got = fit(network, network.init(), nothing, 1e-3)
    assert all(torch.equal(got[name], weight) for name, weight in network.init().items())
