"""`kinfed reproduce --jobs`: real processes beside each other, some of which fail, die or are stopped."""

import csv
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kinfed.cli import app
from kinfed.runs import SUMMARY, jobs, parallel
from tests.recipes.made_up import TINY

pytestmark = pytest.mark.slow

NETWORKS = """
import os, signal, time
from pathlib import Path
import torch
from torch import nn

class Slow(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.line = nn.Linear(shape[0] * shape[1] * shape[2], classes)
    def forward(self, x):
        time.sleep(0.03 if Path("slow").exists() else 0)
        return self.line(x.flatten(1))

def broken(shape, classes):
    raise TypeError("no such network")

class Huge(Slow):
    def forward(self, x):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 17.11 GiB. GPU 0 has less.")

class Hungry(Huge):  # there is room for it the second time
    def forward(self, x):
        if Path("tried").exists():
            return Slow.forward(self, x)
        Path("tried").touch()
        return super().forward(x)

def deadly(shape, classes):
    os.kill(os.getpid(), signal.SIGKILL)

def mortal(shape, classes):
    if not os.path.exists("died"):
        open("died", "w").close()
        os._exit(1)
    return Slow(shape, classes)
"""


@pytest.fixture(autouse=True)
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own with the tiny recipe and some networks in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KINFED_DATA", str(tmp_path))
    Path("tiny.toml").write_text(TINY, encoding="utf-8")
    Path("networks_of_jobs.py").write_text(NETWORKS, encoding="utf-8")


def reproduce(*words: str) -> Result:
    return CliRunner().invoke(app, ["reproduce", *words])


def write_recipe(*networks: str, rounds: int = 1) -> None:
    """A recipe with a row for each of these networks."""
    head = TINY.partition("[columns.photos]")[0].replace("rounds = 3", f"rounds = {rounds}")
    rows = [
        f'[rows.{name}-{i}]\ntitle = "{name} {i}"\n'
        f'config.method = "local"\nconfig.model = "networks_of_jobs:{name}"\n'
        f"config.training = {{ lr = 0.0{i}, epochs = 1, batch_size = 64 }}\n"
        for i, name in enumerate(networks, 1)
    ]
    Path("rows.toml").write_text(head + "\n".join(rows), encoding="utf-8")


def table(folder: str, ending: str) -> str:
    """A written table without its seconds."""
    text = Path(folder, f"tiny.{ending}").read_text(encoding="utf-8")
    if ending == "json":
        return re.sub(r'"seconds": [\d.]+', "", text)
    if ending == "csv":
        return str([{k: v for k, v in line.items() if k != "seconds"} for line in csv.DictReader(text.splitlines())])
    return re.sub(r"\d+( \|| \\\\)$", "", text, flags=re.MULTILINE)  # the last column


@pytest.mark.on_demand
def test_the_tables_are_the_same_to_the_byte():
    words = ("tiny.toml", "--quick", "--only", "digits", "--seeds", "2")
    assert reproduce(*words, "--out", "alone", "-q").exit_code == 0
    result = reproduce(*words, "--out", "beside", "--jobs", "2")
    assert result.exit_code == 0, result.output
    assert [f"run {n} of 6: tiny: " in result.output for n in range(1, 7)] == [True] * 6
    assert sorted(re.findall(r"run (\d): ended, \d+ s", result.output)) == list("123456")
    left = re.findall(r"; (\d) of 6 left, about \d+ (?:s|min)\n", result.output)
    assert left == list("54321")
    assert "round 1/1" not in result.output  # what runs say of themselves would be mixed up
    assert re.search(r", in \d+ s\n$", result.output)
    for ending in ("md", "csv", "json", "tex"):
        assert table("alone", ending) == table("beside", ending), ending
    for run in Path("alone/runs").iterdir():
        assert (run / SUMMARY).read_bytes() == (Path("beside/runs") / run.name / SUMMARY).read_bytes()


def test_the_outlook_by_hand():
    assert parallel.outlook(10, 8, 5.0) == "; 8 of 10 left, about 20 s"
    assert parallel.outlook(10, 8, 50.0) == "; 8 of 10 left, about 3 min"
    assert parallel.outlook(10, 0, 50.0) == ""


def test_a_run_that_fails_or_kills_its_process_leaves_the_others_alone():
    write_recipe("Slow", "broken", "deadly", "Slow")
    result = reproduce("rows.toml", "--jobs", "2", "--protocol", "fair")
    assert result.exit_code == 2, result.output
    assert result.output.count(": ended, ") == 2
    assert "failed: model 'networks_of_jobs:broken' must be" in result.output
    died = "its process died with exit code -9, mostly for want of memory: try fewer --jobs"
    assert f"run 3: {died}; it is tried once more\n" in result.output and f"run 3: failed: {died}" in result.output
    assert result.stderr.startswith("error: 2 runs failed: ") and result.stderr.count("\n") == 1
    assert len(list(Path("runs/reproduce/runs").glob(f"*/{SUMMARY}"))) == 2


@pytest.mark.on_demand  # by hand: test_who_died_is_replaced_unless_memory_is_short_or_all_die
def test_a_run_whose_process_dies_is_tried_once_more_in_another():
    write_recipe("mortal", "Slow", "Slow")
    result = reproduce("rows.toml", "--jobs", "2", "--protocol", "fair")
    assert result.exit_code == 0, result.output
    assert "run 1: its process died with exit code 1; it is tried once more\n" in result.output
    assert result.output.count("run 1 of 3: ") == 2 and result.output.count(": ended, ") == 3


@pytest.mark.on_demand
def test_a_run_without_room_beside_others_goes_on_later():
    write_recipe("Slow", "Hungry", "Slow")
    result = reproduce("rows.toml", "--jobs", "2", "--protocol", "fair")
    assert result.exit_code == 0, result.output
    assert "run 2: no room for it beside others, it goes on later\n" in result.output
    assert result.output.count("run 2 of 3: ") == 2 and result.output.count(": ended, ") == 3


@pytest.mark.on_demand
def test_runs_without_room_even_alone_fail_and_the_others_do_not():
    write_recipe("Huge", "Huge", "Slow", "Slow")
    result = reproduce("rows.toml", "--jobs", "2", "--protocol", "fair")
    assert result.exit_code == 2, result.output
    assert result.output.count(": ended, ") == 2
    why = "failed: GPU memory is full, 17.11 GiB more were asked for: let fewer runs share it, or"
    assert result.output.count(why) >= 2
    assert result.stderr.startswith("error: 2 runs failed: ") and result.stderr.count("\n") == 1


def test_who_had_no_room_leaves_unless_nobody_else_is_there():
    lines = [multiprocessing.Pipe() for _ in range(2)]
    workers = [parallel.Worker(None, ours) for ours, _ in lines]
    pool = parallel.Pool(deque([(1, "a"), (2, "b"), (3, "c")]), list(workers), start=None)
    assert [pool.begin(), pool.begin()] == [(1, "a"), (2, "b")]
    full = jobs.Ended(failed="full", crowded=True)
    later = "no room for it beside others, it goes on later"
    assert pool.end(workers[0], full) == later  # run 2: the other is at work, so this one leaves
    assert workers[0].line.closed and not pool.free and list(pool.todo) == [(2, "b"), (3, "c")]
    assert pool.end(workers[1], full) == later  # run 1 had company too, but nobody else is left now
    assert not workers[1].line.closed and pool.free == [workers[1]]
    assert pool.begin() == (1, "a")
    assert pool.end(workers[1], full) == ""  # alone: it has failed
    assert pool.free == [workers[1]] and list(pool.todo) == [(2, "b"), (3, "c")]


def test_who_died_is_replaced_unless_memory_is_short_or_all_die():
    started: list[parallel.Worker] = []

    def start() -> parallel.Worker:
        started.append(parallel.Worker(None, multiprocessing.Pipe()[0]))
        return started[-1]

    dead, killed = jobs.Ended(failed="dead", died=True), jobs.Ended(failed="killed", died=True, crowded=True)
    first, second = start(), start()
    pool = parallel.Pool(deque(enumerate("abc", 1)), [second, first], start)
    assert [pool.begin(), pool.begin()] == [(1, "a"), (2, "b")]
    assert pool.end(first, dead) == "dead; it is tried once more" and pool.free == started[2:]
    assert list(pool.todo) == [(3, "c"), (1, "a")], "after all others"
    assert pool.end(second, killed) and pool.free == started[2:3], "memory is short: one fewer"
    assert pool.begin() == (3, "c") and pool.end(started[2], killed) and pool.free == started[3:], "nobody else is left"
    assert pool.begin() == (1, "a") and pool.end(started[3], dead) == "", "it has failed"
    assert pool.deaths == 4 and not pool.free, "no run has ended in the meantime: they would die for ever"

    pool = parallel.Pool(deque(enumerate("ab", 1)), [first], start)
    pool.begin(), pool.end(first, dead), pool.begin(), pool.end(started[-1], jobs.Ended())
    assert pool.deaths == 0 and pool.free == started[-1:], "one has ended"


@pytest.mark.on_demand
def test_where_all_processes_die_that_is_said_and_the_rest_is_left():
    write_recipe("deadly", "deadly", "deadly", "deadly", "Slow", "Slow")
    result = reproduce("rows.toml", "--jobs", "2", "--protocol", "fair", "-q")
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith("error: all processes died, 6 runs are left: its process died")


def begun(file: str) -> subprocess.Popen[str]:
    """A real command, once both of its first runs have written this file."""
    Path("slow").touch()
    words = [sys.executable, "-m", "kinfed", "reproduce", "rows.toml", "--jobs", "2", "--protocol", "fair", "--quiet"]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    running = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True)
    wait_until(lambda: len(list(Path().glob(f"runs/reproduce/runs/*/{file}"))) == 2 or running.poll() is not None)
    assert running.poll() is None
    return running


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


def is_empty(cluster: int) -> bool:
    """Whether no process of a group is left."""
    try:
        os.killpg(cluster, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.on_demand
def test_control_c_stops_all_and_the_same_command_goes_on():
    write_recipe("Slow", "Slow", "Slow", rounds=25)
    running = begun("checkpoint.safetensors")
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: all of them hear it
    _, errors = running.communicate(timeout=60)
    assert (running.returncode, errors) == (130, "stopped; the same command goes on from here\n")
    wait_until(lambda: is_empty(running.pid))
    Path("slow").unlink()
    assert reproduce("rows.toml", "--jobs", "2", "--protocol", "fair", "-q").exit_code == 0
    told = [path.read_text().splitlines() for path in Path("runs/reproduce/runs").glob("*/events.jsonl")]
    events = sorted([json.loads(line)["event"] for line in lines] for lines in told)
    stopped = ["started", "interrupted", "resumed", "ended"]
    assert events == [["started", "ended"], stopped, stopped]


def test_an_impatient_control_c_leaves_no_process_behind(tmp_path, monkeypatch):
    with parallel.start_workers(1, jobs.Setup(str(tmp_path), 1)) as (worker,):
        terminate = worker.process.terminate
        monkeypatch.setattr(worker.process, "terminate", lambda: (os.kill(os.getpid(), signal.SIGINT), terminate()))
    assert not worker.process.is_alive()


@pytest.mark.on_demand
def test_whose_parent_is_killed_leaves_too():
    write_recipe("Slow", "Slow", rounds=10_000)
    running = begun("rounds.csv")
    running.kill()
    running.communicate(timeout=60)  # ends when nobody holds its standard error any more
    wait_until(lambda: is_empty(running.pid))
