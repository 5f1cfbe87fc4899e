import pytest
import torch

from kinfed.client import Client, Reply, Samples, call_task, width_of
from kinfed.errors import ConfigError
from kinfed.keys import base_key, fold, hash_bits, uniform


def client_of(size: int, padded: int, key: int = 5, exact: bool = False, **more: int) -> Client:
    x = torch.arange(100.0)[:, None]
    index = torch.cat([torch.arange(10, 10 + size), torch.zeros(padded - size, dtype=torch.long)])
    samples = Samples(x, torch.arange(100), index, torch.tensor(size), exact=exact, width=4, **more)
    zero = torch.tensor(0)
    return Client(samples, samples, torch.tensor(key), zero, zero, {})


def seen(client: Client, epochs: int, batch_size: int) -> list[list[int]]:
    batches = (b.y[b.mask].tolist() for b in client.batches(epochs, batch_size))
    return [batch for batch in batches if batch]


def test_keys_depend_on_every_part_and_on_nothing_else():
    assert base_key(1, "train", 2) == base_key(1, "train", 2)
    assert (
        len({base_key(1, "train", 2), base_key(2, "train", 1), base_key(1, "describe", 2), base_key(1, "train", 3)})
        == 4
    )


def test_hashes_of_neighbours_differ_in_about_half_of_their_bits():
    numbers = torch.arange(1000)
    changed = hash_bits(numbers) ^ hash_bits(numbers + 1)
    bits = sum(((changed >> shift) & 1).float().mean() for shift in range(64))
    assert 31 < bits < 33


def test_uniform_numbers_are_uniform_and_do_not_depend_on_how_many_are_drawn():
    key = torch.tensor(3)
    many = uniform(key, 100_000)
    assert many.min() >= 0 and many.max() < 1
    assert abs(many.mean() - 0.5) < 0.005 and abs(many.var() - 1 / 12) < 0.002
    assert torch.equal(uniform(key, 10), many[:10])
    assert not torch.equal(uniform(fold(key, 1), 10), many[:10])


def test_every_epoch_shows_every_row_once_and_keeps_the_short_last_batch():
    batches = seen(client_of(7, 7, exact=True), epochs=2, batch_size=3)
    assert [len(b) for b in batches] == [3, 3, 1, 3, 3, 1]
    for epoch in (batches[:3], batches[3:]):
        assert sorted(row for batch in epoch for row in batch) == list(range(10, 17))
    assert batches[:3] != batches[3:]


@pytest.mark.parametrize("size", [1, 7, 8])
@pytest.mark.parametrize("key", [5, -(2**63), 2**63 - 1])
def test_padding_changes_neither_batches_nor_their_order(key, size):
    exact = seen(client_of(size, size, key, exact=True), 3, 3)
    assert seen(client_of(size, size, key), 3, 3) == exact
    assert seen(client_of(size, 19, key), 3, 3) == exact


def test_keys_of_steps_are_those_of_padded_batches_and_left_out_where_nothing_draws():
    exact = client_of(7, 7, exact=True)
    assert [int(b.key) for b in exact.batches(1, 3)] == [int(b.key) for b in client_of(7, 7).batches(1, 3)]
    assert [b.key for b in exact.batches(1, 3, draws=False)] == [None] * 3


@pytest.mark.parametrize("mask", [[True] * 3, [True, False, True], [False] * 3])
def test_the_mean_of_a_batch_is_that_of_its_real_samples_with_and_without_padding(mask):
    (batch,), each = client_of(3, 3, exact=True).batches(1, 3), torch.tensor([1.0, 3.0, 8.0])
    wanted = each[torch.tensor(mask)].sum() / max(1, sum(mask))
    for exact in (True, False):
        assert batch._replace(mask=torch.tensor(mask), exact=exact).mean(each) == wanted


def test_a_batch_is_no_wider_than_the_longest_client():
    for client in (client_of(7, 12, longest=15), client_of(7, 9, longest=15)):
        batches = list(client.batches(2, 10**23))
        assert [b.mask.shape for b in batches] == [(15,), (15,)]
        assert seen(client, 2, 10**23) == seen(client_of(7, 7, exact=True), 2, 10**23)
        assert int(client.steps(2, 10**23)) == 2
    assert int(client_of(7, 7, exact=True).steps(2, 10**23)) == 2


def test_a_batch_that_is_cut_in_two_keeps_its_middle():
    client = client_of(7, 12, longest=15)
    assert [client.schedule(1, size, parts=2)[1].tolist() for size in (8, 28)] == [
        [[True] * 7 + [False], [False] * 8],
        [[True] * 7 + [False] * 21],
    ]
    assert client.schedule(1, 40, parts=2)[1].tolist() == [[True] * 7 + [False] * 23]  # all in the first half of 30


def test_empty_batches_come_last_over_all_epochs():
    live = [bool(b.live) for b in client_of(7, 19).batches(2, 3)]
    assert live == [True] * 6 + [False] * 8


def test_steps_count_the_real_batches():
    assert int(client_of(7, 19).steps(2, 3)) == 6


def test_samples_in_order_have_a_fixed_width_when_padded():
    assert [len(b.y) for b in client_of(7, 7, exact=True).train.in_order()] == [4, 3]
    padded = list(client_of(7, 10).train.in_order())
    assert [len(b.y) for b in padded] == [4, 4, 4]
    assert torch.cat([b.y[b.mask] for b in padded]).tolist() == list(range(10, 17))


def test_a_client_without_samples_has_no_batches():
    assert list(client_of(0, 0, exact=True).batches(2, 3)) == []
    assert list(client_of(0, 0).batches(2, 3)) == []


@pytest.mark.parametrize("padded", [0, 5])
@pytest.mark.parametrize("drop_last", [False, True])
def test_nor_has_it_steps(padded, drop_last):
    client = client_of(0, padded)
    for steps in (0, 3):
        _, mask = client.schedule(2, 4, steps=steps, drop_last=drop_last)
        assert not mask.any() and (padded or not len(mask))
        assert int(client.steps(2, 4, steps, drop_last)) == 0


def test_a_part_of_a_batch_is_a_batch():
    *_, last = client_of(7, 7, exact=False).batches(1, 4)
    first, rest = last.part(slice(2)), last.part(slice(3, None))
    assert first.mask.tolist() == [True, True] and bool(first.live) and first.y.tolist() == last.y[:2].tolist()
    assert rest.mask.tolist() == [False] and not bool(rest.live)


def test_samples_are_looked_at_by_as_many_as_a_client_has_on_average():
    assert width_of([600] * 5) == 256  # bounded
    assert width_of([38] * 2300 + [259] * 100) == 64  # not filled up to the longest
    assert width_of([5, 5]) == 5 and width_of([0]) == 1


def test_what_a_task_reads_of_a_client_is_noted():
    client = client_of(3, 4)
    client.steps(1, 2)
    assert client.execution.reads == {"train"}
    list(client.batches(1, 2))
    assert client.execution.reads == {"train", "key"}
    assert client.test and "test" in client.execution.reads


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (lambda client, params: None, r"must return a Reply, as in Reply\({'params': trained}\), got a NoneType"),
        (lambda client, params: {"params": params}, "must return a Reply, .* got a dict"),
        (
            lambda client, weights: Reply({}),
            r"takes \(client, weights\), and is offered \(params\): name its arguments",
        ),
        (lambda client, params: Reply(params["w"]), "send of its Reply must be a dict by name, got a Tensor"),
        (
            lambda client, params: Reply({}, {"n": 3}),
            "'n' of its Reply must be a tensor, or a dict of tensors, got a int",
        ),
        (lambda client, params: Reply({"params": (params, 1)}), "'params' of its Reply must be .*, got a tuple"),
        (lambda client, params: Reply({"params": {"w": 1.0}}), "'params' of its Reply must be .*, got a float"),
    ],
)
def test_a_task_that_does_not_fit_its_offer_or_gives_no_reply_is_one_line(task, message):
    with pytest.raises(ConfigError, match=message):
        call_task(task, client_of(3, 3), {"params": {"w": torch.zeros(2)}})
