"""Files of the user's own that have names of kinfed's: no command replaces or removes them, also with --force."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kinfed import api
from kinfed.cli import app
from kinfed.config import DEMO, load_config

MINE = "mine = 1\n"
TINY = ["rounds=1", "method=fedavg", "partition.clients=6", "partition.clusters=3"]
FORCE = ["--force"]


@pytest.fixture(autouse=True)
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("run") / "run"
    api.run(load_config(DEMO, TINY), out=folder, quiet=True)
    return f"{folder}"


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of one client's samples."""
    path = tmp_path_factory.mktemp("samples") / "new.csv"
    path.write_text(",".join([*(f"p{i}" for i in range(64)), "y"]) + "\n" + ",".join(["1"] * 65) + "\n")
    return f"{path}"


def kinfed(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def put(name: str, text: str = MINE) -> Path:
    path = Path("mine") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def assert_kept(path: Path, *words: str) -> None:
    """The command names the file, and leaves it and its folder as they are."""
    result = kinfed(*words)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1, result.output
    top = path.relative_to("mine").parts[0]
    assert f"error: mine has {top}" in result.stderr and "which kinfed did not write and would replace" in result.stderr
    assert path.read_text() == MINE and [each.name for each in Path("mine").iterdir()] == [top]


@pytest.mark.parametrize("force", [[], FORCE])
@pytest.mark.parametrize("name", ["summary.json", "rounds.csv", "status.json"])
def test_a_run_keeps_tables_of_a_folder_without_a_config_of_its_own(name: str, force: list[str]):
    assert_kept(put(name), "run", *TINY, "--out", "mine", *force)


@pytest.mark.parametrize("force", [[], FORCE])
@pytest.mark.parametrize("name", ["compare.csv", "compare.md", "runs.csv", "pairs.csv"])
def test_a_comparison_keeps_tables_of_others(name: str, force: list[str]):
    assert_kept(put(name), "compare", *TINY, "--methods", "fedavg", "--out", "mine", *force)


def test_a_forced_comparison_keeps_a_file_that_is_named_as_its_own_config():
    assert_kept(put("compare.toml"), "compare", *TINY, "--methods", "fedavg", "--out", "mine", "--force")


def test_a_sweep_keeps_the_files_of_a_folder_that_holds_none():
    path = put("runs.csv")
    assert "holds no sweep" in kinfed("sweep", *TINY, "training.lr=0.1,0.2", "--out", "mine").stderr
    assert path.read_text() == MINE


@pytest.mark.parametrize("name", ["index.html", "results.md", "results.tex"])
def test_a_report_keeps_pages_of_others(name: str, run: str):
    assert_kept(put(name), "report", run, "--out", "mine", "--latex", "--markdown")


def test_a_report_keeps_figures_of_others_and_writes_beside_them_and_anew(run: str):
    pytest.importorskip("vl_convert")
    path = put("figures/cost.svg")
    assert (
        "mine has figures/cost.svg, which kinfed" in kinfed("report", run, "--out", "mine", "--figures", "svg").stderr
    )
    assert path.read_text() == MINE and not Path("mine/index.html").exists()
    path.rename("mine/figures/plan.svg")
    for _ in range(2):
        assert kinfed("report", run, "--out", "mine", "--figures", "svg", "--markdown").exit_code == 0
    assert Path("mine/figures/plan.svg").read_text() == MINE and Path("mine/figures/cost.svg").exists()


@pytest.mark.parametrize("name", ["flt-table-1.md", "flt-table-1.json", "flt-table-1.tex"])
def test_reproduced_tables_keep_those_of_others(name: str):
    assert_kept(put(name), "reproduce", "flt-table-1", "--show", "--out", "mine")


def test_tables_are_reproduced_again_into_their_folder():
    for _ in range(2):
        assert kinfed("reproduce", "flt-table-1", "--show", "--quiet", "--out", "mine").exit_code == 0
    assert len(list(Path("mine").iterdir())) == 4


def test_a_table_of_others_is_no_file_of_kept_numbers():
    path = put("notes.csv", "table,remark\n")
    result = kinfed("reproduce", "flt-table-1", "--show", "--out", "tables", "--keep", f"{path}")
    assert result.exit_code == 2 and "holds no kept numbers: wanted the columns" in result.stderr
    assert path.read_text() == "table,remark\n"


@pytest.mark.parametrize("force", [[], FORCE])
@pytest.mark.parametrize("name", ["bundle.json", "bundle.safetensors"])
def test_an_export_keeps_files_of_others(name: str, force: list[str], run: str):
    assert_kept(put(name), "export", run, "mine", *force)


def test_an_export_keeps_models_of_others(run: str):
    assert_kept(put("models/cluster-0.pt"), "export", run, "mine", "--format", "torchscript")


@pytest.mark.parametrize("force", [[], FORCE])
@pytest.mark.parametrize("name", ["model.safetensors", "assignment.json"])
def test_an_assignment_keeps_models_of_others(name: str, force: list[str], run: str, samples: str):
    kinfed("export", run, "bundle")
    assert_kept(put(name), "assign", "bundle", "--data", samples, "--out", "mine", *force)


def test_bundles_and_models_are_replaced_where_that_is_forced_also_after_an_interrupt(run: str):
    assert kinfed("export", run, "mine").exit_code == 0
    assert "is there already" in kinfed("export", run, "mine").stderr
    assert kinfed("export", run, "mine", "--force").exit_code == 0
    Path("mine/bundle.json").unlink()  # written last
    assert kinfed("export", run, "mine").exit_code == 0
    assert json.loads(Path("mine/bundle.json").read_text())["method"] == "fedavg"


@pytest.mark.parametrize(
    "name", ["README.md", "pyproject.toml", "nodes/mine.toml", "kinfed_app/plan.toml", ".gitignore"]
)
def test_an_app_keeps_the_files_of_a_folder_that_is_none(name: str):
    pytest.importorskip("flwr")
    assert_kept(put(name), "deploy", "new", "mine", *TINY, "--force")


def test_an_app_is_written_beside_other_files_and_anew_where_that_is_forced():
    pytest.importorskip("flwr")
    path = put("notes.txt")
    for _ in range(2):
        assert kinfed("deploy", "new", "mine", *TINY, "--force").exit_code == 0
    assert path.read_text() == MINE
