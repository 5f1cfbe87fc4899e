from argparse import Namespace

import pytest

from benchmarks.population import measure, plot, table_row


def test_a_round_of_a_small_cohort_is_measured_and_profiled(capsys):
    said = Namespace(
        cohort=3, samples=4, side=8, channels=1, model="mlp_200", device="cpu", batch=10, rounds=1, profile=True
    )
    found = measure(12, said)
    assert found["seconds"] > 0 and found["samples"] == 49 * 64 + 16 * 49
    assert table_row(found).startswith("| 12 | 3 | ")
    assert "12 clients, 2 rounds, by self_cpu_time_total" in capsys.readouterr().out


def test_rounds_are_plotted_by_population(tmp_path):
    pytest.importorskip("vl_convert")
    plot([{"clients": 10**n, "seconds": 0.1} for n in (3, 4, 5)], tmp_path / "rounds.svg")
    assert "clients in the population" in (tmp_path / "rounds.svg").read_text()
