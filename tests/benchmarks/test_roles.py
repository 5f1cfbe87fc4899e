"""docs/roles.md says what the code does, and says of those who cannot be assigned why."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import roles
from kinfed.capabilities import reason_for_labels
from kinfed.cli import app
from kinfed.data import Role
from kinfed.engines import Vectorised
from kinfed.errors import RoleError
from kinfed.experiment import Experiment
from kinfed.methods import CFL, METHODS, FeSEM
from kinfed.methods.split_tree import SplitRule
from kinfed.signatures import EncoderCentroids
from tests.methods.planted import LOCAL, NESTED, net, renamed
from tests.methods.registry import make, population
from tests.problems import fit

pytestmark = pytest.mark.filterwarnings("ignore:.* which is FedAvg")  # FedBN, whose network has no norms here
REFUSING = [name for name, method in METHODS.items() if reason_for_labels(method)]
WHY = re.compile(
    r"clients \[.+\] have no labelled training samples, but .+; use a method that needs none, such as (\w+)"
)
W = 4 * (784 * 200 + 200 + 200 * 10 + 10)  # bytes of MLP-200
DEAR = {"apfl", "pfedme", "fedrep", "stocfl", "fedem", "fedrc"}  # their costs are derived in the same way as others'


@pytest.fixture(scope="module")
def table() -> str:
    """The table of the page, which has the rows that the methods give."""
    return roles.written()


def cells(table: str, name: str, setting: str = "") -> dict[str, str]:
    """The row of a method, with other settings where they are named, by column."""
    title = f"`{name}`, `{setting}`" if setting else f"`{name}`"
    row = next(line for line in table.splitlines() if line.startswith(f"| {title} |"))
    return dict(zip(roles.HEAD, row.strip("| ").split(" | "), strict=True))


def case_of(name: str, setting: str):
    later = name in DEAR or setting == "signature.name=encoder_centroids"  # the dearest signature, untuned in every run
    return pytest.param(name, setting, marks=[pytest.mark.on_demand] if later else [])


@pytest.mark.parametrize(("name", "setting"), [case_of(*case) for case in roles.cases()])
def test_the_docs_have_the_row_that_a_method_gives(table, name, setting):
    found = roles.line(name, setting, *roles.measure(name, roles.cases()[name, setting]))
    assert dict(zip(roles.HEAD, found.strip("| ").split(" | "), strict=True)) == cells(table, name, setting), (
        "run: python benchmarks/roles.py --write"
    )


def test_the_docs_have_a_row_for_every_method_and_no_other(table):
    titles = [line.strip("| ").split(" | ")[0] for line in table.splitlines()]
    wanted = [f"`{name}`, `{setting}`" if setting else f"`{name}`" for name, setting in roles.cases()]
    assert titles == [roles.HEAD[0], "---", *wanted]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_assigns_late_and_holdout_clients_and_the_unlabelled_where_it_says_so(table, name):
    row = cells(table, name)
    assert row["late"].startswith("yes") and row["holdout"].startswith("yes")
    assert row["unlabelled"].startswith("yes") == (not reason_for_labels(METHODS[name]))
    assert row["why not"] == (reason_for_labels(METHODS[name]) or "–")


@pytest.mark.parametrize(
    ("name", "down", "up", "served"),
    [
        ("fedavg", 0, 0, W),
        ("fedper", 0, 0, 4 * (784 * 200 + 200)),
        ("lg_fedavg", 0, 0, 4 * (200 * 10 + 10)),
        ("local", 0, 0, 0),
        ("pca_km_hc", 0, 4 * 5 * 128, W),  # centres in principal components
        ("ifca", 2 * W, 8, 2 * W),  # all models, and which one it chooses
        ("fesem", W, W, W),  # it trains once
        ("cfl", W, W, W),  # once at the only split
        ("flis_dc", 4 * W, 0, 0),  # a model for each participant; it remembers its choice
    ],
)
def test_costs_are_those_derived_by_hand(table, name, down, up, served):
    row = cells(table, name)
    found = [int(row[column].split()[0]) for column in ("assigning: down", "assigning: up", "serving: down")]
    assert found == [down, up, served]


def test_flt_costs_principal_components_down_and_mean_embeddings_and_counts_up(table):
    row = cells(table, "flt")
    assert row["assigning: down"].startswith(f"{4 * 784 * (128 + 1)} ")
    assert row["assigning: up"].startswith(f"{4 * 4 * (128 + 1)} ")


def test_flts_centroids_cost_an_auto_encoder_down_and_shares_up(table):
    weights = EncoderCentroids().network(torch.Size((1, 28, 28))).init()
    row = cells(table, "flt", "signature.name=encoder_centroids")
    assert row["assigning: down"].startswith(f"{4 * sum(w.numel() for w in weights.values())} ")
    assert row["assigning: up"].startswith(f"{4 * 5 * (128 + 1)} ")


def test_assigning_costs_the_same_in_every_role(table):
    assert " / " not in table


def test_an_epoch_counts_two_products_of_the_first_layer_and_three_of_the_second():
    # 2 operations a weight and row: forward and for the weights, and in the second layer for its inputs too
    assert roles.epoch() == 2 * 60 * (2 * 784 * 200 + 3 * 200 * 10)


def test_the_weights_that_nobody_trained_are_noticed(table):
    assert cells(table, "local")["holdout"] == "yes, 100% untrained"
    assert cells(table, "fedper")["holdout"] == "yes, 1% untrained"  # 2,010 of 159,010
    assert cells(table, "fedavg")["holdout"] == "yes"


def test_who_never_trains_is_asked_again_after_every_round_of_flis_dc_and_fedsoft_and_every_step_of_feddrift(table):
    again = [name for name in METHODS if cells(table, name)["assigned again"] == "every round"]
    assert again == ["flis_dc", "feddrift", "fedsoft"]


def test_cfl_asks_a_holdout_client_again_when_its_cluster_is_split():
    cfl = CFL(net(), LOCAL, SplitRule(mean_below=0.5, some_above=0.5), after=8)
    people = renamed(NESTED, clients=20, roles=tuple(Role(holdout=i == 2) for i in range(20)))
    state, fed = fit(cfl, population=people, rounds=28)
    assert len(state.tree.parents) == 3 and fed.ledger.up["differ"][2] == 2 * 4 * net().parameters()


def test_fesem_asks_a_holdout_client_again_when_others_change_sides():
    people = renamed(roles=tuple(Role(holdout=i == 2) for i in range(12)))
    _, fed = fit(FeSEM(net(), LOCAL, clusters=2), population=people, rounds=3)
    asked = [round for round, task, *_ in fed.ledger.rounds if task == "differ"]
    assert asked == [0, 0], "when it comes, and when the first round finds two sides"


@pytest.mark.parametrize("name", REFUSING)
def test_an_unlabelled_client_is_refused_before_anybody_trains_with_the_reason_and_a_way_out(name):
    people = population()
    y = people.y.clone()
    y[people.train[7]] = -1
    people = replace(people, y=y, roles=tuple(Role(labelled=i != 7) for i in range(12)))
    method = make(name)
    fed = Vectorised(method, people)
    with pytest.raises(RoleError) as refusal:
        Experiment.over(fed, rounds=3).run()
    assert "train" not in fed.ledger.up and "[7]" in str(refusal.value)
    instead = WHY.fullmatch(str(refusal.value))
    assert instead and not reason_for_labels(METHODS[instead[1]])


@pytest.mark.parametrize("name", REFUSING)
def test_the_command_line_refuses_in_one_line(name, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    words = [f"method={name}", "partition.clients=10", "rounds=2", "data.public=0.05", "roles.unlabelled=0.2"]
    result = CliRunner().invoke(app, ["run", *words, "-q"])
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.output
    assert WHY.fullmatch(result.stderr.strip().removeprefix("error: ")), result.stderr
    assert not list(tmp_path.iterdir()), "nothing was begun"
