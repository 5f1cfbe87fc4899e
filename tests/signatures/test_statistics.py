import numpy as np
import pytest
import torch
from torch.func import vmap

from kinfed.client import Samples
from kinfed.clustering.kmeans import Part
from kinfed.errors import ConfigError
from kinfed.signatures import EmbeddingStatistics
from kinfed.signatures.embedding_statistics import STATISTICS, summarise

ALL = tuple(STATISTICS)


def some_rows(n: int, d: int = 5) -> torch.Tensor:
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(n)) * 3 + 1
    x[:, 2] = 0.25  # a unit that never fires is constant
    return x


def cut(x: torch.Tensor, size: int | None = None, width: int = 4) -> list[Part]:
    """The first `size` rows in parts of `width`, as a padded client's."""
    n = torch.tensor(len(x) if size is None else size)
    rows = Samples(x, torch.zeros(len(x), dtype=torch.long), torch.arange(len(x)), n, width=width)
    return [Part(batch.x, batch.mask) for batch in rows.in_order()]


def by_numpy(x: torch.Tensor) -> dict[str, np.ndarray]:
    rows = x.double().numpy()
    d = rows.shape[1]
    with np.errstate(all="ignore"):
        related = np.nan_to_num(np.corrcoef(rows.T))
    flat = rows.std(0) == 0
    standard = np.where(flat, 0.0, (rows - rows.mean(0)) / np.where(flat, 1.0, rows.std(0)))
    return {
        "mean": rows.mean(0),
        "quartiles": np.quantile(rows, [0.25, 0.5, 0.75], axis=0).ravel(),
        "std": rows.std(0, ddof=1),
        "var": rows.var(0, ddof=1),
        "min": rows.min(0),
        "max": rows.max(0),
        "skewness": (standard**3).mean(0),
        "kurtosis": np.where(flat, 0.0, (standard**4).mean(0) - 3),
        "covariance": np.cov(rows.T)[np.triu_indices(d)],
        "correlation": related[np.triu_indices(d, 1)],
    }


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("n", [2, 3, 7, 8, 21])
def test_statistics_equal_numpys(name, n):
    x = some_rows(n)
    wanted = torch.from_numpy(by_numpy(x)[name]).float()
    torch.testing.assert_close(summarise(cut(x), (name,)), wanted, atol=1e-6, rtol=1e-6)


def test_statistics_by_hand():
    x = torch.tensor([[4.0], [0.0], [2.0], [8.0]])
    assert summarise(cut(x), ("mean", "quartiles")).tolist() == [3.5, 1.5, 3.0, 5.0]
    assert summarise(cut(x), ("var", "min", "max")).tolist() == pytest.approx([35 / 3, 0, 8])
    x = torch.tensor([[0.0], [0.0], [0.0], [4.0]])  # mean 1, variance 3: (-3 + 27) / 4 / 3√3 and (3 + 81) / 4 / 9 - 3
    assert summarise(cut(x), ("skewness", "kurtosis")).tolist() == pytest.approx([2 / 3**0.5, -2 / 3])


def test_quartiles_equal_torchs():
    x = some_rows(10)
    wanted = torch.quantile(x, torch.tensor([0.25, 0.5, 0.75]), dim=0).flatten()
    torch.testing.assert_close(summarise(cut(x), ("quartiles",)), wanted)


def test_a_single_row_has_no_spread():
    x = some_rows(1)
    spread = summarise(cut(x), ("std", "var", "skewness", "kurtosis", "covariance", "correlation"))
    assert spread.abs().max() == 0
    assert torch.equal(summarise(cut(x), ("mean", "quartiles", "min")), x[0].repeat(5))


def test_rounding_gives_a_constant_no_shape():
    assert summarise(cut(torch.full((7, 2), 0.1)), ("skewness", "kurtosis")).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("name", ALL)
def test_the_order_of_the_rows_does_not_matter(name):
    x = some_rows(21)
    turned = x[torch.randperm(21, generator=torch.Generator().manual_seed(0))]
    torch.testing.assert_close(summarise(cut(x), (name,)), summarise(cut(turned), (name,)), atol=1e-6, rtol=1e-6)
    if name in ("quartiles", "min", "max"):
        assert torch.equal(summarise(cut(x), (name,)), summarise(cut(turned), (name,)))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("size", [1, 3, 6, 8])
def test_padding_changes_no_bit(name, size):
    x = some_rows(40)
    short, long = (summarise(cut(x[:n], size), (name,)) for n in (8, 40))
    assert torch.equal(short, long)


def test_clients_side_by_side_get_their_own_statistics():
    x, sizes = some_rows(12).expand(3, -1, -1), torch.tensor([2, 7, 12])

    def lane(x, size):
        mask = torch.arange(12) < size
        return summarise([Part(x[:6], mask[:6]), Part(x[6:], mask[6:])], ALL)

    for found, size in zip(vmap(lane)(x, sizes), sizes.tolist(), strict=True):
        wanted = np.concatenate([by_numpy(x[0, :size])[name] for name in ALL])
        torch.testing.assert_close(found, torch.from_numpy(wanted).float(), atol=1e-6, rtol=1e-6)


def test_a_sick_row_is_not_hidden():
    x = some_rows(6)
    x[4] = torch.nan
    for name in ("mean", "std", "covariance", "correlation"):
        assert summarise(cut(x), (name,)).isnan().any()


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match=r"mean, quartiles.+got \('median',\)"):
        EmbeddingStatistics(statistics=("median",))
    with pytest.raises(ConfigError, match="statistics"):
        EmbeddingStatistics(statistics=())
    with pytest.raises(ConfigError, match=r"reconstruction in \[0, 1\]"):
        EmbeddingStatistics(reconstruction=1.5)
