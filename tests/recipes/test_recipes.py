"""Every packaged recipe: whole, valid, and assembled on data of the right shapes."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kinfed.config import assemble, make_population, read_toml
from kinfed.data import PARTITIONS, SHIFTS
from kinfed.errors import ConfigError
from kinfed.recipes import MEASURES, Wanted, cells_of, digest, list_recipes, load_recipe, references
from kinfed.recipes.cells import digest_tables
from kinfed.recipes.measures import Printed
from kinfed.recipes.recipe_files import FOLDER, extend, read_number, read_recipe
from kinfed.recipes.store import Store, jobs_of
from tests.recipes.made_up import NAMES_OF_DATA, TINY, store_all

NAMES = list_recipes()
FEW = {"flux-grid": ("*-1", "*-8")}  # of many columns that differ in a number alone


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store_all(tmp_path_factory.mktemp("data"))


def test_all_numeric_tables_of_the_papers_are_there():
    tables = {"flt-table": 6, "flt-workshop": 2, "flhc-table": 6, "flis-table": 4, "repa-table": 1}
    known = [f"{table}-{n}" for table, count in tables.items() for n in range(1, count + 1)]
    assert {
        *known,
        "flt-table-4-balanced",
        "har-gpfl",
        "shakespeare",
        "niid-bench",
        "flux-grid",
        "pfllib-board",
        "pfllib-code",
        "fedem-table",
    } <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_row_has_its_published_numbers_in_every_column(name):
    recipe = load_recipe(name)
    for row in recipe.rows.values():
        assert not row.published or set(row.published) == set(recipe.columns), row.name
    assert recipe.figure or any(row.published for row in recipe.rows.values())


def test_a_figure_says_what_the_paper_s_shows_and_has_checks_of_its_shape():
    figures = {name: recipe for name in NAMES if (recipe := load_recipe(name)).figure}
    assert len(figures) >= 19
    assert all(recipe.figure and recipe.figure.shows and recipe.claims for recipe in figures.values())


def test_a_figure_s_axis_is_made_of_the_values_of_a_key(data):
    cells = cells_of(load_recipe("flhc-figure-iid"), Wanted(rows=("l2-ward",), data_dir=str(data)))
    assert [cell.column.x for cell in cells] == [1, 3, 5, 10]
    assert [cell.variants[0].settings_of("flhc")["rounds_before"] for cell in cells] == [1, 3, 5, 10]


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_is_a_valid_config_of_known_data_and_says_under_which_protocol(name, data):
    recipe = load_recipe(name)
    assert all(protocol.says for protocol in recipe.protocols.values())
    for cell in cells_of(recipe, Wanted(columns=FEW.get(name, ()), data_dir=str(data))):
        assert not cell.missing and cell.protocols and cell.variants
        assert all(config.data.name in NAMES_OF_DATA for config in cell.variants)


@pytest.mark.parametrize(
    ("figure", "tables"),
    [
        ("flt-figure-3", ["flt-figure-2"]),
        ("flt-figure-4", ["flt-table-3"]),
        ("flt-figure-5", ["flt-table-4"]),
        ("flt-figure-clients", ["flt-table-1", "flt-table-2", "flt-table-4"]),
        ("flhc-figure-1", ["flhc-table-1", "flhc-table-2", "flhc-table-3"]),
        ("flis-figure-4", ["flis-table-1"]),
    ],
)
def test_a_figure_or_table_that_is_read_from_runs_of_another_shares_them(figure, tables, data):
    wanted = Wanted(data_dir=str(data))
    theirs = set()
    for recipe in map(load_recipe, tables):
        configs = [config for cell in cells_of(recipe, wanted) for config in cell.variants]
        theirs |= {digest(each) for config in configs for each in (config, *references(recipe, config))}
    own = [cell for cell in cells_of(load_recipe(figure), wanted) if digest(cell.variants[0]) not in theirs]
    assert [(cell.row.name, cell.column.name) for cell in own] in ([], [("local", "four")])


def test_claims_add_up_but_a_figure_over_a_table_has_its_own_alone():
    says = {name: [claim.says for claim in load_recipe(name).claims] for name in ("flt-table-4", "flt-figure-5")}
    assert "FLT is at least 25 points above FedAvg" in says["flt-table-4"] and len(says["flt-table-4"]) == 3
    assert "FLT is at least 25 points above FedAvg" not in says["flt-figure-5"]


DEAR = (
    "flux-grid", "flis-table-1", "flis-table-2", "flis-table-3", "flis-table-4", "flt-table-2", "flt-figure-k",
    "flhc-table-1", "flhc-table-3", "flhc-table-4", "flhc-table-5", "niid-bench", "pfllib-code",
)  # many cells alike, or those of another recipe  # fmt: skip


def choose_cells(cells):
    """One cell of every row and one of every column."""
    rows, columns = ({getattr(cell, of).name: cell for cell in reversed(cells)} for of in ("row", "column"))
    return [*rows.values(), *columns.values()]


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.on_demand)])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.on_demand] if name in DEAR else []) for name in NAMES]
)
def test_the_quick_version_of_every_cell_can_be_assembled(name, whole, data):
    cells = cells_of(load_recipe(name), Wanted(columns=FEW.get(name, ()), data_dir=str(data), quick=True))
    cells = cells if whole else choose_cells(cells)
    configs = {digest(config): config for cell in cells for config in cell.variants}
    populations: dict[str, object] = {}
    for config in configs.values():
        key = repr((config.data, config.partition, config.shift, config.roles))  # settings of one's own may be tables
        if key not in populations:
            populations[key] = make_population(config)
        experiment = assemble(config, populations[key])  # type: ignore[arg-type]
        assert experiment.rounds <= 12


@pytest.mark.parametrize("name", NAMES)
def test_without_any_data_all_cells_say_what_is_missing(name, tmp_path):
    for cell in cells_of(load_recipe(name), Wanted(columns=FEW.get(name, ()), data_dir=str(tmp_path))):
        assert cell.missing and set(cell.missing) <= NAMES_OF_DATA


def test_numbers_are_read_as_the_paper_prints_them():
    assert read_number("82.73 ± .38", "here") == Printed(82.73, 0.38)
    assert read_number(44.65, "here") == Printed(44.65) and read_number("–", "here") is None
    with pytest.raises(ConfigError, match="here: wanted a number"):
        read_number("82,73", "here")


def test_some_published_numbers_by_hand():
    first = load_recipe("flt-table-1").rows["flt-enc2"].published
    assert first["mnist"] == (Printed(97.97, 0.14), Printed(2.17))
    assert load_recipe("flt-table-4").rows["flt"].published["cnn"] == (Printed(93.69, 0.10), Printed(98.65))
    swapped = [n and n.value for n in load_recipe("flhc-table-2").rows["a20-n10"].published["mnist"]]
    assert swapped == [98.6, 1.2, 98.6, 99.0, 1.3, 57.0, None, 57.0, 77.0, None]
    assert load_recipe("flis-table-1").rows["flis-dc"].published["fmnist-20"] == (Printed(97.64, 0.38), None)
    first = load_recipe("flux-grid").rows["flux"].published
    assert first["mnist-1"] == (Printed(95.72, 0.38), Printed(95.61, 0.57)) and first["mnist-8"][0] == Printed(
        88.4, 4.22
    )
    assert load_recipe("niid-bench").rows["scaffold"].published["fmnist-2"] == (Printed(33.8, 41.22), None)
    assert load_recipe("repa-table-1").rows["wd-2"].published["drift"] == (Printed(0.15, 0.05),)


def test_how_many_numbers_were_published():
    def count(name):
        rows = load_recipe(name).rows.values()
        return sum(number is not None for row in rows for cell in row.published.values() for number in cell)

    # rows · columns · measures; FL+HC has blanks
    assert [count(f"flt-table-{n}") for n in range(1, 6)] == [6 * 2 * 2, 6 * 2 * 2, 9 * 2 * 2, 4 * 2 * 2, 16 * 3]
    assert [count(f"flt-workshop-{n}") for n in (1, 2)] == [4 * 2 * 2, 3 * 2]
    assert [count(f"flis-table-{n}") for n in (1, 2, 4)] == [13 * 8, 12 * 3, 10 * 4]  # FLIS-HC thrice in I, twice in II
    assert count("repa-table-1") == 5 * 3
    assert count("niid-bench") == 4 * 3 * 5
    assert count("pfllib-board") == 9 * 4
    assert count("pfllib-code") == 10 * 5 + 9  # whole and small splits; PFLlib's pFedMe did not end on CIFAR-10
    assert count("fedem-table") == 4
    assert count("flux-grid") == 8 * 3 * 8 + 7 * 3 * 8  # pFedMe was not published for unseen clients
    assert [count(f"flhc-table-{n}") for n in (1, 4)] == [16 * 8, 10 * 8]


def test_the_best_of_a_sweep_is_reported_and_each_of_its_runs_is_planned(data):
    cells = cells_of(load_recipe("flhc-table-4"), Wanted(rows=("l2-ward",), data_dir=str(data)))
    assert [len(cell.variants) for cell in cells] == [4, 1]
    cuts = [config.methods["flhc"]["hierarchy"].quantile for config in cells[0].variants]
    assert cuts == [0.5, 0.8, 0.9, 0.96]


def test_a_cell_of_a_column_of_several_configs_runs_with_each(data):
    (cell,) = cells_of(load_recipe("flux-grid"), Wanted(rows=("flux",), columns=("mnist-6",), data_dir=str(data)))
    shifts = [type(config.shift).__name__ for config in cell.variants]
    assert cell.is_mean and shifts == ["Patterns", "NoneType", "LabelPermutation", "LabelRotation"]
    assert [config.roles.unlabelled_twins for config in cell.variants] == [True, True, False, True]
    assert cell.variants[1].partition == PARTITIONS["label_sets"](10, 5, 5)
    assert cell.variants[0].shift == SHIFTS["patterns"](3, 3)


def test_a_column_has_settings_of_its_own_under_a_protocol(data):
    wanted = Wanted(rows=("flis-dc",), columns=("cifar10-20", "fmnist-20"), data_dir=str(data))
    cells = {(cell.column.name, *cell.protocols): cell for cell in cells_of(load_recipe("flis-table-1"), wanted)}
    photos, clothes = (cells[name, "augmented"].variants[0] for name in ("cifar10-20", "fmnist-20"))
    assert photos.inputs.padding == "reflect" and photos.inputs.augment == ("crop", "flip")
    assert photos.inputs.std == (0.2023, 0.1994, 0.2010) and clothes.inputs.augment == ()
    assert (photos.data.public, photos.data.public_train) == (0.25, False)
    assert not cells["cifar10-20", "paper"].variants[0].inputs.augment


def test_a_misspelt_key_names_the_nearest_one():
    table = {"title": "t", "paper": "p", "measures": ["accuracy"], "colums": {}}
    with pytest.raises(ConfigError, match="'colums': did you mean 'columns'"):
        read_recipe("mine", table)


def test_an_unknown_measure_method_or_table_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'accuracy'"):
        read_recipe("mine", {"title": "t", "paper": "p", "measures": ["acuracy"]})
    with pytest.raises(ConfigError, match="did you mean 'flt-table-1'"):
        load_recipe("flt-tabel-1")
    assert "accuracy" in MEASURES


def test_a_stand_in_takes_the_place_of_data_that_are_not_here(tmp_path, data):
    (tmp_path / "emnist47.npz").symlink_to(data / "emnist_balanced.npz")
    (tmp_path / "fashion_mnist.npz").symlink_to(data / "fashion_mnist.npz")
    cells = cells_of(load_recipe("flt-workshop-2"), Wanted(data_dir=str(tmp_path)))
    assert {config.data.name for cell in cells for config in cell.variants} == {"emnist47"}
    assert all("emnist47" in cell.incomparable and not cell.missing for cell in cells)


def test_a_dataset_that_lacks_classes_is_not_here_but_may_train_an_encoder(tmp_path, data):
    for name in ("cifar10", "fashion_mnist"):
        (tmp_path / f"{name}.npz").symlink_to(data / f"{name}.npz")
    with np.load(data / "cifar100.npz") as whole:
        some = whole["y_train"] < 21
        arrays = {"x_train": whole["x_train"][some], "y_train": whole["y_train"][some]}
        np.savez(tmp_path / "cifar100.npz", x_test=whole["x_test"], y_test=whole["y_test"], **arrays)
    wanted = Wanted(rows=("fednova", "flt-enc2"), protocols=("fair",), data_dir=str(tmp_path))
    missing = {cell.column.name: cell.missing for cell in cells_of(load_recipe("flis-table-2"), wanted)}
    assert missing == {"fmnist": (), "cifar10": (), "cifar100": ("cifar100",)}
    (cell,) = cells_of(load_recipe("flt-table-1"), replace(wanted, columns=("cifar10",)))
    assert not cell.missing and "cifar100" in cell.data


def test_a_row_may_stand_in_some_columns_alone(data):
    cells = cells_of(load_recipe("flt-figure-encoder"), Wanted(rows=("turn", "tuned"), data_dir=str(data)))
    assert {c.column.name for c in cells if c.row.name == "turn"} == {"25"}
    assert {c.column.name for c in cells if c.row.name == "tuned"} == {"1", "5", "25"}


def test_protocols_that_ask_for_the_same_run_share_it(data):
    cells = cells_of(load_recipe("flt-table-1"), Wanted(columns=("mnist",), data_dir=str(data)))
    assert [cell.protocols for cell in cells if cell.row.name == "local"] == [("paper", "first", "fair")]
    assert [cell.protocols for cell in cells if cell.row.name == "fedavg"] == [("paper",), ("first",), ("fair",)]


def test_the_same_run_in_two_tables_has_the_same_digest(data):
    both = [cells_of(load_recipe(name), Wanted(data_dir=str(data))) for name in ("flt-table-4", "flt-workshop-2")]
    journal, workshop = ({digest(config) for cell in cells for config in cell.variants} for cells in both)
    assert workshop < journal


def test_one_run_of_each_encoder_goes_first_and_the_others_that_need_it_last(tmp_path, data):
    wanted = Wanted(rows=("fedavg", "flt-enc*", "calibrated*"), data_dir=str(data), protocols=("paper", "fair"))
    tables = [load_recipe("flt-table-1"), load_recipe("flt-table-2")]
    jobs = jobs_of([(table, cells_of(table, wanted)) for table in tables], wanted, Store(tmp_path))
    said = [job.said for job in jobs]
    assert [text.split(",")[1].strip() for text in said[:4]] == ["Enc1", "Enc2"] * 2
    assert [text.split(",")[2].strip() for text in said[:4]] == ["MNIST", "MNIST", "CIFAR-10", "CIFAR-10"]
    needs = ["Enc" in text for text in said[4:]]
    assert needs == sorted(needs) and needs.count(False) == 2 * 2 * (2 + 1)


def test_a_row_that_is_a_round_of_a_longer_run_shares_it(data, tmp_path):
    recipe, wanted = (
        load_recipe("flt-table-5"),
        Wanted(rows=("m100-r20-e5-*",), columns=("oracle",), data_dir=str(data)),
    )
    early, late = cells = cells_of(recipe, wanted)
    assert (early.row.round, late.row.round) == (50, 0) and early.settings != late.settings
    (job,) = jobs_of([(recipe, cells)], wanted, Store(tmp_path))
    assert job.config.rounds == 100 and 50 % job.config.evaluation.every == 0


def test_clients_are_asked_for_the_main_metric_alone(data):
    (cell, *_) = cells_of(load_recipe("flhc-table-1"), Wanted(data_dir=str(data)))
    assert cell.variants[0].evaluation.metrics == "main"


def test_flis_tables_i_and_iii_share_runs_and_a_target_changes_kept_numbers_only_where_one_is_measured(data, tmp_path):
    wanted = Wanted(rows=("flis-hc",), columns=("fmnist-20",), protocols=("paper",), data_dir=str(data))
    first, third = ((recipe := load_recipe(f"flis-table-{n}"), cells_of(recipe, wanted)) for n in (1, 3))
    assert [job.config.rounds for job in jobs_of([first, third], wanted, Store(tmp_path))] == [200]
    assert [job.config.rounds for job in jobs_of([third], wanted, Store(tmp_path))] == [30]
    tables = [{"evaluation": {"target": share}} for share in (0.7, 0.8)]
    assert len({digest_tables([table], ["accuracy"]) for table in tables}) == 1
    assert len({digest_tables([table], ["rounds_to_target"]) for table in tables}) == 2


def test_flis_table_iii_adds_no_run_to_table_i(data, tmp_path):
    wanted = Wanted(columns=("fmnist-*", "cifar10-30"), data_dir=str(data))
    first, third = ((recipe := load_recipe(f"flis-table-{n}"), cells_of(recipe, wanted)) for n in (1, 3))
    both, alone = (jobs_of(tables, wanted, Store(tmp_path)) for tables in ([first, third], [first]))
    assert {job.path for job in both} == {job.path for job in alone}


def test_a_run_whose_clients_also_adapt_stands_for_the_one_whose_do_not(data, tmp_path):
    recipe, store = load_recipe("flis-table-2"), Store(tmp_path)
    wanted = Wanted(rows=("lg", "ifca"), columns=("fmnist",), protocols=("paper", "fair"), data_dir=str(data))
    cells = cells_of(recipe, wanted)
    jobs = jobs_of([(recipe, cells)], wanted, store)
    assert sorted(job.config.method for job in jobs) == ["ifca", "ifca", "lg_fedavg"]
    (adapted,) = (job for job in jobs if job.config.method == "lg_fedavg")
    paper = next(cell for cell in cells if (cell.row.name, cell.protocols) == ("lg", ("paper",))).variants[0]
    assert adapted.config.evaluation.adapt and not paper.evaluation.adapt
    adapted.path.mkdir(parents=True)
    (adapted.path / "summary.json").write_text("{}")
    assert store.run(paper) and not Store(tmp_path).run(paper)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"claims": [{"says": "up", "better": "local", "rule": "peaks", "between": [1]}]},
         r"'up' is by 'peaks', which wants 2 in `between`, got \[1\.0\]"),
        ({"claims": [{"says": "steep", "better": "local", "rule": "jumps", "between": [1, 2, 3]}]},
         r"which wants 2 in `between`, got \[1\.0, 2\.0, 3\.0\]"),
        ({"claims": [{"says": "flat", "better": "local", "rule": "settles"}]}, "which wants 1 in `between`"),
        ({"target": "local", "main": "variance"}, "tiny.target: costs are counted .* variance is known at the end"),
    ],
)  # fmt: skip
def test_a_claim_or_target_that_could_not_be_looked_at_is_refused_when_it_is_read(change, message):
    with pytest.raises(ConfigError, match=message):
        read_recipe("tiny", tomllib.loads(TINY) | change)
    assert read_recipe("tiny", tomllib.loads(TINY) | {"target": "local"}).target == "local"


OF_DATASETS = """
[datasets.digits."fair|other*".config]
inputs = { mean = [0.5], std = [0.2] }

[datasets.digits.fair.config]
inputs.mean = [0.4]

[datasets.cifar10]
config = { model = "cnn", data.public = 0.1 }
elsewhere.config.rounds = 7
"""


def test_columns_of_a_dataset_have_its_settings_below_their_own():
    columns = read_recipe("tiny", tomllib.loads(TINY + OF_DATASETS)).columns
    assert columns["photos"].config == {"data": {"name": "cifar10", "public": 0.1}, "model": "lenet5"}
    assert columns["photos"].under == {}
    assert columns["digits"].config == {}  # whose dataset all columns have, but for those that name another
    assert columns["digits"].under == {"fair": {"inputs": {"mean": [0.4], "std": [0.2]}}}


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ({"cifar": {}}, "tiny: dataset 'cifar': did you mean 'cifar10'"),
        ({"digits": {"fair": {"rounds": 3}}}, "tiny: datasets.digits.fair: unknown key 'rounds'"),
        ({"digits": {"title": "Digits"}}, "tiny: datasets.digits.title: wanted a table, got 'Digits'"),
    ],
)
def test_a_slip_in_the_settings_of_a_dataset_is_refused(datasets, message):
    with pytest.raises(ConfigError, match=message):
        read_recipe("tiny", tomllib.loads(TINY) | {"datasets": datasets})


def test_settings_of_a_dataset_are_for_protocols_that_some_table_has():
    said, known = set(), set()
    for table in (extend(read_toml(FOLDER / f"{name}.toml")) for name in NAMES):
        if "datasets" in table:
            said |= {part for inner in table["datasets"].values() for key in inner for part in key.split("|")}
            known |= {"config", "quick", *table["protocols"]}
    assert said and said <= known


def test_a_recipe_that_extends_itself_is_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(f'extends = "{tmp_path / "mine"}"\ntitle = "t"\n')
    with pytest.raises(ConfigError, match="extends itself"):
        load_recipe(str(path))
