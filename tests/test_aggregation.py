import torch

from kinfed.params import MANY, average, join, mix, mix_contributors, one_hot

MODELS = {"w": torch.tensor([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]]), "b": torch.tensor([1.0, 2.0, 3.0])}


def test_mix_is_a_matrix_product_over_models():
    out = mix(torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, 0.0]]), MODELS)
    assert out["w"].tolist() == [[3, 30], [2, 20]]
    assert out["b"].tolist() == [2.5, 2]


def test_average_weighs_by_rows():
    assert average(MODELS, torch.tensor([1, 1, 2]))["w"].tolist() == [2.75, 27.5]


def test_a_model_that_hears_nobody_stays_as_it_is():
    old = {"w": torch.tensor([[7.0, 7.0], [8.0, 8.0]]), "b": torch.tensor([7.0, 8.0])}
    new = mix_contributors(old, torch.tensor([[0.0, 0.0, 0.0], [3.0, 1.0, 0.0]]), MODELS)
    assert new["w"].tolist() == [[7, 7], [1.25, 12.5]]


def test_membership_as_a_matrix_ignores_those_without_a_cluster():
    assert one_hot(torch.tensor([1, -1, 0]), 2).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_models_of_several_stacks_are_mixed_as_if_they_were_one():
    weights = torch.tensor([[0.2, 0.0, 0.3, 0.5], [1.0, -1.0, 0.5, 0.0]])
    some = {"w": torch.randn(3, 2, 4), "scale": torch.randn(3)}
    more = {"w": torch.randn(1, 2, 4), "scale": torch.randn(1)}
    mixed, wanted = mix(weights, some, more), mix(weights, join(some, more))
    assert mixed["scale"].shape == (2,)
    for name in some:
        torch.testing.assert_close(mixed[name], wanted[name])
        torch.testing.assert_close(
            mixed[name][0], sum(w * x for w, x in zip(weights[0], join(some, more)[name], strict=True))
        )


def test_a_weight_without_numbers_is_mixed_too():
    empty = {"w": torch.zeros(3, 0, 2), "b": torch.ones(3, 1)}
    assert [tuple(w.shape) for w in mix(torch.ones(2, 3), empty).values()] == [(2, 0, 2), (2, 1)]


def test_many_clusters_of_few_clients_are_mixed_by_their_own_weights_alone():
    pairs = torch.arange(2 * MANY).view(MANY, 2)  # the clients of each cluster
    models = {"w": torch.arange(2.0 * MANY)[:, None].repeat(1, 3), "scale": torch.arange(2.0 * MANY)}
    models["w"][1] = torch.nan  # of cluster 0, and of no other: a dense product would spread it
    weights = torch.zeros(MANY, 2 * MANY).scatter_(1, pairs, torch.tensor([0.25, 0.75]).repeat(MANY, 1))
    mixed = mix(weights, {name: w[:40] for name, w in models.items()}, {name: w[40:] for name, w in models.items()})
    wanted = 2.0 * torch.arange(MANY) + 0.75
    torch.testing.assert_close(mixed["scale"], wanted)
    torch.testing.assert_close(mixed["w"][1:], wanted[1:, None].repeat(1, 3))
    assert mixed["w"][0].isnan().all() and mixed["w"].layout == torch.strided
