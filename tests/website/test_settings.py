"""The tables of settings are complete, and say what the code says."""

from dataclasses import dataclass, field

import pytest

from kinfed.aggregation import AGGREGATIONS
from kinfed.config import DEMO, Config, flatten
from kinfed.config.settings import GIVEN
from kinfed.data import DRIFTS, PARTITIONS, SHIFTS, ChangeSettings
from kinfed.methods import METHODS
from website.config_page import BY_NAME, SECTIONS, config_page
from website.settings import settings_of, table

SPLIT = {f"partition {name}": kind for name, kind in PARTITIONS.items()} | {f"shift {n}": k for n, k in SHIFTS.items()}
SPLIT |= {f"drift {name}": kind for name, kind in DRIFTS.items()}
KINDS = {"config": Config, "change": ChangeSettings, **SPLIT, **AGGREGATIONS, **METHODS}


@dataclass(frozen=True)
class Inner:
    depth: int = 3  # of the well


@dataclass(frozen=True)
class Outer:
    width: float  # of the | door
    inner: Inner = field(default_factory=lambda: Inner(4))
    size: int | None = None  # None: any


def test_keys_are_dotted_defaults_are_those_of_the_place_and_the_meaning_is_the_comment():
    rows = [(s.key, s.kind, s.default, s.meaning) for s in settings_of(Outer)]
    assert rows == [
        ("width", "number", "(must be given)", "of the | door"),
        ("inner.depth", "integer", "`4`", "of the well"),
        ("size", 'integer or "none"', '`"none"`', "none: any"),
    ]
    assert "| `width` | number | (must be given) | of the \\| door |" in table(settings_of(Outer))


@pytest.mark.parametrize("name", KINDS)
def test_every_setting_says_what_it_means_beside_it(name):
    without = (*BY_NAME, *SECTIONS) if name == "config" else GIVEN
    unsaid = [s.key for s in settings_of(KINDS[name], without) if len(s.meaning.split()) < 2]
    assert not unsaid, f"put a comment behind {unsaid}: it is what the site's reference shows"


def test_the_config_page_has_every_key_of_a_resolved_config():
    page = config_page(DEMO.read_text())
    for key in flatten(Config(method="fedavg").resolve()):
        section, _, rest = key.partition(".")
        if section not in ("methods", *BY_NAME):
            assert f"| `{rest if section in SECTIONS else key}` |" in page, key
    assert all(f'### `name = "{name}"`' in page for name in (*PARTITIONS, *SHIFTS, *DRIFTS, *AGGREGATIONS))
