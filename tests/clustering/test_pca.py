import torch
from sklearn.decomposition import PCA

from kinfed.clustering.kmeans import Part, principal_directions


def parts(x, *lengths):
    return [Part(part, torch.ones(len(part), dtype=torch.bool)) for part in x.split(lengths)]


def test_directions_are_scikit_learns():
    x = torch.rand(40, 7, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    mean, directions = principal_directions(parts(x, 25, 15), 3)
    wanted = PCA(3).fit(x.numpy())
    torch.testing.assert_close(mean, torch.from_numpy(wanted.mean_))
    torch.testing.assert_close(directions.T.abs(), torch.from_numpy(wanted.components_).abs())
    assert (directions.gather(0, directions.abs().argmax(0, keepdim=True)) > 0).all()


def test_repeated_rows_change_nothing_and_padding_neither():
    x = torch.rand(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    _, once = principal_directions(parts(x, 6), 4)
    _, thrice = principal_directions(parts(x.repeat(3, 1), 18), 4)
    _, padded = principal_directions([Part(torch.cat([x, x]), torch.arange(12) < 6)], 4)
    torch.testing.assert_close(once, thrice)
    torch.testing.assert_close(once, padded)


def test_a_sick_client_gets_directions_of_no_meaning_but_no_error():
    _, directions = principal_directions(parts(torch.full((5, 3), torch.nan, dtype=torch.double), 5), 2)
    assert directions.shape == (3, 2)


def test_fewer_rows_than_columns_give_scikit_learns_directions_and_then_nothing():
    x = torch.rand(5, 9, generator=torch.Generator().manual_seed(2), dtype=torch.double)
    _, directions = principal_directions(parts(x, 3, 2), 7)
    wanted = torch.from_numpy(PCA(4).fit(x.numpy()).components_)
    torch.testing.assert_close(directions[:, :4].T.abs(), wanted.abs())
    assert directions.shape == (9, 7) and not directions[:, 4:].any()  # five centred rows vary in four directions
