"""The race of `kinfed bench`, run for real on very few clients."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from kinfed.bench import contenders
from kinfed.bench.contenders import CHECKOUT, CONTENDERS, Absent, choose_contenders, find_processes, last_error, start
from kinfed.bench.drivers import NETWORKS, start_plain
from kinfed.bench.race import Heat, Plan, Timing, make_table
from kinfed.bench.workloads import WEIGHTS, WORKLOADS
from kinfed.cli import app
from kinfed.models import make_autoencoder, make_model

SMALL = ("--scale", "0.02", "--threads", "1", "--rounds", "2")


def bench(*words: str):
    return CliRunner().invoke(app, ["bench", *words])


def test_workloads_have_the_sizes_of_their_papers():
    mlp, cnn, flt4 = (WORKLOADS[name] for name in ("mlp", "cnn", "flt4"))
    assert (mlp.weights, cnn.weights) == (159_010, 1_663_370)
    assert (mlp.steps, flt4.steps) == (20 * 60, 480 * 25)
    assert mlp.least_bytes == 12 * 159_010 * 1200
    assert flt4.least_bytes == 20 * 166_447 * 480 * 25  # momentum is read and written too
    assert (flt4.scale(0.1).clients, flt4.scale(0.1).cohort) == (240, 48)
    assert mlp.scale(1e-6).clients == 1


@pytest.mark.parametrize("name", WEIGHTS)
def test_workloads_know_how_many_weights_their_networks_have(name):
    model, shape = NETWORKS[name]
    network = make_autoencoder(model, shape) if name == "tuning" else make_model(model, shape, 10)
    weights = network.init()
    assert WORKLOADS[name].weights == sum(weights[key].numel() for key in network.weights)


@pytest.mark.on_demand
@pytest.mark.parametrize("name", WEIGHTS)
def test_networks_of_every_kind_race(name):
    scale = "0.01" if name == "tuning" else "0.05"
    result = bench("--workloads", name, "--contenders", "kinfed,plain", "--scale", scale, "--rounds", "1")
    lines = [line for line in result.output.splitlines() if line.startswith(f"{name} ")]
    assert result.exit_code == 0 and {line.split()[1] for line in lines} == {"kinfed", "plain"}


def write_timings(file: Path, **speeds: float) -> Path:
    timings = [
        {"workload": "mlp", "contender": name, "rounds": [1.0], "median": 1.0, "speed": speed}
        for name, speed in speeds.items()
    ]
    file.write_text(json.dumps({"timings": [*timings, {"workload": "cnn", "contender": "pfl", "rounds": []}]}))
    return file


@pytest.mark.parametrize(("speed", "said", "code"), [(3.8, "0.95", 0), (2.0, "0.50 slower", 1)])
def test_two_files_are_set_side_by_side_and_a_slow_down_is_seen(speed, said, code, tmp_path):
    before = write_timings(tmp_path / "before.json", kinfed=4.0, plain=1.0)
    now = write_timings(tmp_path / "now.json", kinfed=speed)
    result = bench("--compare", str(before), str(now))
    assert result.exit_code == code and "plain" not in result.output.splitlines()[-1]
    assert result.output.splitlines()[-1].endswith(said) and "kinfed" in result.output


def test_files_that_cannot_be_compared_are_one_line(tmp_path):
    whole, other = write_timings(tmp_path / "a.json", kinfed=4.0), tmp_path / "b.json"
    other.write_text("{}")
    for pair, said in (((whole, other), "wanted a file of kinfed bench --json"), ((whole, tmp_path), "wanted a file")):
        result = bench("--compare", *map(str, pair))
        assert result.exit_code == 2 and said in result.stderr


def test_uneven_clients_have_samples_from_few_to_many(tmp_path):
    three = replace(WORKLOADS["uneven"], clients=3, samples=960)
    assert three.lengths == [15, 120, 960] == three.make_job(tmp_path, 1, "cpu").lengths  # eight times as many each
    assert three.steps_each == (2 + 12 + 96) / 3
    assert WORKLOADS["mlp"].lengths == [600] * 100


@pytest.mark.on_demand
def test_uneven_clients_race_too():
    result = bench("--workloads", "uneven", "--contenders", "kinfed,plain,fedlab", *SMALL)
    lines = [line for line in result.output.splitlines() if line.startswith("uneven ")]
    assert result.exit_code == 0 and {line.split()[1] for line in lines} == {"kinfed", "plain"}  # the fastest first


def test_speed_compares_neighbouring_rounds():
    plain, ours = Timing("mlp", "plain", rounds=(2.0, 8.0, 3.0)), Timing("mlp", "kinfed", rounds=(1.0, 2.0, 1.0))
    assert ours.speed(plain) == 3.0  # of 2, 4 and 3
    assert make_table([plain, ours], Plan())[1][:7] == ("mlp", "kinfed", "1.000", "1.000", "2.000", "16.7", "3.00")


def test_the_share_of_bandwidth_is_bytes_over_seconds_over_what_a_copy_moves():
    least = WORKLOADS["mlp"].least_bytes
    outcome = Timing("mlp", "kinfed", rounds=(2.0,), copy_bandwidth=least)
    assert outcome.bandwidth_share(WORKLOADS["mlp"]) == 0.5
    assert make_table([outcome], Plan())[1][-1] == "50%"


@pytest.mark.parametrize(
    "names", [["kinfed", "plain"], pytest.param(["kinfed", "sequential", "plain"], marks=pytest.mark.on_demand)]
)
def test_a_race_measures_every_contender_and_writes_it_down(names, tmp_path):
    file = tmp_path / "bench.json"
    result = bench("--workloads", "mlp", "--contenders", ",".join(names), *SMALL, "--json", str(file))
    assert result.exit_code == 0, result.output
    said = json.loads(file.read_text())
    assert said["plan"] == {"rounds": 2, "threads": 1, "device": "cpu", "scale": 0.02}
    assert said["workloads"]["mlp"]["clients"] == 2
    assert [o["contender"] for o in said["timings"]] == names
    for outcome in said["timings"]:
        assert len(outcome["rounds"]) == 2 and min(outcome["rounds"]) > 0 and not outcome["reason"]
        assert outcome["cpu"] > 0 and outcome["peak"] > 50 * 2**20
    assert "× plain" in result.output and "round 2/2" in result.output


@pytest.mark.on_demand
def test_a_quiet_race_shows_its_table_and_nothing_else():
    lines = bench("--workloads", "mlp", "--contenders", "plain", *SMALL, "-q").output.splitlines()
    assert len(lines) == 2 and lines[0].split()[:2] == ["workload", "contender"] and lines[1].startswith("mlp")


def test_a_contender_that_is_not_installed_is_left_out_with_the_reason():
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
        (("--workloads", ","), "at least one workload and one contender"),
        (("--drivers", "/no/such/folder"), "there is no such folder"),
        (("--scale", "2"), "--scale"),
        (("--rounds", "0"), "--rounds >= 1"),
        (("--peer-python", "fedjax"), "name=/path/to/python"),
        (("--peer-python", "kinfed=/usr/bin/python"), "runs in this environment"),
    ],
)
def test_bad_options_get_one_clear_line(words, said):
    result = bench("--workloads", "mlp", *words)
    assert result.exit_code == 2 and result.stderr.startswith("error: ") and said in result.stderr


@pytest.mark.on_demand
def test_a_contender_ends_with_its_context(tmp_path):
    job = WORKLOADS["mlp"].scale(0.01).make_job(tmp_path, 1, "cpu")
    with start(CONTENDERS["plain"], job, tmp_path) as runner:
        assert find_processes(runner.tag)
        assert runner.turn() > 0
    assert runner.process.poll() is not None and not find_processes(runner.tag)


def test_the_plain_loop_in_float32_uses_no_tf32(monkeypatch, tmp_path):
    job, used = WORKLOADS["mlp"].scale(0.01).make_job(tmp_path, 1, "cpu"), []
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    for name in ("plain", "plain-float32"):
        monkeypatch.setattr("sys.argv", CONTENDERS[name].command(job)[2:])  # as the process has it
        start_plain(job)(0)
        used.append(torch.backends.cudnn.allow_tf32)
    assert used == [True, False]


def test_a_contender_that_fails_is_noted_and_the_others_go_on():
    class Fails:
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

    class Lasts(Fails):
        left = 99

    said: list[str] = []
    heat = Heat("mlp", said.append)
    for name, runner in (("pfl", Fails()), ("plain", Lasts())):
        heat.warm_up(name, runner)
    for round in range(3):
        heat.run_round(round, 3)
    assert heat.timing("pfl").reason == "it ended: MemoryError"
    assert heat.timing("plain").rounds == (1.0, 1.0, 1.0)


def test_the_last_error_of_a_log_is_found(tmp_path: Path):
    log = tmp_path / "log"
    for text, words in (("", "its log is empty"), ("a\nb\n\n", "b"), ("x\nKeyError: 1\nmore", "KeyError: 1")):
        log.write_text(text)
        assert last_error(log) == words


def test_peers_may_have_an_interpreter_of_their_own():
    fedjax, plain = choose_contenders(["fedjax", "plain"], {"fedjax": "/there/python"})
    assert (fedjax.python, plain.python) == ("/there/python", sys.executable)


def test_drivers_need_nothing_of_kinfed_but_the_protocol():
    paths = list(CHECKOUT.glob("*.py"))
    assert len(paths) == 6
    for path in paths:
        lines = [line.strip() for line in path.read_text().splitlines()]
        own = [line for line in lines if line.startswith(("import kinfed", "from kinfed"))]
        assert all(line.startswith("from kinfed.bench.drivers import ") for line in own), path


def test_without_drivers_the_race_is_among_kinfed_and_plain_loops(monkeypatch, tmp_path):
    monkeypatch.setattr(contenders, "CHECKOUT", tmp_path / "nowhere")
    assert [c.name for c in choose_contenders([])] == ["kinfed", "sequential", "plain"]
    result = bench("--workloads", "mlp", "--contenders", "pfl", *SMALL)
    assert result.exit_code == 0, result.output
    assert "pfl (pfl-research, a process a thread) did not take part: kinfed is installed without" in result.output
    assert "benchmarks/peers with --drivers" in result.output


def test_a_checkout_has_drivers_of_other_simulators():
    names = ["kinfed", "sequential", "plain", "fedjax", "fedlab", "flower", "pfl"]
    assert [c.name for c in choose_contenders([])] == names


def test_a_folder_of_drivers_adds_contenders(tmp_path):
    text = """
import time
from kinfed.bench.drivers import drive

if __name__ == "__main__":
    drive(lambda job: lambda round: time.sleep(0.01))
"""
    (tmp_path / "mine.py").write_text(text)
    (tmp_path / "__init__.py").touch()
    result = bench("--workloads", "mlp", "--contenders", "mine", "--drivers", str(tmp_path), *SMALL, "-q")
    assert result.exit_code == 0 and "mlp" in result.output.splitlines()[1], result.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_one_line():
    result = bench("--device", "cuda", "--contenders", "plain", *SMALL)
    assert result.exit_code == 2 and "torch sees no CUDA device" in result.stderr
