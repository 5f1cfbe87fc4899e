import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.on_demand
@pytest.mark.parametrize("case, newcomers", [("related", "relate"), ("clusters", "nearest")])
def test_flt_needs_no_matrix_of_all_pairs_of_clients(case, newcomers):
    # one byte for each pair of 30,000 clients would be 858 MiB; eight groups, and seven clients that stay silent
    words = [sys.executable, "-m", "tests.methods.many_clients", case, newcomers]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ari"] > 0.99 and found["right"]
    assert found["models"] == 8 + 7
    assert found["MiB"] < 600
