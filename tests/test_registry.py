from pathlib import Path

import pytest

from kinfed.data import PARTITIONS, SHIFTS
from kinfed.errors import ConfigError
from kinfed.registry import as_file, first_lines, import_object, is_installed, look_up


def test_a_known_name_gives_its_thing():
    assert look_up("iid", PARTITIONS, "partition").__name__ == "IID"


def test_an_unknown_name_suggests_the_nearest_and_lists_all():
    with pytest.raises(ConfigError, match="unknown partition 'dirichlett': did you mean 'dirichlet'"):
        look_up("dirichlett", PARTITIONS, "partition")
    with pytest.raises(ConfigError, match=r"unknown shift 'xyz'; known: augment, .*label_swap, .*rotation"):
        look_up("xyz", SHIFTS, "shift")


def test_listings_show_the_first_line_of_the_docstring():
    assert first_lines(PARTITIONS)["iid"] == "Shuffled samples, split evenly."


def test_a_folder_that_has_a_packages_name_is_not_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "tracked_here").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_installed("tracked_here") and not is_installed("not_there_at_all") and is_installed("torch")


def test_the_name_of_a_table_or_an_own_part_becomes_one_part_of_a_path():
    assert [as_file(name) for name in ("digits", "/data/wine.csv", "photos/", "own.module:Class")] == [
        "digits", "wine.csv", "photos", "own.module-Class",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("own_code.py:build", "wanted package.module:name, as in 'own_code:build'"),
        ("./own_code.py:build", "wanted package.module:name, as in 'own_code:build'"),
        ("own_code:", "wanted package.module:name, as in 'own_code:name'"),
        ("own_code:biuld", "has no attribute 'biuld': did you mean 'build'?"),
        ("needs_another:build", "No module named 'not_there_at_all' ({folder}/needs_another.py, line 2)"),
        ("half_typed:Own", "client task 'Own.train': annotate 'params' as Params, Stack, Mapping or Tensor"),
        ("half_typed:Own", "({folder}/half_typed.py, line 3)"),
    ],
)
def test_code_that_cannot_be_imported_says_what_to_write_or_where_it_failed(
    path: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    task = "class Own:\n    @client_task\n    def train(self, client, params): ...\n"
    (tmp_path / "own_code.py").write_text("def build(shape, classes): ...\n")
    (tmp_path / "needs_another.py").write_text("\nimport not_there_at_all\n")
    (tmp_path / "half_typed.py").write_text(f"from kinfed.client import client_task\n\n{task}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        import_object(path, "method")
    assert says.format(folder=tmp_path) in str(caught.value)


def test_a_dotted_name_without_a_colon_is_told_of_the_colon():
    with pytest.raises(ConfigError, match=r"a partition of your own is named package\.module:name"):
        look_up("hospitals.ByHospital", PARTITIONS, "partition")
