"""The means of random parts of a client's samples: even, exact, and the same bits for any padding."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from kinfed.client import Client, Samples
from kinfed.errors import ConfigError
from kinfed.signatures import PartMeans, Signatures
from kinfed.signatures.part_means import fit_principal_components, split_batches

SIGNATURE = PartMeans(latent=5, embedding="autoencoder")
IMAGES = torch.rand(10, 1, 8, 8, generator=torch.Generator().manual_seed(0))
ENCODER = SIGNATURE.network((1, 8, 8)).init()


def samples(size: int = 10, padding: int = 0, width: int = 4) -> Samples:
    index = torch.cat([torch.arange(size), torch.zeros(padding, dtype=torch.long)])
    return Samples(IMAGES, torch.zeros(10, dtype=torch.long), index, torch.tensor(size), not padding, width)


def client(own: Samples) -> Client:
    zero = torch.tensor(0)
    return Client(own, own, torch.tensor(7), zero, zero, {})


def test_parts_are_even_and_their_means_exact():
    means, counts = SIGNATURE.compute(client(samples()), ENCODER, 3)
    part = torch.cat([part for _, part in split_batches(samples(), torch.tensor(7), 4)])
    embedded = SIGNATURE.network((1, 8, 8)).embed(ENCODER, IMAGES)
    assert sorted(counts.tolist()) == [2.0, 2.0, 3.0, 3.0]
    assert_close(means, torch.stack([embedded[part == p].mean(0) for p in range(4)]))


def test_padding_changes_no_bit():
    whole = SIGNATURE.compute(client(samples(8, padding=1)), ENCODER, 3)
    for padding in (4, 13):
        padded = SIGNATURE.compute(client(samples(8, padding=padding)), ENCODER, 3)
        assert all(torch.equal(a, b) for a, b in zip(whole, padded, strict=True))


def test_other_keys_draw_other_parts():
    first, second = (next(iter(split_batches(samples(), torch.tensor(key), 4)))[1] for key in (7, 8))
    assert first.tolist() != second.tolist()


def test_a_client_without_samples_has_no_signature():
    means, counts = SIGNATURE.compute(client(samples(0, padding=3)), ENCODER, 3)
    assert not means.any() and not counts.any()


def test_the_mean_of_a_client_is_that_of_its_samples():
    known = Signatures(torch.tensor([[[1.0], [4.0]], [[1.0], [4.0]]]), torch.tensor([[2.0, 1.0], [0.5, 0.5]]))
    assert known.means().tolist() == [[2.0], [2.5]]  # numbers of samples: (2 · 1 + 1 · 4) / 3; shares: 0.5 + 2


def test_samples_are_embedded_by_principal_components():
    samples = torch.tensor([[0.0, 0.0, 1.0], [4.0, 0.0, 1.0], [2.0, 1.0, 1.0], [2.0, -1.0, 1.0]])  # mean (2, 0, 1)
    embedded = PartMeans(latent=2).embed(fit_principal_components(samples, 2), samples)
    assert_close(embedded.abs(), torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 1.0]]))
    assert PartMeans(latent=7, embedding="pca").size((3,), 2) == (4, 3), "as many components as there are numbers"


def test_fewer_than_two_parts_are_refused():
    with pytest.raises(ConfigError, match="parts"):
        PartMeans(parts=1)


def test_samples_of_few_numbers_have_eight_random_features_by_default():
    few = torch.zeros(10, 2)
    for samples in (few, few[:0]):  # two principal components are the columns themselves
        assert PartMeans().choose((2,), samples) == "random"
    assert PartMeans().size((2,), 3) == (4, 8) and PartMeans(latent=2).choose((2,), few) == "pca"


def test_an_auto_encoder_that_is_named_is_used_however_few_samples_the_server_has():
    few = torch.zeros(10, 1, 8, 8)
    assert PartMeans(autoencoder="conv_ae").choose((1, 8, 8), few) == "autoencoder"
    assert PartMeans().choose((1, 8, 8), few) == "pca"
    assert PartMeans(autoencoder="conv_ae").choose((1, 8, 8), few[:0]) == "random"


@pytest.mark.parametrize("shape", [(1, 30, 30), (3, 8, 9), (1, 12)])
def test_samples_that_an_auto_encoder_does_not_take_are_embedded_by_principal_components(shape):
    many, means = torch.zeros(2000, *shape), PartMeans(autoencoder="conv_ae")
    assert means.choose(shape, many) == "pca" and means.choose(shape, many[:0]) == "random"
    assert [sorted(known) for known in means.networks(shape)] == [["seed"], ["directions", "mean"]]
    assert PartMeans().choose(shape, many) == "autoencoder"
    assert PartMeans().choose((1, 8, 8), torch.zeros(2000, 1, 8, 8)) == "autoencoder"


def test_an_auto_encoder_that_there_is_not_is_an_error_and_not_principal_components():
    for name, meant in (("conv_aee", "did you mean 'conv_ae'"), ("json:dumbs", "cannot be imported")):
        with pytest.raises(ConfigError, match=meant):
            PartMeans(autoencoder=name).choose((1, 8, 8), torch.zeros(2000, 1, 8, 8))


def test_signatures_with_numbers_are_moments_and_without_them_the_same_as_ever():
    plain = PartMeans(latent=3, embedding="random")
    numbers = torch.arange(10.0) - 4
    own = Samples(IMAGES, numbers, torch.arange(10), torch.tensor(10), True, 4)
    with_numbers = replace(plain, labels=True)
    encoder = plain.random_seed(torch.device("cpu"))
    means, counts = with_numbers.compute(client(own), encoder, 2)
    mean = (means * counts[:, None]).sum(0) / 10
    assert means.shape == with_numbers.size((1, 8, 8), 2)
    embedded = plain.embed(encoder, IMAGES)
    assert_close(mean[0], numbers.mean())
    assert_close(mean[1:4], (numbers[:, None] * embedded).mean(0), atol=1e-6, rtol=1e-5)
    dropped = with_numbers.drop_labels(Signatures(means[None], counts[None]), (1, 8, 8), numbers=True)
    assert_close(dropped.centroids[0], plain.compute(client(own), encoder, 2)[0], atol=1e-6, rtol=1e-5)
