"""Processes that take runs."""

import json
import logging
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kinfed import processes
from kinfed.config import read
from kinfed.errors import ConfigError, KinfedError, OutOfMemory
from kinfed.processes import THREADS, Spawned, start_early
from kinfed.progress import Silence
from kinfed.runs import jobs as taken
from kinfed.runs import parallel
from kinfed.runs.jobs import Job, Setup
from kinfed.runs.lifecycle import can_resume, explain_full_gpu, forward_warnings
from kinfed.runs.logs import EventLog
from kinfed.runs.parallel import AtOnce, Worker, Workers, start_workers


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_process_starts_with_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(THREADS, raising=False)
    with start_workers(1, Setup(os.getcwd(), 3)) as (worker,):
        given = read_environment(Path(f"/proc/{worker.process.pid}"))
    assert f"{THREADS}=3".encode() in given and THREADS not in os.environ


def read_environment(process: Path) -> list[bytes]:
    """The environment that a process was started with; before it is, /proc shows this process's own."""
    while b"spawn_main" not in (process / "cmdline").read_bytes():
        time.sleep(0.01)
    return (process / "environ").read_bytes().split(b"\0")


def test_processes_stay_for_later_runs_unless_these_have_more_cores_each(monkeypatch: pytest.MonkeyPatch):
    started, ended = [], []

    @contextmanager
    def start(count: int, setup: Setup) -> Iterator[list[Worker]]:
        started.append((count, setup.threads))
        yield [Worker(None, None) for _ in range(count)]
        ended.append(count)

    monkeypatch.setattr(parallel, "start_workers", start)
    monkeypatch.setattr(parallel, "run_parallel", lambda pool, display, note: list(pool.free))
    monkeypatch.setattr(parallel, "choose_device", lambda device: device)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    with Workers(AtOnce(4)) as workers:
        workers.prepare(make_jobs(9))
        assert started == [(4, 2)], "they start before their first run"
        first = workers.run(make_jobs(9), None)
        assert workers.run(make_jobs(6), None) == first and not any(count for count, _ in started[1:])
        started[1:] = []
        assert workers.run(make_jobs(2), None) != first and started[1:] == [(2, 4)]  # on a CPU two have half each
        assert not workers.serves(make_jobs(1)), "and one has all in this process"
    assert sum(ended) == 6
    started.clear()
    with Workers(AtOnce(4)) as workers:
        first = workers.run(make_jobs(9, "cuda"), None)
        assert workers.run(make_jobs(1, "cuda"), None) == first
        workers.free.pop()  # one died
        assert len(workers.run(make_jobs(4, "cuda"), None)) == 4 and started == [(4, 2), (0, 2), (1, 2)]


def test_processes_that_have_started_serve_where_they_have_the_right_threads(monkeypatch: pytest.MonkeyPatch):
    class Line:
        def __init__(self):
            self.said = []

        def send(self, message: object) -> None:
            self.said.append(message)

        def close(self) -> None:
            self.said.append("closed")

    started, ended = [], []
    monkeypatch.setattr(parallel, "start_workers", lambda count, setup: nullcontext(started.append(count) or []))
    monkeypatch.setattr(parallel, "end_processes", ended.extend)
    monkeypatch.setattr(parallel, "choose_device", lambda device: device)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    for device, jobs, threads, used in (
        ("cpu", 9, 2, 3), ("cpu", 2, 4, 2), ("cpu", 9, 4, 0), ("cuda", 9, 4, 3), ("cpu", 1, 2, 0),
    ):  # fmt: skip
        early = [Spawned(None, Line(), threads) for _ in range(3)]
        with Workers(AtOnce(4), early=list(early)) as workers:
            workers.prepare(make_jobs(jobs, device))
            assert len(workers.free) == used
        setup = Setup(os.getcwd(), 2 if jobs == 9 else 4, device)
        assert [each.line.said for each in early] == [[(taken.work, setup)]] * used + [["closed"]] * (3 - used)
        assert ended == early[:used] and started == ([] if jobs == 1 else [min(4, jobs) - used])
        started.clear(), ended.clear()


def test_a_command_starts_as_many_processes_as_it_has_cores_at_most(monkeypatch: pytest.MonkeyPatch):
    asked = []
    monkeypatch.setattr(processes, "start_processes", lambda count, threads: asked.append((count, threads)))
    monkeypatch.setenv(THREADS, "8")
    for jobs in (1, 2, 3, 100, 0):
        start_early(jobs)
    assert asked == [(0, 8), (2, 4), (3, 2), (8, 1), (0, 8)]


def test_processes_know_with_how_many_they_share_a_gpu(monkeypatch: pytest.MonkeyPatch):
    asked: list[Setup] = []
    monkeypatch.setattr(parallel, "start_workers", lambda count, setup: nullcontext(asked.append(setup) or []))
    monkeypatch.setattr(parallel, "choose_device", lambda device: device)
    for jobs in (9, 3):
        with Workers(AtOnce(4)) as workers:
            workers.prepare(make_jobs(jobs, "cuda"))
    assert [setup.processes for setup in asked] == [4, 3]
    asked.clear()
    monkeypatch.setattr(parallel, "start_workers", lambda count, setup: nullcontext(asked.append(setup) or [None]))
    with Workers(AtOnce(2, 4)) as workers:
        workers.prepare(make_jobs(9, "cuda"))
        workers.start_another()
    assert [(setup.processes, setup.together) for setup in asked] == [(2, 4), (8, 1)], (
        "of one that died each run has one"
    )


def make_jobs(count: int, device: str = "cpu") -> list[Job]:
    return [Job(read({"engine": {"device": device}}), "", Path(str(number))) for number in range(count)]


def test_what_a_run_that_failed_had_in_memory_is_gone_before_the_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    held: list[weakref.ref[torch.Tensor]] = []

    def fail(*given: object) -> None:
        assert not any(each() is not None for each in held)
        large = torch.zeros(3)
        held.append(weakref.ref(large))
        raise RuntimeError("no")

    monkeypatch.setattr(taken, "start", fail)
    monkeypatch.setattr(taken.Runner, "clients", lambda self, job: None)
    jobs = [replace(job, path=tmp_path / str(job.path), is_fresh=True) for job in make_jobs(3)]
    failed = parallel.run_in_turn(jobs, Silence(lambda text: None), lambda job: None)
    assert len(held) == 3 and all(why.startswith("RuntimeError: no (") for why in failed.values())


def test_a_failure_that_is_not_kinfeds_own_names_its_kind_and_its_place():
    def fail() -> None:
        torch.ones(2).view(3)  # torch raises it: the line that asked for it is named

    with pytest.raises(RuntimeError) as caught:
        fail()
    said = taken.explain_failure(caught.value)
    assert said.startswith("RuntimeError: shape '[3]' is invalid") and "(test_parallel_runs.py, line " in said
    assert taken.explain_failure(ConfigError("wanted one")) == "wanted one"
    assert taken.explain_failure(KeyError("width")) == "KeyError: 'width'"  # never raised: no place


def test_a_library_without_room_for_itself_means_a_full_gpu_and_other_errors_stay(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**20, 2**37))
    for status in ("cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling", "CUBLAS_STATUS_ALLOC_FAILED"):
        with pytest.raises(OutOfMemory, match="GPU memory is full: let fewer"), explain_full_gpu():
            raise RuntimeError(status)
    with pytest.raises(RuntimeError, match="shapes do not fit"), explain_full_gpu():
        raise RuntimeError("shapes do not fit")


def test_a_library_that_fails_where_there_is_room_keeps_its_own_words(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**36, 2**37))
    with pytest.raises(RuntimeError, match="INTERNAL_ERROR") as caught, explain_full_gpu():
        raise RuntimeError("cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR")  # as for a matrix of NaN
    assert not isinstance(caught.value, OutOfMemory)


def test_a_process_that_has_lost_its_gpu_says_why_and_leaves(monkeypatch: pytest.MonkeyPatch):
    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    ended = taken.Ended(failed="CUDA error")
    monkeypatch.setattr(taken, "run_to_end", lambda *given: ended)
    monkeypatch.setattr(parallel, "run_to_end", lambda *given: ended)
    monkeypatch.setattr(taken.signal, "signal", lambda *given: None)
    job, (ours, theirs) = make_jobs(1)[0], Pipe()
    ours.send(job), ours.send(job), ours.send(None)
    taken.work(Setup(os.getcwd(), torch.get_num_threads()), theirs)
    assert [ours.recv(), ours.recv()] == [ended, ended], "an error of a run alone: the next one begins"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    ours.send(job), ours.send(job)
    taken.work(Setup(os.getcwd(), torch.get_num_threads()), theirs)
    assert ours.recv() == replace(ended, died=True) and not ours.poll()
    with pytest.raises(
        KinfedError, match="this process cannot use the GPU any more; run the command again: CUDA error"
    ):
        parallel.run_in_turn([job, job], Silence(lambda text: None), lambda job: None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a process that sees no GPU")
def test_a_process_that_sees_no_gpu_leaves_its_run_to_another(tmp_path: Path):
    ours, theirs = Pipe()
    ours.send(Job(read({"engine": {"device": "cuda"}}), "", tmp_path / "run")), ours.send(None)
    taken.take_jobs(theirs)
    ended = ours.recv()
    assert ended.died and ended.failed == "engine.device is 'cuda', but torch sees no CUDA device; use cpu or auto"
    assert not ours.poll(), "it takes no other run"


def test_a_process_starts_all_devices_and_leaves_errors_to_its_runs(monkeypatch: pytest.MonkeyPatch):
    tried: list[str] = []

    def allocate(size: int, device: str) -> None:
        tried.append(device)
        if device == "cuda:1":
            raise torch.OutOfMemoryError("it is full")

    monkeypatch.setattr(torch, "zeros", allocate)
    taken.start_devices("cuda:0,cuda:1")
    taken.start_devices("cpu")
    assert tried == ["cuda:0", "cuda:1", "cpu"]


def test_runs_at_once_are_read_from_a_number_or_two():
    assert AtOnce.parse(3) == AtOnce.parse("3") == AtOnce(3) and AtOnce.parse("4x8") == AtOnce(4, 8)
    assert AtOnce.parse(AtOnce(2, 2)).runs == 4
    for wrong in ("0", 0, "4x", "x4", "4x8x2", "-1", "two", "4x0", 1.5):
        with pytest.raises(ConfigError, match="--jobs: wanted how many runs at once, at least 1, got "):
            AtOnce.parse(wrong)


def test_runs_train_together_on_one_gpu_alone():
    asked = AtOnce(4, 8)
    assert asked.for_runs(100, "cuda") == asked
    assert asked.for_runs(10, "cuda:1") == AtOnce(2, 5), "as many in each"
    assert asked.for_runs(3, "cuda") == AtOnce(1, 3)
    assert asked.for_runs(100, "cpu") == asked.for_runs(100, "cuda:0,cuda:1") == AtOnce(4)


def test_runs_on_like_data_and_of_one_method_train_together(tmp_path: Path):
    def make(method: str, samples: int, seed: int) -> Job:
        config = read({"method": method, "seed": seed, "data": {"train_samples": samples}})
        return Job(config, f"{method} {samples} {seed}", tmp_path)

    jobs = [make(method, samples, seed) for samples in (20, 30) for seed in (0, 1) for method in ("fedavg", "ifca")]
    assert [job.said for job in taken.group_by_training(jobs)] == [
        "fedavg 20 0", "fedavg 20 1", "ifca 20 0", "ifca 20 1", "fedavg 30 0", "fedavg 30 1", "ifca 30 0", "ifca 30 1",
    ]  # fmt: skip


def test_runs_of_one_process_have_their_own_clients_events_and_ends(tmp_path: Path):
    """On a CPU they only take turns; where one fails the other goes on."""
    table = {"rounds": 2, "method": "fedavg", "data": {"train_samples": 20}, "partition": {"clients": 5}}
    sound, wrong = read(table), read(table | {"partition": {"clients": 3}})  # too few for five clusters
    jobs = [Job(sound, "", tmp_path / "a"), Job(wrong, "", tmp_path / "b"), Job(sound, "", tmp_path / "c")]
    with start_workers(1, Setup(str(tmp_path), 1, together=2)) as (first, second):
        assert first.process is second.process
        first.take(jobs[0]), second.take(jobs[1])
        assert not first.receive().failed and "5 clusters need" in second.receive().failed
        second.take(jobs[2])
        assert not second.receive().failed
    assert (tmp_path / "a/rounds.csv").read_bytes() == (tmp_path / "c/rounds.csv").read_bytes()


def test_a_run_that_ends_its_thread_is_said_to_and_leaves_the_others(monkeypatch: pytest.MonkeyPatch):
    def run(runner: taken.Runner, job: Job, display: Silence) -> taken.Ended:
        return sys.exit(3) if job.said == "leaves" else taken.Ended(seconds=1.0)

    monkeypatch.setattr(taken, "run_to_end", run)
    monkeypatch.setattr(taken.Runner, "clients", lambda runner, job: None)
    (ours, theirs), (others, their_others) = Pipe(), Pipe()
    job = make_jobs(1)[0]
    ours.send(replace(job, said="leaves")), others.send(job), others.send(None)
    serving = threading.Thread(target=taken.take_jobs_together, args=([theirs, their_others],), daemon=True)
    serving.start()
    assert ours.poll(20) and others.poll(20), "who waits for the run waits for ever"
    ended = ours.recv()
    assert ended.died and ended.failed.startswith("SystemExit: 3 (test_parallel_runs.py, line ")
    assert others.recv() == taken.Ended(seconds=1.0)
    serving.join(20)
    assert not serving.is_alive()


def test_warnings_and_logs_of_threads_go_to_their_own_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def speak(number: int) -> None:
        with forward_warnings(logs[number], watchers[number]):
            barrier.wait()
            warnings.warn(f"careful {number}", stacklevel=1)
            logging.getLogger("kinfed").info("round %d", number)
            barrier.wait()

    barrier, before = threading.Barrier(2), (warnings.showwarning, logging.getLogger("kinfed").propagate)
    logs, said = [EventLog(tmp_path / str(number)) for number in range(2)], [[], []]
    watchers = [SimpleNamespace(message=each.append) for each in said]
    threads = [threading.Thread(target=speak, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert said == [["round 0"], ["round 1"]]
    assert ["careful 0" in log.path.read_text() for log in logs] == [True, False]
    assert ["careful 1" in log.path.read_text() for log in logs] == [False, True]
    assert (warnings.showwarning, logging.getLogger("kinfed").propagate) == before
    assert capsys.readouterr().err.count("warning: careful") == 2


def test_every_run_of_a_process_has_a_warning_that_they_share_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    logs = [EventLog(tmp_path / str(number)) for number in range(2)]
    barrier = threading.Barrier(2)

    def speak(log: EventLog) -> None:
        with forward_warnings(log, SimpleNamespace(message=print)):
            barrier.wait()
            for _ in range(2):
                warnings.warn("it is short", stacklevel=1)
            barrier.wait()

    threads = [threading.Thread(target=speak, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [log.path.read_text().count("it is short") for log in logs] == [1, 1]
    assert capsys.readouterr().err == 2 * "warning: it is short\n"


def test_runs_of_one_process_that_is_ended_can_resume(tmp_path: Path):
    table = {"rounds": 10_000, "method": "fedavg", "data": {"train_samples": 20}, "partition": {"clients": 5}}
    jobs = [Job(read(table | {"seed": seed}), "", tmp_path / str(seed)) for seed in range(2)]
    with start_workers(1, Setup(str(tmp_path), 1, together=2)) as started:
        for worker, job in zip(started, jobs, strict=True):
            worker.take(job)
        end = time.monotonic() + 60
        while time.monotonic() < end and not all((job.path / "checkpoint.safetensors").exists() for job in jobs):
            time.sleep(0.02)
    for job in jobs:
        events = [json.loads(line)["event"] for line in (job.path / "events.jsonl").read_text().splitlines()]
        assert events == ["started", "interrupted"]
        assert can_resume(job.path, job.config)
