"""The race of `kinfed bench`, run for real on very few clients."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from kinfed.bench import report
from kinfed.bench.peers.protocol import MARK
from kinfed.bench.race import CONTENDERS, Outcome, Plan, Track, entries
from kinfed.bench.runners import Absent, last_words, started, tagged
from kinfed.bench.workloads import WORKLOADS
from kinfed.cli import app

SMALL = ("--scale", "0.02", "--threads", "1", "--rounds", "2")


def bench(*words: str):
    return CliRunner().invoke(app, ["bench", *words])


def test_workloads_have_the_sizes_of_their_papers():
    mlp, cnn, flt4 = (WORKLOADS[name] for name in ("mlp", "cnn", "flt4"))
    assert (mlp.weights, cnn.weights) == (159_010, 1_663_370)
    assert (mlp.steps, flt4.steps) == (20 * 60, 480 * 25)
    assert mlp.least_bytes == 12 * 159_010 * 1200
    assert flt4.least_bytes == 20 * 166_447 * 480 * 25  # momentum is read and written too
    assert (flt4.scaled(0.1).clients, flt4.scaled(0.1).cohort) == (240, 48)
    assert mlp.scaled(1e-6).clients == 1


def test_uneven_clients_have_rows_from_few_to_many(tmp_path):
    three = replace(WORKLOADS["uneven"], clients=3, rows=960)
    assert three.lengths == [15, 120, 960] == three.job(tmp_path, 1, "cpu").lengths  # eight times as many each
    assert three.steps_each == (2 + 12 + 96) / 3
    assert WORKLOADS["mlp"].lengths == [600] * 100


def test_uneven_clients_race_too():
    result = bench("--workloads", "uneven", "--contenders", "kinfed,plain,fedlab", *SMALL)
    lines = [line for line in result.output.splitlines() if line.startswith("uneven ")]
    assert result.exit_code == 0 and {line.split()[1] for line in lines} == {"kinfed", "plain"}  # the fastest first


def test_speed_compares_neighbouring_rounds():
    plain, ours = Outcome("mlp", "plain", rounds=(2.0, 8.0, 3.0)), Outcome("mlp", "kinfed", rounds=(1.0, 2.0, 1.0))
    assert ours.speed(plain) == 3.0  # of 2, 4 and 3
    assert report.table([plain, ours], Plan())[1][:7] == ("mlp", "kinfed", "1.000", "1.000", "2.000", "16.7", "3.00")


def test_the_share_of_bandwidth_is_bytes_over_seconds_over_what_a_copy_moves():
    least = WORKLOADS["mlp"].least_bytes
    outcome = Outcome("mlp", "kinfed", rounds=(2.0,), copied_a_second=least)
    assert outcome.bandwidth_share(WORKLOADS["mlp"]) == 0.5
    assert report.table([outcome], Plan())[1][-1] == "50%"


def test_a_race_measures_every_contender_and_writes_it_down(tmp_path):
    file = tmp_path / "bench.json"
    result = bench("--workloads", "mlp", "--contenders", "kinfed,sequential,plain", *SMALL, "--json", str(file))
    assert result.exit_code == 0, result.output
    said = json.loads(file.read_text())
    assert said["plan"] == {"rounds": 2, "threads": 1, "device": "cpu", "scale": 0.02}
    assert said["workloads"]["mlp"]["clients"] == 2
    assert [o["contender"] for o in said["outcomes"]] == ["kinfed", "sequential", "plain"]
    for outcome in said["outcomes"]:
        assert len(outcome["rounds"]) == 2 and min(outcome["rounds"]) > 0 and not outcome["why"]
        assert outcome["cpu"] is None or 0 < outcome["cpu"] < 60
        assert outcome["peak"] is None or outcome["peak"] > 50 * 2**20
    assert "× plain" in result.output and "round 2/2" in result.output


def test_a_quiet_race_shows_its_table_and_nothing_else():
    lines = bench("--workloads", "mlp", "--contenders", "plain", *SMALL, "-q").output.splitlines()
    assert len(lines) == 2 and lines[0].split()[:2] == ["workload", "contender"] and lines[1].startswith("mlp")


def test_who_is_not_installed_is_left_out_with_the_reason():
    if importlib.util.find_spec("fedjax"):
        pytest.skip("fedjax is installed here")
    words = ("--workloads", "mlp", "--contenders", "fedjax,pfl", "--peer-python", "pfl=/no/such/python", *SMALL)
    result = bench(*words)
    assert result.exit_code == 0, result.output
    assert "fedjax (fedjax, compiled) did not take part: not found: No module named" in result.output
    assert "cannot start /no/such/python: No such file or directory" in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--workloads", "mpl"), "did you mean 'mlp'?"),
        (("--contenders", "plian"), "did you mean 'plain'?"),
        (("--contenders", ","), "at least one workload and one contender"),
        (("--scale", "2"), "--scale"),
        (("--rounds", "0"), "--rounds >= 1"),
        (("--peer-python", "fedjax"), "name=/path/to/python"),
        (("--peer-python", "kinfed=/usr/bin/python"), "runs in this environment"),
    ],
)
def test_bad_options_get_one_clear_line(words, said):
    result = bench("--workloads", "mlp", *words)
    assert result.exit_code == 2 and result.stderr.startswith("error: ") and said in result.stderr


def test_a_contender_ends_with_its_context(tmp_path):
    job = WORKLOADS["mlp"].scaled(0.01).job(tmp_path, 1, "cpu")
    with started(CONTENDERS["plain"], job, tmp_path) as runner:
        assert tagged(runner.tag)
        assert runner.turn() > 0
    assert runner.process.poll() is not None and not tagged(runner.tag)


def test_a_contender_that_falls_is_noted_and_the_others_go_on():
    class Falls:
        facts: dict[str, float] = {}  # noqa: RUF012
        left = 2

        def turn(self) -> float:
            self.left -= 1
            if self.left < 0:
                raise Absent("it ended: MemoryError")
            return 1.0

        def peak(self) -> None:
            return None

        cpu = peak

    class Lasts(Falls):
        left = 99

    said: list[str] = []
    track = Track("mlp", said.append)
    for name, runner in (("pfl", Falls()), ("plain", Lasts())):
        track.warm_up(name, runner)
    for round in range(3):
        track.lap(round, 3)
    assert track.outcome("pfl").why == "it ended: MemoryError"
    assert track.outcome("plain").rounds == (1.0, 1.0, 1.0)


def test_last_words_name_the_error(tmp_path: Path):
    log = tmp_path / "log"
    for text, words in (("", "without a word"), ("a\nb\n\n", "b"), ("x\nKeyError: 1\nmore", "KeyError: 1")):
        log.write_text(text)
        assert last_words(log) == words


def test_peers_may_have_an_interpreter_of_their_own():
    fedjax, plain = entries(["fedjax", "plain"], {"fedjax": "/there/python"})
    assert (fedjax.python, plain.python) == ("/there/python", sys.executable)


def test_drivers_need_nothing_of_kinfed_but_the_protocol():
    for path in (Path(report.__file__).parent / "peers").glob("*.py"):
        lines = [line.strip() for line in path.read_text().splitlines() if "kinfed" in line.split("#")[0]]
        imports = [line for line in lines if line.startswith(("import ", "from "))]
        if path.name != "kinfed.py":
            assert all(line.startswith("from kinfed.bench.peers") for line in imports), path
    assert MARK.startswith("@")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_one_line():
    result = bench("--device", "cuda", "--contenders", "plain", *SMALL)
    assert result.exit_code == 2 and "torch sees no CUDA device" in result.stderr
