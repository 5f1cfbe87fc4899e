"""Jobs: the runs that a command wants, and how a process takes them to their end.

One after the other; or, on a GPU, several at once that train together (`fastpath.JointTraining`), each in a thread.
"""

import gc
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock, Thread
from weakref import WeakValueDictionary

import torch

from kinfed.config import POPULATION, Config, make_population, to_toml
from kinfed.data import Population
from kinfed.errors import CheckpointError, KinfedError, OutOfMemory
from kinfed.fastpath import JointTraining
from kinfed.gpu_memory import share_with
from kinfed.processes import receive_from
from kinfed.progress import Display, Silence
from kinfed.runs.lifecycle import Given, Place, resume, start
from kinfed.runs.logs import CHECKPOINT, CONFIG

TORCH = str(Path(torch.__file__).parent)
POPULATIONS: WeakValueDictionary[str, Population] = WeakValueDictionary()  # that some run of this process has
MAKING = Lock()  # so that two runs on the same clients do not make them twice


@dataclass(frozen=True)
class Job:
    """One run that is wanted."""

    config: Config
    said: str  # which one, in words
    path: Path  # of its folder
    is_fresh: bool = False  # what is in the folder is replaced, else taken up
    keeps_checkpoint: bool = True

    @property
    def clients(self) -> str:
        """All that its clients depend on: jobs that share it have the same ones."""
        whole = self.config.resolve()
        return to_toml({key: whole[key] for key in ("seed", *POPULATION) if key in whole})


def group_by_clients(jobs: Sequence[Job]) -> list[Job]:
    """The same jobs, those on the same clients one after the other."""
    return group(jobs, [job.clients for job in jobs])


def group_by_training(jobs: Sequence[Job]) -> list[Job]:
    """The same jobs, those whose clients train alike one after the other: mostly those of a method on like data."""
    jobs = group(jobs, [job.config.method for job in jobs])
    return group(jobs, [replace(job, config=replace(job.config, seed=0)).clients for job in jobs])


def group(jobs: Sequence[Job], keys: Sequence[str]) -> list[Job]:
    """The same jobs, those with the same key one after the other; keys and their jobs stay in their order."""
    order = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    return [job for _, job in sorted(zip(keys, jobs, strict=True), key=lambda pair: order[pair[0]])]


@dataclass
class Runner:
    """Runs jobs one after the other; it keeps the clients of the last one: the next job mostly has the same."""

    last: tuple[str, Population] | None = None

    def clients(self, job: Job) -> Population:
        """The clients of a job."""
        if self.last is None or self.last[0] != job.clients:
            self.last = None  # two populations at once may be too many
            with MAKING:
                known = POPULATIONS.get(job.clients) or make_population(job.config)
                POPULATIONS[job.clients] = known
            self.last = (job.clients, known)
        return self.last[1]

    def run(self, job: Job, display: Display) -> Exception | None:
        """Takes a run to its end, from where it is; gives back why it failed, if it did."""
        try:
            if job.is_fresh or not self.resume(job, display):
                start(job.config, Place(job.path, force=True), display, Given(self.clients(job)))
            if not job.keeps_checkpoint:
                (job.path / CHECKPOINT).unlink(missing_ok=True)
        except Exception as error:  # code of the user's own may raise anything, and other runs go on
            return error
        return None

    def resume(self, job: Job, display: Display) -> bool:
        """Whether a run that was stopped could be taken to its end."""
        if not (job.path / CONFIG).exists():
            return False
        try:
            resume(job.config, job.path, display, Given(self.clients(job)))
        except CheckpointError as error:  # it was damaged, or another version of kinfed wrote it
            display.say(f"begins again: {error}")
            return False
        return True


@dataclass(frozen=True)
class Ended:
    """What became of a run."""

    seconds: float = 0.0
    failed: str = ""  # why
    died: bool = False  # the process, too, or it cannot use the GPU any more
    crowded: bool = False  # there was no room for it

    def __str__(self) -> str:
        return f"failed: {self.failed}" if self.failed else f"ended, {self.seconds:.0f} s"


def run_to_end(runner: Runner, job: Job, display: Display) -> Ended:
    """How a run ended; its error, whose frames hold what the run had in memory, is gone then."""
    began = time.monotonic()
    why = runner.run(job, display)
    failed, is_crowded = explain_failure(why) if why else "", isinstance(why, OutOfMemory)
    del why  # its frames know this one
    return Ended(time.monotonic() - began, failed, crowded=is_crowded)


def explain_failure(error: BaseException) -> str:
    """Why a run failed, in a line; of an error that is not kinfed's own, its kind and its place too."""
    said = " ".join(str(error).split())
    if isinstance(error, KinfedError):
        return said
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(TORCH)] or frames
    place = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in own[-1:])
    return f"{type(error).__name__}: {said}{place}"


@dataclass(frozen=True)
class Setup:
    """What a process has for all of its runs."""

    place: str  # the working folder
    threads: int  # of torch
    device: str = "cpu"  # that it starts before its first run
    processes: int = field(default=1, compare=False)  # that share the device
    together: int = 1  # runs at once in each of them, which train together


def work(setup: Setup, *lines: Connection) -> None:
    """What a process does: one run after the other; with several lines, as many at once."""
    os.chdir(setup.place)  # a spawned process begins where its parent began
    torch.set_num_threads(setup.threads)
    share_with(setup.processes)
    start_devices(setup.device)
    with suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        if len(lines) == 1:
            take_jobs(lines[0])
        else:
            take_jobs_together(lines)


def take_jobs(line: Connection, part: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
    """Takes the jobs that come to their end, each inside of its part of a joint training."""
    runner, display = Runner(), Silence(line.send)
    with suppress(KeyboardInterrupt):
        while isinstance(job := receive_from(line), Job):
            with suppress(Exception):  # the run itself fails of it, and says so
                runner.clients(job)  # others train meanwhile
            with part():
                ended = run_to_end(runner, job, display)
                is_lost = has_lost_gpu(job.config.engine.device)
            if is_lost and ended.failed:
                line.send(replace(ended, died=True))
                return
            line.send(ended)


def take_jobs_together(lines: Sequence[Connection]) -> int:
    """Takes the jobs of all lines at once, and gives back how many trainings were parts of another one.

    An interrupt stops each where it trains next.
    """
    joint = JointTraining()

    def take(line: Connection) -> None:
        try:
            take_jobs(line, joint.take_part)
        except BaseException as error:  # what ends a process (sys.exit) would end this thread alone, and nobody knew
            with suppress(OSError):
                line.send(Ended(failed=explain_failure(error), died=True))

    threads = [Thread(target=take, args=(line,), daemon=True) for line in lines]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        joint.stop()
    return joint.joined


def has_lost_gpu(device: str = "cpu") -> bool:
    """Whether an error has made the GPU useless for this process; else gives back the memory of the last run.

    A process that sees no GPU where its run wants one lost it at its start: the one that began it saw one.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        return True
    gc.collect()  # what a run leaves may hold CUDA graphs
    try:
        torch.cuda.empty_cache()  # others may need it before this process does
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def start_devices(names: str) -> None:
    """Starts the GPUs for this process, which takes a second or more; where that fails, its first run says why."""
    with suppress(RuntimeError):
        for name in names.split(","):
            torch.zeros(1, device=name)
