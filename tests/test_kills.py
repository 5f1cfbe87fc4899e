"""kill -9 in the middle of a write: the resumed run has the bytes of one that was never killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = '''
import json, os, signal, sys
from pathlib import Path

import sklearn.cluster, sklearn.datasets, sklearn.metrics, torch, torch._dynamo  # once, not in every child

from kinfed import api, files
from kinfed.config import DEMO, load_config
from kinfed.runs import CHECKPOINT, logs

SETTINGS = ["method=flt", "rounds=2", "checkpoint_every=1", "partition.clients=10", "data.public=0.1", "roles.late=0.2",
            "methods.flt.signature.latent=8"]
UNEQUAL = ("timing.csv", "events.jsonl", ".lock")
done = 0


def die_at(count, real, half):
    """The same function; its call number `count` does half of its work, and the process is killed."""

    def call(*arguments):
        global done
        done += 1
        if done == count:
            half(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)

    return call


def halve(descriptor):
    os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)


def append_half(path, text):
    with open(path, "a") as file:
        file.write(text[: len(text) // 2])


def child(work):
    """Runs it in a process of its own; says whether that was killed."""
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)
        work()
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def run(folder, count):
    files.os.fsync = die_at(count, os.fsync, halve)
    files.os.replace = die_at(count, os.replace, lambda *_: None)
    logs.append_text = die_at(count, logs.append_text, append_half)
    api.run(load_config(DEMO, SETTINGS), out=folder, quiet=True)
    Path("calls").write_text(str(done))


def contents(folder):
    found = {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in UNEQUAL}
    tensors, metadata = files.load_tensors(folder / CHECKPOINT)
    tree = json.loads(metadata["tree"])
    del tree["engine"]  # what autotuning measured
    return found | {CHECKPOINT: files.digest_content(tensors, metadata | {"tree": json.dumps(tree)})}


kills = int(sys.argv[1])
assert not child(lambda: run(Path("whole"), 0))
calls, equal = int(Path("calls").read_text()), 0
for number in range(kills):
    folder = Path(f"killed-{number}")
    at = 1 + (number * 2 + 1) * calls // (2 * kills)
    assert child(lambda: run(folder, at)), (at, calls)
    begun = (folder / "config.toml").exists()  # else there is nothing to resume yet
    again = (lambda: api.resume(folder, quiet=True)) if begun else (lambda: run(folder, 0))
    assert not child(again), at
    different = sorted(set(contents(folder).items()) ^ set(contents(Path("whole")).items()))
    assert not different, (at, [name for name, _ in different])
    equal += 1
print(equal, "of", kills)
'''


def kill(folder: Path, times: int) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-W", "ignore", "-c", KILLS, str(times)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_a_run_killed_inside_a_write_ends_with_the_same_bytes(tmp_path: Path):
    assert kill(tmp_path, 2) == "2 of 2"


@pytest.mark.on_demand
def test_runs_killed_inside_24_writes_all_end_with_the_same_bytes(tmp_path: Path):
    assert kill(tmp_path, 24) == "24 of 24"
