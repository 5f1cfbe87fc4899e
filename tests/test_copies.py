"""Copies of samples: found by hashes, left out of signatures, and on one side where samples are held out."""

import pytest
import torch

from kinfed.client import Client, Samples
from kinfed.copies import Copies, find_copies, find_originals, name_samples
from kinfed.data import Population
from kinfed.engines import Sequential, Vectorised, resident
from kinfed.experiment import Experiment
from kinfed.federation import Offer
from kinfed.methods import FLT, Auto
from kinfed.privacy import SignaturePrivacy
from kinfed.relatedness import nest_clusters
from kinfed.signatures import PartMeans
from tests.methods.registry import LOCAL
from tests.problems import repeat_samples, tiny_model, tiny_population

LETTERS = torch.rand(5, 7, generator=torch.Generator().manual_seed(0))  # rows a to e


def rows_of(word: str) -> torch.Tensor:
    """The row of each letter."""
    return LETTERS[["abcde".index(letter) for letter in word]]


def find(x: torch.Tensor, y: torch.Tensor | None = None, size: int = 0) -> Copies:
    """The copies among samples that have the same target, or these; the last are padding where a size is given."""
    names = name_samples(x, torch.zeros(len(x), dtype=torch.long) if y is None else y)
    assert names is not None
    return find_copies(names, torch.arange(len(x)) < (size or len(x)))


def samples_of(word: str, *, named: bool = True, padding: int = 0, width: int = 4) -> Samples:
    """A client's samples, whose targets are the numbers of their letters."""
    y = torch.tensor(["abcde".index(letter) for letter in word])
    x, index = rows_of(word), torch.cat([torch.arange(len(word)), torch.zeros(padding, dtype=torch.long)])
    names = name_samples(torch.cat([x, x]), torch.cat([y, y])) if named else None  # equal rows are in the pool, too
    return Samples(x, y, index, torch.tensor(len(word)), not padding, width, names=names)


def own_client(samples: Samples) -> Client:
    zero = torch.tensor(0)
    return Client(samples, samples, torch.tensor(7), zero, zero, {})


def test_samples_of_the_same_row_are_copies_of_the_first():
    found = find(rows_of("abacba"))
    assert found.rank.tolist() == [0, 1, 0, 2, 1, 0] and int(found.distinct) == 3
    assert found.is_original.tolist() == [True, True, False, True, False, False]
    assert found.positions()[:3].tolist() == [0, 1, 3]


def test_padding_is_no_copy():
    found = find(rows_of("abaab"), size=3)
    assert found.rank[:3].tolist() == [0, 1, 0] and int(found.distinct) == 2


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64])
@pytest.mark.parametrize("width", [2, 3, 8, 17])
def test_rows_that_differ_in_one_number_have_other_names(dtype, width):
    rows = torch.zeros(width + 2, width, dtype=dtype)
    rows[torch.arange(width), torch.arange(width)] = 1
    names = name_samples(rows, torch.zeros(len(rows)))
    assert len(names.unique(dim=0)) == width + 1 and torch.equal(names[-1], names[-2])
    even, odd = (names[:, half] == names[-1, half] for half in range(2))
    assert even[:width].tolist() == [column % 2 == 1 for column in range(width)]
    assert odd[:width].tolist() == [column % 2 == 0 for column in range(width)]
    assert torch.equal(name_samples(rows.repeat(1, 2)[:, :width], torch.zeros(len(rows))), names), "a view"


def test_different_rows_have_no_names_nor_have_single_numbers():
    assert name_samples(LETTERS, torch.zeros(5)) is None
    assert name_samples(torch.zeros(5, 1), torch.zeros(5)) is None


def test_equal_rows_of_few_values_are_equal_by_chance():
    """Four rows, each twice: 4 pairs of 28. Of six pairs of the four rows 2 share the even, 2 the odd number: 28/9."""
    few = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]).repeat(2, 1)
    assert find(few).rank.tolist() == list(range(8)), "4 is not above 1000 · 28/9"


def test_equal_rows_whose_targets_differ_are_no_copies():
    """Twenty pairs: with one of other targets 19 of 20 agree, which is enough; with two 18 do, which is too few."""
    rows, y = torch.rand(20, 6).repeat(2, 1), torch.zeros(40, dtype=torch.long)
    assert int(find(rows, y.index_fill(0, torch.tensor([0]), 1)).distinct) == 20
    assert int(find(rows, y.index_fill(0, torch.tensor([0, 1]), 1)).distinct) == 40


def test_copies_of_a_held_out_sample_are_not_trained_on():
    """Of a, b, c, d, e the third is held out: the sample before each c stands in for it."""
    rest, held = samples_of("abaccbcde").hold_out(3)
    assert rest.index.tolist() == [0, 1, 2, 2, 2, 5, 5, 7, 8] and int(rest.size) == 9
    assert held.index.tolist() == [3] and int(held.size) == 1
    rest, held = samples_of("abaccbcde", padding=2).hold_out(3)
    assert rest.index[:9].tolist() == [0, 1, 2, 2, 2, 5, 5, 7, 8] and int(rest.size) == 9
    assert held.index[:1].tolist() == [3] and int(held.size) == 1


def test_copies_are_dropped_in_the_order_of_the_first_ones():
    kept = samples_of("abaccbcd").drop_copies()
    assert kept.index.tolist() == [0, 1, 3, 7] and int(kept.size) == 4 and kept.exact
    kept = samples_of("abaccbcd", padding=3).drop_copies()
    assert kept.index[:4].tolist() == [0, 1, 3, 7] and int(kept.size) == 4


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("every", [2, 3, 10])
def test_without_copies_the_same_samples_are_held_out_and_kept(padding, every):
    named, plain = (samples_of("abcde", named=named, padding=padding) for named in (True, False))
    for one, other in zip((named.drop_copies(), *named.hold_out(every)), (plain, *plain.hold_out(every)), strict=True):
        size = int(one.size)
        assert size == int(other.size) and torch.equal(one.index[:size], other.index[:size])


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("padding", [0, 3])
def test_a_signature_is_that_of_the_client_without_its_copies(labels, padding):
    signature = PartMeans(embedding="random", labels=labels, latent=8)
    encoder = signature.random_seed(torch.device("cpu"))
    found = [
        signature.compute(own_client(samples), encoder, 5)
        for samples in (
            samples_of("abcde", named=False), samples_of("abcde", padding=padding),
            samples_of("abcdebbbe", padding=padding), samples_of("aaaabcadee", padding=padding),
        )
    ]  # fmt: skip
    for means, counts in found[1:]:  # a CPU's products of more rows may have other last bits
        torch.testing.assert_close(means, found[0].points, atol=1e-6, rtol=0)
        assert torch.equal(counts, found[0].shares)
    assert int(found[0].shares.sum()) == 5


def test_a_private_signature_has_all_samples_for_one_replaced_must_not_move_the_others():
    private = PartMeans(embedding="random", latent=8, protection=SignaturePrivacy(epsilon=1.0))
    encoder = private.random_seed(torch.device("cpu"))
    with_names, plain = (
        private.compute(own_client(samples_of("aaaabcade", named=named)), encoder, 5) for named in (True, False)
    )
    assert torch.equal(with_names.points, plain.points) and torch.equal(with_names.shares, plain.shares)


@pytest.mark.parametrize("times", [1, 3])
def test_engines_agree_where_clients_have_copies(times):
    population = repeat_samples(tiny_population((12, 9, 20, 15)), times)
    method, found = Auto(tiny_model(), LOCAL, hold_out=3), []
    for engine in (Sequential, Vectorised):
        fed = engine(method, population)
        assert fed.names is not None, "the samples are in the pool once more"
        known = method.collect(method.no_signatures(fed), method.signature.encoder(fed), fed.clients, fed)[0]
        reply = fed.run(method.train_and_judge, fed.everyone, Offer({"params": method.model.init()}))
        found.append((known, reply))
    (known, reply), (again, other) = found
    assert known.shares.sum(1).tolist() == again.shares.sum(1).tolist() == [12, 9, 20, 15]
    torch.testing.assert_close(known.centroids, again.centroids)
    assert reply["hits"][:, -1, 0].tolist() == other["hits"][:, -1, 0].tolist() == [4, 3, 6, 5]
    torch.testing.assert_close(reply["hits"], other["hits"])
    for name, weight in reply.stack("params").items():
        torch.testing.assert_close(weight, other.stack("params")[name], atol=1e-5, rtol=0)


def test_names_change_no_bit_of_a_run_whose_clients_have_no_copies(monkeypatch):
    population, states = repeat_samples(tiny_population((30,) * 8), 1), []
    for asked in (True, False):
        monkeypatch.setattr(resident, "name_copies", resident.name_copies if asked else lambda *_: None)
        run = Experiment(Auto(tiny_model(), LOCAL, hold_out=3), population, rounds=6)
        run.run()
        assert (run.fed.names is not None) == asked
        states.append(run.state)
    one, other = states
    assert torch.equal(one.known.centroids, other.known.centroids) and torch.equal(one.known.shares, other.known.shares)
    assert torch.equal(one.clusters, other.clusters) and torch.equal(one.amounts, other.amounts)
    assert all(torch.equal(weight, other.served.models[name]) for name, weight in one.served.models.items())


def test_only_methods_that_tell_copies_are_given_names():
    population = repeat_samples(tiny_population((8, 8)), 2)
    assert Vectorised(Auto(tiny_model()), population).names is not None
    assert Vectorised(FLT(tiny_model()), population).names is not None
    assert Vectorised(object(), population).names is None


def test_clients_that_repeat_samples_of_one_source_are_alike():
    """Twenty clients of forty samples from one normal distribution, each five times."""
    x = torch.randn(800, 10, generator=torch.Generator().manual_seed(0))
    parts = torch.arange(800).split(40)
    plain = Population(x, (x[:, 0] > 0).long(), parts, tuple(part[:0] for part in parts), 2)
    for population in (plain, repeat_samples(plain, 5)):
        method = Auto(tiny_model(classes=2, shape=(10,)))
        fed = Vectorised(method, population)
        known = method.collect(method.no_signatures(fed), method.signature.encoder(fed), fed.clients, fed)[0]
        labels, differ = nest_clusters(
            method.relatedness, *method.signature.compare_by(known, known, fed, method.model)
        )
        assert not differ and not labels.any()


def test_samples_of_the_pool_are_joined_where_an_owner_has_copies():
    """The first owner has a twice; nobody has b twice, and the third's a is its only one."""
    x = rows_of("abcabad")
    owned = [torch.tensor([0, 1, 3]), torch.tensor([2, 4]), torch.tensor([5, 6])]
    assert find_originals(x, torch.zeros(7), owned).tolist() == [0, 1, 2, 0, 4, 5, 6]
    assert find_originals(LETTERS, torch.zeros(5), [torch.arange(5)]).tolist() == [0, 1, 2, 3, 4]
