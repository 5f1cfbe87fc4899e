import torch

from kinfed.aggregation import average, mix, mix_heard, one_hot

MODELS = {"w": torch.tensor([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]]), "b": torch.tensor([1.0, 2.0, 3.0])}


def test_mix_is_a_matrix_product_over_models():
    out = mix(torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, 0.0]]), MODELS)
    assert out["w"].tolist() == [[3, 30], [2, 20]]
    assert out["b"].tolist() == [2.5, 2]


def test_average_weighs_by_rows():
    assert average(MODELS, torch.tensor([1, 1, 2]))["w"].tolist() == [2.75, 27.5]


def test_a_model_that_hears_nobody_stays_as_it_is():
    old = {"w": torch.tensor([[7.0, 7.0], [8.0, 8.0]]), "b": torch.tensor([7.0, 8.0])}
    new = mix_heard(old, torch.tensor([[0.0, 0.0, 0.0], [3.0, 1.0, 0.0]]), MODELS)
    assert new["w"].tolist() == [[7, 7], [1.25, 12.5]]


def test_membership_as_a_matrix_ignores_those_without_a_group():
    assert one_hot(torch.tensor([1, -1, 0]), 2).tolist() == [[0, 0, 1], [1, 0, 0]]
