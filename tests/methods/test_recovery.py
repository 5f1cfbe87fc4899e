"""Planted groups of five kinds are found, or not, as benchmarks/recovery.toml has it. No method is exempt."""

import math
from dataclasses import replace

import pytest

from benchmarks.recovery import FOUND, PLAN, UNSEEN, config_of, measure, read_plan, reference, shown, verdict
from kinfed.config import Config
from kinfed.methods import METHODS

CELLS = read_plan()
WHOLE = {"flt", "pca_km_hc"}  # all kinds in every run; of auto two, of the others one, and all on demand
DEAR = {"repa", "ifca", "flis_dc", "feddrift"}  # on demand; in every run test_late finds the clusters of tiny clients
TELLING = ("finds", "blind")  # claims that a measured number can break


def own_kinds(method: str) -> set[str]:
    """The kinds that a method is tried on in every run: with a telling claim if it has one, and all kinds in turn."""
    if method in WHOLE | DEAR:
        return set(CELLS.kinds) if method in WHOLE else set()
    if method == "auto":
        return {"disjoint", "rotated"}
    telling = [kind for kind in CELLS.kinds if CELLS.holds((method, kind)) in TELLING] or list(CELLS.kinds)
    return {telling[list(METHODS).index(method) % len(telling)]}


def cell_of(method: str, kind: str):
    later = kind not in own_kinds(method)
    return pytest.param((method, kind), id=f"{method} {kind}", marks=[pytest.mark.on_demand] if later else [])


EVERY = [cell_of(method, kind) for method in METHODS for kind in CELLS.kinds]


def test_something_is_expected_of_every_method_on_every_kind():
    where = f"write it into [expected.METHOD] of benchmarks/{PLAN.name}, with the reason, before you measure"
    assert not CELLS.missing(), f"nothing is expected of {', '.join(CELLS.missing())}: {where}"
    assert {method for method, _ in CELLS.expected} == set(METHODS), "and of no method that is not there"


def test_what_differs_is_another_claim_than_was_expected():
    for cell, measured in CELLS.differs.items():
        assert measured.claim != CELLS.expected[cell].claim, cell


@pytest.mark.filterwarnings("ignore:.* which is FedAvg")
@pytest.mark.parametrize("cell", EVERY)
def test_clusters_are_found_as_written_down(cell):
    claim = CELLS.holds(cell) if cell in CELLS.expected else pytest.fail("see the first test of this file")
    ari = measure(shorten(config_of(CELLS, cell, CELLS.kinds[cell[1]].seeds[0]), claim))
    if claim == "no clusters":
        assert ari is None
    else:
        assert ari is not None and math.isfinite(ari)
        assert claim != "finds" or ari >= FOUND
        assert claim != "blind" or ari <= UNSEEN


def shorten(config: Config, claim: str) -> Config:
    """The config, or less of it where no number is claimed: that a method forms clusters, or none, shows at once."""
    if claim in TELLING:
        return config
    rounds = 1 if claim == "no clusters" else config.rounds
    return replace(config, rounds=rounds, training=replace(config.training, epochs=1))


@pytest.mark.parametrize("kind", CELLS.kinds)
def test_the_images_show_the_clusters_of_every_kind_but_swapped_labels(kind):
    ari = reference(config_of(CELLS, ("fedavg", kind), CELLS.kinds[kind].seeds[0]))
    assert ari <= UNSEEN if kind == "swapped" else ari == 1


def test_a_claim_must_hold_at_every_seed():
    assert verdict([1.0, 0.9]) == "finds" and verdict([1.0, 0.89]) == "partly"
    assert verdict([-0.1, 0.2]) == "blind" and verdict([0.0, 0.21]) == "partly"
    assert verdict([None, None]) == "no clusters"


def test_a_cell_shows_the_mean_the_least_and_whether_it_was_expected():
    assert shown([1.0, 1.0], "finds") == "1.00"
    assert shown([1.0, 0.5], "finds") == "0.75 (0.50) ≠"
    assert shown([1.0, 0.5], "partly") == "0.75 (0.50)"
    assert shown([0.0, -0.001], "blind") == "0.00"
    assert shown([None], "no clusters") == "–" and shown([1.0], "blind") == "1.00 ≠"


def test_a_user_can_run_every_cell_from_a_file(tmp_path):
    from benchmarks.recovery import main
    from kinfed.config import load_config

    main(["--configs", str(tmp_path), "--kinds", "swapped,style"])
    assert len(list(tmp_path.iterdir())) == 2 * len(METHODS)
    for method in METHODS:
        assert load_config(tmp_path / f"{method}-style.toml") == config_of(CELLS, (method, "style"), 0)


def test_only_whole_rows_are_written_to_the_page(capsys):
    from benchmarks.recovery import main

    with pytest.raises(SystemExit):
        main(["--write", "--kinds", "swapped"])
    assert "--write needs all kinds" in capsys.readouterr().err
