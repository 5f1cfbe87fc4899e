"""What the docs say of the code is what the code says of itself."""

from pathlib import Path

import pytest

from kinfed.algorithms import ALGORITHMS
from kinfed.names import first_lines
from tests.test_layers import LAYERS

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_readme_lists_every_method_with_its_own_words(name):
    placed = "yes" if ALGORITHMS[name].serves_unlabelled else "no"
    assert f"| `{name}` | {first_lines(ALGORITHMS)[name]} | {placed} |" in (ROOT / "README.md").read_text()


def test_the_architecture_page_names_every_layer():
    picture = (ROOT / "docs" / "architecture.md").read_text()
    assert all(name in picture for names in LAYERS for name in names if name not in ("", "__main__"))


def test_the_metrics_page_names_every_column():
    from kinfed.runs.folder import METRICS

    page = (ROOT / "docs" / "metrics.md").read_text()
    named = {name for name in METRICS if f"`{name}`" in page}
    assert set(METRICS) - named == {"correlation_labels_se", "correlation_drift_se"}  # "and …_se of both"


def test_every_example_is_a_valid_config():
    from kinfed.config import load_config

    examples = sorted((ROOT / "examples").glob("*.toml"))
    assert len(examples) >= 3
    for path in examples:
        load_config(path)
