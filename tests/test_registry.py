from pathlib import Path

import pytest

from kinfed.data import PARTITIONS, SHIFTS
from kinfed.errors import ConfigError
from kinfed.registry import as_file, first_lines, is_installed, look_up


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
