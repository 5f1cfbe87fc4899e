"""With whom clients average, by hand."""

import numpy as np
import pytest

import kinfed
from benchmarks.partners import Partners, row_of
from kinfed.errors import ConfigError
from kinfed.runs.reader import Run


def test_shares_of_related_clients_by_hand():
    related = np.array([[1, 1, 0, 1], [1, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1]], dtype=bool)
    found = Partners.of(related, np.array([0, 0, 0, 1]))
    assert found.count.tolist() == [2, 1, 0, 1]
    np.testing.assert_array_equal(found.right, [0.5, 1, np.nan, 0])
    np.testing.assert_array_equal(found.found, [0.5, 0.5, 0, np.nan])


def test_a_run_that_finds_the_clusters_relates_each_client_to_all_of_its_own(tmp_path):
    partition = {"name": "disjoint_classes", "clients": 10, "clusters": 5}
    settings = {"rounds": 1, "partition": partition, "quiet": True}
    found = kinfed.run("flt", "digits", out=tmp_path / "flt", **settings)
    assert found.summary["ari"] == 1
    assert row_of(Run(found.path)) == "| flt | 10 | 1.0 | 1.00 | 1.00 | 1.00 |"
    with pytest.raises(ConfigError, match="wanted a run that relates clients"):
        row_of(Run(kinfed.run("fedavg", "digits", out=tmp_path / "fedavg", **settings).path))
