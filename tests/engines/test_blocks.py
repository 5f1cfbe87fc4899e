import pytest
import torch

from kinfed.client_tasks import evaluate
from kinfed.data import Population
from kinfed.engines import Vectorised
from kinfed.engines.blocks import SampleTable, is_not_vectorised, is_too_large, ladder, round_up
from kinfed.engines.vectorised import as_slice
from kinfed.federation import Offer
from kinfed.methods import FedAvg
from kinfed.models import make_model
from kinfed.params import select, stack


def table(*parts: list[int]) -> SampleTable:
    return SampleTable.of([torch.tensor(part, dtype=torch.long) for part in parts], torch.device("cpu"))


def test_padding_repeats_a_clients_last_sample_and_an_empty_client_sees_sample_zero():
    index, sizes = table([7, 8, 9], [], [4]).pad(torch.tensor([2, 0, 1]), 4)
    assert index.tolist() == [[4, 4, 4, 4], [7, 8, 9, 9], [0, 0, 0, 0]]
    assert sizes.tolist() == [1, 3, 0]


def test_clients_with_the_same_samples_are_alike_and_those_with_them_in_another_order_are_not():
    assert table([1, 2], [2, 1], [1, 2], []).alike == (0, 1, 0, 2)


def test_the_width_is_bounded():
    assert (table([1], [2, 3]).bounds, table(list(range(300))).bounds) == ((2, 2), (256, 300))


def test_rungs_go_down_from_the_longest_by_the_ratio():
    assert ladder([259, 200, 100, 90, 50, 40, 11, 100], 0.4) == {
        259: 259, 200: 259, 100: 100, 90: 100, 50: 100, 40: 40, 11: 11,
    }  # fmt: skip
    assert ladder([50, 50], 0.9) == {50: 50}


def test_lanes_are_rounded_up_by_less_than_a_quarter_to_few_numbers():
    assert [round_up(n) for n in (1, 3, 7, 8, 9, 170, 193, 480)] == [1, 3, 7, 8, 10, 192, 224, 512]
    assert all(n <= round_up(n) < 1.25 * n for n in range(1, 5000))
    assert len({round_up(n) for n in range(1, 513)}) == 32


def test_a_block_is_halved_only_where_it_was_too_large():
    assert is_too_large(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_too_large(RuntimeError("Expected canUse32BitIndexMath(input) to be true, but got false."))
    assert not is_too_large(RuntimeError("The size of tensor a (2) must match the size of tensor b (3)"))


def test_a_refusal_of_vmap_is_told_from_a_tasks_own_error():
    with pytest.raises(RuntimeError) as refusal:
        torch.func.vmap(lambda x: x * float(x))(torch.ones(3))
    assert is_not_vectorised(refusal.value)
    assert not is_not_vectorised(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_models_of_clients_in_a_row_are_not_copied():
    assert as_slice(torch.tensor([3, 4, 5])) == slice(3, 6)
    for pick in ([3, 5, 6], [5, 4, 3], [4, 4, 4], [2]):
        assert torch.equal(as_slice(torch.tensor(pick)), torch.tensor(pick))


@pytest.mark.parametrize("samples", [4, 40])  # side by side, and one after the other
def test_the_clients_of_a_block_change_no_bit_of_an_evaluation(samples):
    model, draw = make_model("lenet5", (1, 28, 28), 10), torch.Generator().manual_seed(0)
    x = torch.rand(9 * (samples + 1), 1, 28, 28, generator=draw)
    y, own = torch.randint(10, (len(x),), generator=draw), torch.arange(len(x)).split(samples + 1)
    people = Population(x, y, tuple(rows[:1] for rows in own), tuple(rows[1:] for rows in own), 10)
    fed = Vectorised(FedAvg(model), people)
    models = stack([model.init(seed) for seed in range(9)])
    whole = fed.run(evaluate, fed.clients, Offer(each={"params": models}))["loss"]
    few = fed.run(evaluate, fed.clients[2:5], Offer(each={"params": select(models, slice(2, 5))}))["loss"]
    assert torch.equal(few, whole[2:5])
