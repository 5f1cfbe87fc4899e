"""`kinfed reproduce` as its users meet it: real runs of a tiny table, real files."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kinfed.cli import app
from kinfed.recipes import reproduction
from kinfed.runs import CHECKPOINT, CONFIG, SUMMARY, Run
from tests.recipes.made_up import TINY, store_all


@pytest.fixture(autouse=True)
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own with the tiny recipe in it, and no data or network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("KINFED_DATA", str(tmp_path))
    Path("tiny.toml").write_text(TINY, encoding="utf-8")


def reproduce(*words: str) -> Result:
    return CliRunner().invoke(app, ["reproduce", *words])


def numbers(name: str = "tiny") -> dict[tuple[str, ...], dict[str, str]]:
    with open(f"runs/reproduce/{name}.csv", encoding="utf-8") as file:
        return {(r["row"], r["column"], r["protocol"], r["measure"]): r for r in csv.DictReader(file)}


def test_a_table_is_run_judged_and_written():
    result = reproduce("tiny.toml", "--seeds", "2")
    assert result.exit_code == 0, result.output
    assert "Photographs: data not here (cifar10); 2 rows were left out." in result.output
    assert "left out: 3 cells whose data are not here (cifar10)" in result.output.split("run 1 of")[0]
    found = numbers()
    alone = found["local", "digits", "paper", "accuracy"]
    assert alone == found["local", "digits", "fair", "accuracy"] | {"protocol": "paper"}
    assert alone["verdict"] == "worse" and float(alone["difference"]) == float(alone["measured"]) - 99.5
    assert found["fedavg", "digits", "fair", "accuracy"]["verdict"] == "cannot be compared"
    assert found["fedavg", "photos", "paper", "accuracy"]["measured"] == ""
    said = json.loads(Path("runs/reproduce/tiny.json").read_text())
    assert {claim["verdict"] for claim in said["claims"] if claim["column"] == "photos"} == {"not run"}
    assert len(list(Path("runs/reproduce/runs").iterdir())) == 6  # FedAvg twice and Local once, of two seeds
    assert "tabular" in Path("runs/reproduce/tiny.tex").read_text()
    assert "nobody published it" in Path("runs/reproduce/tiny.md").read_text()


def test_what_has_ended_is_not_run_again_and_what_was_killed_goes_on():
    assert reproduce("tiny.toml", "-q").exit_code == 0
    before = numbers()
    runs = sorted(Path("runs/reproduce/runs").iterdir())
    times = {run: (run / SUMMARY).stat().st_mtime_ns for run in runs}
    (runs[0] / SUMMARY).unlink()  # killed before its first checkpoint
    assert (runs[0] / CONFIG).exists()
    result = reproduce("tiny.toml")
    assert "3 runs, 2 of them done before" in result.output
    assert [run for run in runs if (run / SUMMARY).stat().st_mtime_ns != times[run]] == [runs[0]]
    assert {k: v["measured"] for k, v in numbers().items()} == {k: v["measured"] for k, v in before.items()}


def test_what_has_ended_can_be_shown_without_running_the_rest():
    assert reproduce("tiny.toml", "-q", "--rows", "local").exit_code == 0
    result = reproduce("tiny.toml", "--show")
    assert result.exit_code == 0 and "3 runs, 1 of them done before" in result.output
    assert len(list(Path("runs/reproduce/runs").iterdir())) == 1
    found = numbers()
    assert found["local", "digits", "paper", "accuracy"]["measured"]
    assert not found["fedavg", "digits", "paper", "accuracy"]["measured"]
    page = Path("runs/reproduce/tiny.md").read_text()
    assert "| FedAvg | paper | 40 ± 1 → not run |" in page
    assert "- Columns that were not run: Photographs." in page and "data not here" not in page


def test_a_row_has_the_numbers_after_its_round_of_a_run_that_it_shares():
    early = '\n[rows.early]\ntitle = "Local, T = 2"\nconfig.method = "local"\nround = 2\n'
    text = Path("tiny.toml").read_text(encoding="utf-8").replace('["accuracy", "variance"]', '["accuracy"]')
    for before, after in (('["40 ± 1", 300]', "40"), ("[99.5, 1]", "99.5"), ('[50, "–"]', "50"), ("[50, 2]", "50")):
        assert before in text
        text = text.replace(before, after)
    Path("tiny.toml").write_text(
        text.replace("rounds = 3", "rounds = 3\nevaluation.every = 1") + early, encoding="utf-8"
    )
    result = reproduce("tiny.toml", "-q", "--rows", "local,early", "--only", "digits")
    assert result.exit_code == 0, result.output
    (run,) = map(Run, Path("runs/reproduce/runs").iterdir())
    found = {row: float(numbers()[row, "digits", "paper", "accuracy"]["measured"]) for row in ("early", "local")}
    assert found == {"early": 100 * run.rounds["accuracy"][1], "local": 100 * run.rounds["accuracy"][2]}
    assert found["early"] != found["local"]


def test_a_row_s_round_is_refused_where_a_number_is_known_at_the_end_alone():
    text = Path("tiny.toml").read_text(encoding="utf-8")
    Path("tiny.toml").write_text(text.replace('title = "Local"', 'title = "Local"\nround = 2'), encoding="utf-8")
    assert "tiny: rows.local.round: variance is measured at the end of a run alone" in reproduce("tiny.toml").stderr


def test_coarse_products_are_noted_and_make_no_other_run():
    assert reproduce("tiny.toml", "-q", "--rows", "local", "--precision", "tf32").exit_code == 0
    (run,) = Path("runs/reproduce/runs").iterdir()
    assert 'precision = "tf32"' in (run / CONFIG).read_text(encoding="utf-8")
    assert "1 runs, 1 of them done before" in reproduce("tiny.toml", "--rows", "local").output


def test_a_run_whose_checkpoint_is_damaged_begins_again():
    words = ("tiny.toml", "--rows", "local", "--only", "digits")
    assert reproduce(*words, "-q").exit_code == 0
    (folder,) = Path("runs/reproduce/runs").iterdir()
    (folder / SUMMARY).unlink()
    (folder / CHECKPOINT).write_bytes(b"half a")
    result = reproduce(*words)
    assert result.exit_code == 0 and "begins again" in result.output and (folder / SUMMARY).exists()


def test_rows_columns_and_protocols_can_be_chosen():
    result = reproduce("tiny.toml", "--rows", "fed*", "--only", "digits", "--protocol", "paper", "--quick")
    assert result.exit_code == 0, result.output
    assert "1 runs" in result.output and "not judged" in result.output and "Local" not in result.output


def test_a_column_asked_for_by_name_must_have_its_data():
    result = reproduce("tiny.toml", "--only", "photos")
    assert result.exit_code == 2 and "column 'photos' needs the dataset cifar10" in result.stderr
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tiny.toml", "--rows", "fedagv"], "unknown row 'fedagv': did you mean 'fedavg'?"),
        (["flt-table"], "unknown table 'flt-table'"),
        (["niid"], "unknown table 'niid': did you mean 'niid-bench'?"),
        (["flt"], "'flt' is a paper: --paper flt runs all of flt-figure-2, "),
        (["tiny.toml", "--seeds", "0"], "--seeds: wanted how many"),
        (["tiny.toml", "--jobs", "0"], "--jobs: wanted how many runs at once, at least 1, got 0"),
        ([], "wanted at least one table"),
        (["tiny.toml", "--lacking"], "--lacking runs what a file of kept numbers lacks: wanted --keep FILE, too"),
    ],
)
def test_a_mistake_is_one_line(words, said):
    result = reproduce(*words)
    assert result.exit_code == 2 and said in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_a_page_is_filled_between_its_marks():
    Path("page.md").write_text("# Results\n\n<!-- tiny -->\nold\n<!-- end of tiny -->\n\nrest\n", encoding="utf-8")
    assert reproduce("tiny.toml", "-q", "--quick", "--only", "digits", "--page", "page.md").exit_code == 0
    page = Path("page.md").read_text()
    assert "a tiny table" in page and "old" not in page and page.endswith("rest\n") and page.startswith("# Results")


def test_only_what_the_kept_numbers_lack_is_run():
    words = ("tiny.toml", "--only", "digits", "--keep", "kept.csv", "--lacking")
    assert "1 runs, 0 of them done before" in reproduce(*words, "--rows", "local").output
    result = reproduce(*words, "--seeds", "2", "--out", "elsewhere")
    assert "5 runs, 0 of them done before" in result.output  # FedAvg twice of two seeds, and the second of Local
    assert not list(Path("elsewhere/runs").glob("local*seed0"))
    assert len(Path("kept.csv").read_text().splitlines()) == 1 + 3 * 2
    assert "0 runs, 0 of them done before" in reproduce(*words, "--seeds", "2", "--out", "third").output


def test_numbers_that_another_command_keeps_meanwhile_stay(monkeypatch):
    real = reproduction.run_all

    def run_beside(*arguments):
        monkeypatch.setattr(reproduction, "run_all", real)
        assert reproduce(*words, "--rows", "local", "--out", "beside").exit_code == 0
        real(*arguments)

    words = ("tiny.toml", "-q", "--only", "digits", "--keep", "kept.csv")
    monkeypatch.setattr(reproduction, "run_all", run_beside)
    assert reproduce(*words, "--rows", "fedavg").exit_code == 0
    assert [line.split(",")[1] for line in Path("kept.csv").read_text().splitlines()[1:]] == [
        "local",
        "fedavg",
        "fedavg",
    ]


def test_a_page_is_made_anew_from_kept_numbers_without_the_runs(tmp_path):
    Path("pages").mkdir()
    Path("pages/one.md").write_text("nothing here\n", encoding="utf-8")
    Path("pages/two.md").write_text("<!-- tiny -->\n<!-- end of tiny -->\n", encoding="utf-8")
    words = ("tiny.toml", "-q", "--keep", "kept.csv", "--page", "pages")
    assert reproduce(*words, "--seeds", "2").exit_code == 0
    page, kept = Path("pages/two.md").read_text(), Path("kept.csv").read_text()
    assert kept.startswith("table,row,column,protocols,data,settings,seed,numbers\ntiny,fedavg,digits,paper,digits,")
    assert len(kept.splitlines()) == 1 + 3 * 2  # FedAvg twice and Local once, two seeds
    assert reproduce(*words, "--show", "--out", "elsewhere").exit_code == 0
    absent = "Photographs: data not here (cifar10); 2 rows were left out."
    shown = page.replace(absent, "Columns that were not run: Photographs.")  # for nothing was to run
    assert Path("pages/two.md").read_text() == shown != page and Path("kept.csv").read_text() == kept
    recipe = Path("tiny.toml").read_text(encoding="utf-8")
    Path("tiny.toml").write_text(recipe.replace("rounds = 3", "rounds = 4", 1), encoding="utf-8")
    assert reproduce(*words, "--show", "--out", "elsewhere").exit_code == 0
    assert "Not run yet" in Path("pages/two.md").read_text()  # numbers of other settings are not taken for these


def test_a_paper_is_all_its_tables_and_an_unknown_one_names_the_nearest():
    from kinfed.recipes.reproduction import find_tables

    assert "repa-table-1" in find_tables("repa") and all(name.startswith("flt-") for name in find_tables("flt"))
    result = reproduce("--paper", "flits", "--show")
    assert result.exit_code == 2 and "unknown paper 'flits': did you mean 'flis'?" in result.stderr


FIGURE = """
title = "a tiny figure"
paper = "nobody"
measures = ["accuracy"]
figure = { shows = "more epochs help", x = "E", key = "training.epochs", values = [1, 3] }
rows.fedavg = { title = "FedAvg", config.method = "fedavg" }
protocols.paper.says = "as it is"
config = { rounds = 2, partition = { clients = 6, clusters = 2 }, data.train_samples = 20, model = "linear" }
claims = [{ says = "three epochs are above one", better = "fedavg", rule = "rises" }]
"""


@pytest.mark.parametrize("axis", ["columns", "rounds"])
def test_a_figure_is_run_drawn_and_its_shape_checked(axis):
    pytest.importorskip("vl_convert")
    text = FIGURE
    if axis == "rounds":
        text = FIGURE.replace(', x = "E", key = "training.epochs", values = [1, 3]', "")
        text = text.replace("rows.fedavg", 'columns.one.title = "one"\nrows.fedavg') + "config.evaluation.every = 1\n"
        text = text.replace('model = "linear" }', 'model = "linear", evaluation.every = 1 }').replace(
            "config.evaluation.every = 1\n", ""
        )
    Path("curve.toml").write_text(text, encoding="utf-8")
    Path("page.md").write_text("<!-- curve -->\n<!-- end of curve -->\n", encoding="utf-8")
    result = reproduce("curve.toml", "--keep", "kept.csv", "--page", "page.md")
    assert result.exit_code == 0, result.output
    page = Path("page.md").read_text()
    assert "The paper's figure: more epochs help." in page and "![a tiny figure](curve.svg)" in page
    assert "holds" in page.split("| claim |")[1] or "does not hold" in page.split("| claim |")[1]
    assert "<svg" in Path("curve.svg").read_text() and Path("runs/reproduce/curve.svg").exists()
    assert ("accuracy@2=" in Path("kept.csv").read_text()) == (axis == "rounds")


# it may be stopped between the opening of a file and the block that closes it
@pytest.mark.filterwarnings("ignore:Exception ignored in.*FileIO:pytest.PytestUnraisableExceptionWarning")
def test_a_run_is_stopped_after_some_minutes_and_the_same_command_goes_on():
    Path("long.toml").write_text(TINY.replace("rounds = 3", "rounds = 100000\ncheckpoint_every = 1"), encoding="utf-8")
    result = reproduce("long.toml", "--rows", "fedavg", "--protocol", "paper", "--minutes", "0.05")
    assert result.exit_code == 0, result.output
    assert "stopped after 0.05 min; the same command goes on from here" in result.output
    assert "Not run yet" in Path("runs/reproduce/long.md").read_text()
    (run,) = Path("runs/reproduce/runs").iterdir()
    assert (run / CHECKPOINT).exists() and not (run / SUMMARY).exists()


def test_a_table_says_what_it_costs_to_reach_the_published_accuracy_and_how_long_the_rest_takes():
    text = TINY.replace('measures = ["accuracy", "variance"]', 'measures = ["accuracy", "variance"]\ntarget = "fedavg"')
    Path("tiny.toml").write_text(text.replace('"40 ± 1"', '"11 ± 1"').replace("99.5", "99.0"), encoding="utf-8")
    result = reproduce("tiny.toml", "--rows", "fedavg", "--protocol", "paper", "--keep", "kept.csv")
    assert result.exit_code == 0, result.output
    assert "Digits: cost to 10 %, what is published for FedAvg less one point" in result.output
    kept = Path("kept.csv").read_text()
    run = Run(next(Path("runs/reproduce/runs").iterdir()))
    assert "cost_rounds=1 " in kept and f"cost_tasks={5 / 10:g} " in kept  # half of ten clients, one round
    megabytes = (run.rounds["bytes_down"][0] + run.rounds["bytes_up"][0]) / 1e6
    assert f"cost_megabytes={megabytes:.10g} " in kept
    server, whole = run.server_seconds_until(1), run.seconds_until(1)
    assert server is not None and 0 < server < whole and f"cost_server={server:.10g} " in kept
    result = reproduce("tiny.toml", "--show", "--keep", "kept.csv")
    assert "about 0 min for 2 runs, 1 at once, if they take as long as" in result.output


def test_numbers_are_kept_as_runs_end_and_not_at_the_end_of_the_command(monkeypatch):
    def die(*given: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(reproduction, "outcome_of", die)  # what comes after the runs
        assert reproduce("tiny.toml", "--only", "digits", "--keep", "kept.csv").exit_code
    killed = list(csv.DictReader(Path("kept.csv").read_text(encoding="utf-8").splitlines()))
    reproduce("tiny.toml", "--only", "digits", "--keep", "whole.csv")
    whole = list(csv.DictReader(Path("whole.csv").read_text(encoding="utf-8").splitlines()))

    def without_machine(lines: list[dict[str, str]]) -> set[tuple[str, ...]]:
        return {tuple(line.values())[:-1] + tuple(line["numbers"].split(" machine=")[:1]) for line in lines}

    assert len(killed) == len(whole) > 2 and without_machine(killed) == without_machine(whole)


def test_the_estimate_takes_what_a_run_took_of_the_machine_or_its_share_of_its_seconds():
    reproduce("tiny.toml", "--rows", "fedavg", "--protocol", "paper", "--keep", "kept.csv")
    lines = list(csv.DictReader(Path("kept.csv").read_text(encoding="utf-8").splitlines()))
    assert len(lines) == 1 and 0 < float(lines[0]["numbers"].rsplit(" machine=", 1)[1]) < 600

    def estimate(*numbers: str, jobs: int) -> str:
        with open("kept.csv", "w", encoding="utf-8") as file:
            table = csv.DictWriter(file, list(lines[0]))
            table.writeheader()
            table.writerows(lines[0] | {"seed": str(seed), "numbers": each} for seed, each in enumerate(numbers))
        words = ("--seeds", "2", "--rows", "fedavg", "--protocol", "paper", "--keep", "kept.csv", "--jobs", str(jobs))
        return reproduce("tiny.toml", "--show", *words).output

    assert "about 12 min for 1 runs, 4 at once" in estimate("accuracy=1 seconds=2880", jobs=4)
    assert "about 5 min for 1 runs, 4 at once" in estimate("accuracy=1 seconds=2880 machine=300", jobs=4)
    known = "accuracy=1 seconds=2880", "accuracy=1 seconds=2880 machine=300"
    assert "about 5 min for 1 runs, 4 at once" in estimate(*known, jobs=4)


def test_a_target_that_is_not_reached_is_said():
    text = TINY.replace('measures = ["accuracy", "variance"]', 'measures = ["accuracy", "variance"]\ntarget = "local"')
    Path("tiny.toml").write_text(text, encoding="utf-8")
    result = reproduce("tiny.toml", "--rows", "fedavg", "--protocol", "paper")
    assert "cost to 98.5 %" in result.output and "not reached" in result.output


def test_all_tables_are_listed():
    result = reproduce("--list")
    assert result.exit_code == 0 and "flt-table-1" in result.output and "_flt" not in result.output
    assert all("  " in line.strip() for line in result.output.splitlines()), "a name and its title"


def test_columns_of_data_that_nobody_has_here_run_once_they_have_them(tmp_path):
    store_all(tmp_path)
    words = ["--quick", "--rows", "fednova,flis-hc", "--only", "svhn-30,cifar100-20", "--protocol", "fair"]
    result = reproduce("flis-table-1", *words, "--out", "colours")
    assert result.exit_code == 0, result.output
    assert "4 runs" in result.output and "SVHN, 30 % of the labels" in result.output
    with open("colours/flis-table-1.csv", encoding="utf-8") as file:
        assert all(0 <= float(line["measured"]) <= 100 for line in csv.DictReader(file))


@pytest.mark.parametrize(
    ("table", "words", "said"),
    [
        (
            "niid-bench",
            ["--rows", "fedprox", "--only", "mnist-dirichlet", "--protocol", "fair"],
            "MNIST, Dirichlet(0.5)",
        ),
        ("flux-grid", ["--rows", "fedavg", "--only", "mnist-6"], "MNIST, level 6"),
        ("pfllib-board", ["--rows", "fedrep", "--only", "fmnist-pat"], "Fashion-MNIST, 2 labels"),
        ("fedem-table", ["--rows", "fedavg_ft"], "FEMNIST"),
    ],
)
def test_one_cell_of_a_public_benchmark_runs_and_is_printed(table, words, said, tmp_path):
    store_all(tmp_path)
    result = reproduce(table, "--quick", *words, "--out", "cell")
    assert result.exit_code == 0, result.output
    assert said in result.output and "not judged" in result.output
    with open(f"cell/{table}.csv", encoding="utf-8") as file:
        assert any(0 <= float(line["measured"]) <= 100 for line in csv.DictReader(file) if line["measured"])
