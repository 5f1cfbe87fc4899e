"""Metrics of the user's own, as docs/own-metric.md has them."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from kinfed import api
from kinfed.cli import app
from kinfed.config import load_config
from kinfed.errors import ConfigError
from kinfed.learning_tasks import Classification
from kinfed.quality import KINDS, is_number_of_run
from kinfed.runs.lifecycle import resume_command

PAGE = Path(__file__).parents[2] / "docs" / "own-metric.md"
CODE, COMMAND = re.findall(r"```(?:python|sh)\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(autouse=True)
def my_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    more = "accuracy = variance = accuracy_unseen = bytes_up = top_2_accuracy\nNUMBER = 3\n\n"
    more += "def nothing(output, y):\n    return float('nan')\n"
    more += "def text(output, y):\n    return 'high'\n"
    more += "def each(output, y):\n    return y\n"
    more += "def one_argument(output):\n    return 0.5\n"
    (tmp_path / "my_metrics.py").write_text(f"{CODE}\n{more}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "my_metrics", raising=False)


def test_the_pages_example_measures_and_shows_both():
    words = [*shlex.split(COMMAND)[1:], "partition.clients=5", "rounds=1", "--out", "r"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    summary = json.loads(Path("r/summary.json").read_text())
    assert summary["accuracy"] <= summary["top_2_accuracy"] <= 1 and 0 <= summary["recall_of_class_3"] <= 1
    assert re.search(r"^top 2 accuracy +0?\.?\d+", result.output, re.MULTILINE), result.output


def test_own_metrics_are_of_all_samples_of_a_client():
    task = Classification(metrics=("my_metrics:top_2_accuracy", "my_metrics:recall_of_class_3", "my_metrics:nothing"))
    output, y = torch.tensor([[3.0, 2, 1, 0], [3, 2, 1, 0], [0, 1, 2, 3], [3, 2, 1, 0]]), torch.tensor([0, 1, 3, 3])
    assert task.measure_own(output, y) == {"top_2_accuracy": 0.75, "recall_of_class_3": 0.5}
    assert task.measure_own(output[:2], y[:2]) == {"top_2_accuracy": 1.0}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("recall", "task: metrics: wanted package.module:function, got 'recall'"),
        ("my_metrics:recal", "metric 'my_metrics:recal' cannot be imported"),
        ("my_metrics:NUMBER", "metric 'my_metrics:NUMBER' must be callable, got a int"),
        *(
            (f"my_metrics:{name}", f"'{name}' is the name of another metric; rename the function")
            for name in ("accuracy", "variance", "accuracy_unseen", "bytes_up")
        ),
    ],
)
def test_a_metric_that_cannot_be_used_is_one_line(path, message):
    with pytest.raises(ConfigError) as caught:
        load_config(None, [f'task.metrics=["{path}"]'])
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("text", "must be a function (output, y) -> number or None, got a str"),
        ("each", "must be a function (output, y) -> number or None, got 100 numbers"),
        ("one_argument", "called with output [100, 10] and y [100] it failed: TypeError: one_argument() takes 1"),
    ],
)
def test_a_metric_that_fails_does_so_before_the_first_round(name: str, message: str):
    words = ["run", "method=fedavg", "partition.clients=5", "rounds=1", "--out", "r"]
    result = CliRunner().invoke(app, [*words, f'task.metrics=["my_metrics:{name}"]'])
    assert result.exit_code == 2 and message in result.stderr, result.output
    assert "round 1" not in result.output and not Path("r/rounds.csv").exists()


def test_every_number_of_a_run_has_a_name_that_no_own_metric_may_have():
    words = ["method=flt", "rounds=4", "partition.clients=10", "roles.holdout=0.2", "roles.look_alikes=1"]
    words += ["evaluation.adapt=true", "evaluation.correlation=true"]
    drift = ["method=ifca", "rounds=3", "partition.clients=10", "change.round=1"]
    for some in (words, drift):
        summary = api.run(load_config(None, some), out=Path(some[0]), quiet=True).summary
        own = summary.keys() - Classification().measured()
        kinds = {f"accuracy_{kind}" for kind in KINDS}
        assert {name for name in own if not is_number_of_run(name)} <= kinds


def test_the_command_that_resumes_a_run_trusts_its_metrics():
    config = load_config(None, ['task.metrics=["my_metrics:top_2_accuracy"]'])
    assert resume_command(Path("r"), config) == "kinfed resume r --trust"


def test_a_run_that_names_metrics_is_not_resumed_without_trust(monkeypatch: pytest.MonkeyPatch):
    words = ["run", "method=fedavg", "partition.clients=5", "rounds=1", "--out", "r"]
    words += ['task.metrics=["my_metrics:top_2_accuracy"]']
    assert CliRunner().invoke(app, words).exit_code == 0
    monkeypatch.setattr("kinfed.registry.INVITED", set())  # as in another process
    refused = CliRunner().invoke(app, ["resume", "r", "--rounds", "2"])
    assert refused.exit_code == 2 and "the metric 'my_metrics:top_2_accuracy'" in refused.stderr
    taken = CliRunner().invoke(app, ["resume", "r", "--rounds", "2", "--trust"])
    assert taken.exit_code == 0, taken.output
