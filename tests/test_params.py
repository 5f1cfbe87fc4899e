import weakref

import torch

from kinfed.params import (
    bytes_of,
    count,
    flatten,
    from_flat,
    join,
    join_in_order,
    put,
    repeat,
    select,
    stack,
    subtract,
    to_flat,
)

A = {"w": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([3.0])}
B = {"w": torch.tensor([[5.0, 7.0]]), "b": torch.tensor([11.0])}


def test_a_stack_has_a_leading_axis_and_its_rows_are_the_models():
    both = stack([A, B])
    assert count(both) == 2 and both["w"].shape == (2, 1, 2)
    assert torch.equal(select(both, 1)["w"], B["w"])


def test_put_replaces_rows_of_a_copy():
    both = repeat(A, 3)
    changed = put(both, torch.tensor([1]), repeat(B, 1))
    assert changed["b"].tolist() == [[3.0], [11.0], [3.0]]
    assert both["b"].tolist() == [[3.0], [3.0], [3.0]]


def test_flatten_and_subtract_by_hand():
    assert flatten(stack([A, B])).tolist() == [[1, 2, 3], [5, 7, 11]]
    assert subtract(B, A)["w"].tolist() == [[4, 5]]


def test_join_puts_stacks_one_after_the_other():
    assert join(repeat(A, 2), repeat(B, 1))["b"].tolist() == [[3], [3], [11]]


def test_a_payload_survives_being_flattened():
    payload = {"params": A, "size": torch.tensor(4)}
    flat = to_flat(payload)
    assert set(flat) == {"params/w", "params/b", "size"}
    back = from_flat(flat)
    assert set(back) == {"params", "size"} and torch.equal(back["params"]["w"], A["w"])


def test_bytes_are_counted_by_element_size():
    assert bytes_of({"params": A, "flag": torch.tensor([True])}) == 3 * 4 + 1


def test_stacks_are_joined_in_an_order():
    assert join_in_order([[1], [0]], [stack([A]), stack([B])])["b"].tolist() == [[11.0], [3.0]]
    assert join_in_order([[0], [1]], [stack([A]), stack([B])])["b"].tolist() == [[3.0], [11.0]]
    three = join_in_order([[2, 0, 1]], [stack([A, B, B])])  # the first of them belongs last
    assert three["b"].tolist() == [[11.0], [11.0], [3.0]]
    alone = stack([A])
    assert join_in_order([[0]], [alone])["w"] is alone["w"]


def test_stacks_that_are_joined_are_made_one_after_the_other():
    held: list[weakref.ref[torch.Tensor]] = []

    def make(value: float):
        assert all(ref() is None for ref in held), "the one before is gone"
        one = {"w": torch.full((1, 2), value)}
        held.append(weakref.ref(one["w"]))
        return one

    joined = join_in_order([[2], [0], [1]], map(make, (1.0, 2.0, 3.0)))
    assert joined["w"][:, 0].tolist() == [2.0, 3.0, 1.0]
