"""Datasets, partitions and shifts of the user's own, named `module:name`."""

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kinfed.cli import app
from kinfed.config import load_config, make_population, read, to_toml
from kinfed.errors import ConfigError, DataError

OWN_PARTS = """
from dataclasses import dataclass, replace
import numpy as np
from kinfed.data import Dataset, Split

def make(count=40):
    x = np.arange(count * 16, dtype=np.uint8).reshape(count, 1, 4, 4)
    y = np.arange(count, dtype=np.int64) % 2
    return Dataset("stripes", x, y, x[:8], y[:8], 2)

@dataclass(frozen=True)
class Stripes:
    count: int = 20
    def __call__(self):
        return make(self.count)

@dataclass(frozen=True)
class ByHospital:
    hospitals: int = 4
    def __call__(self, labels, rng):
        train = np.array_split(np.arange(len(labels.train)), self.hospitals)
        return Split(list(train), [np.arange(len(labels.test))] * self.hospitals)

@dataclass(frozen=True)
class Invert:
    top: int = 255
    def __call__(self, population, rng):
        return replace(population, x=self.top - population.x)

@dataclass(frozen=True)
class Idle:
    size: int = 1

@dataclass(frozen=True)
class Wrong:
    def __call__(self, *_):
        return 3

class Plain: ...
def three(): return 3
NUMBER = 3
"""


@pytest.fixture(autouse=True)
def own_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_parts.py").write_text(OWN_PARTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "my_parts", raising=False)


OWN = ["method=fedavg", "data.name=my_parts:make", "partition.name=my_parts:ByHospital", "shift.name=my_parts:Invert"]


def test_a_run_takes_data_partition_and_shift_of_the_users_own():
    words = [
        "run",
        *OWN,
        "rounds=1",
        "fraction=1.0",
        "partition.hospitals=5",
        "data.options={count = 30}",
        "--out",
        "r",
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    (found,) = Path("r").rglob("config.toml")
    config = tomllib.loads(found.read_text())
    assert config["partition"] == {"name": "my_parts:ByHospital", "hospitals": 5}
    assert config["shift"] == {"name": "my_parts:Invert", "top": 255}
    assert config["data"]["name"] == "my_parts:make" and config["data"]["options"] == {"count": 30}


def test_the_users_own_parts_make_the_population():
    population = make_population(load_config(None, [*OWN, "shift.top=100", "data.options.count=12"]))
    assert [len(own) for own in population.train] == [3, 3, 3, 3]
    assert population.x[0, 0, 0].tolist() == [100, 99, 98, 97]


def test_a_dataclass_of_the_users_own_is_made_with_its_options_and_called():
    words = [*OWN, "data.name=my_parts:Stripes", "data.options.count=16"]
    assert sum(len(own) for own in make_population(load_config(None, words)).train) == 16


def test_a_config_with_the_users_own_parts_reads_back_as_the_same():
    config = load_config(None, [*OWN, "partition.hospitals=3"])
    assert read(tomllib.loads(to_toml(config.resolve()))) == config


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("partition.name=nowhere:ByHospital", "partition 'nowhere:ByHospital' cannot be imported: No module named"),
        ("partition.name=my_parts:ByWard", "'my_parts:ByWard' cannot be imported: module 'my_parts' has no attribute"),
        ("partition.name=my_parts:Idle", "partition 'my_parts:Idle' must implement Partition: it lacks __call__"),
        ("shift.name=my_parts:Plain", "shift 'my_parts:Plain' must be a dataclass, whose fields are its settings"),
        ("shift.name=my_parts:NUMBER", "shift 'my_parts:NUMBER' must be a dataclass"),
        ("partition.hospital=3", "unknown config key 'partition.hospital': did you mean 'partition.hospitals'?"),
        ("partition.hospitals=many", 'partition.hospitals: wanted an integer, got "many"'),
    ],
)
def test_a_part_that_cannot_be_used_is_one_line(setting, message):
    with pytest.raises(ConfigError) as caught:
        load_config(None, [*OWN, setting])
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.name=my_parts:NUMBER", "dataset 'my_parts:NUMBER' must be callable, got a int"),
        ("data.name=my_parts:nothing", "dataset 'my_parts:nothing' cannot be imported"),
        ("data.name=my_parts:three", "dataset 'my_parts:three' must return a kinfed.data.Dataset, got a int"),
        ("data.options.counts=3", "data.options of 'my_parts:make': unknown option 'counts': did you mean 'count'?"),
        ("partition.name=my_parts:Wrong", "a partition must return a kinfed.data.Split, got a int"),
        ("shift.name=my_parts:Wrong", "a shift must return a kinfed.data.Population, got a int"),
    ],
)
def test_a_part_that_returns_something_else_is_one_line(setting, message):
    with pytest.raises((ConfigError, DataError)) as caught:
        make_population(load_config(None, [*OWN, setting]))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_options_of_a_named_dataset_are_refused():
    with pytest.raises(ConfigError, match=r"data\.options\.count: 'digits' has no options; tables, folders"):
        make_population(load_config(None, ["data.options.count=3"]))
