from argparse import Namespace

from benchmarks.population import measure, table_row


def test_a_round_of_a_small_cohort_is_measured():
    said = Namespace(cohort=3, samples=4, side=8, channels=1, model="mlp_200", device="cpu", rounds=1)
    found = measure(12, said)
    assert found["seconds"] > 0 and found["samples"] == 49 * 64 + 16 * 49
    assert table_row(found).startswith("| 12 | 3 | ")
