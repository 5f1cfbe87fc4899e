"""Contenders: drivers as processes that run a round when asked, with their CPU time and peak of memory."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import psutil

from kinfed.bench.drivers import MARK, Job
from kinfed.errors import ConfigError, KinfedError
from kinfed.registry import look_up

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1] / "benchmarks" / "peers"  # drivers of other simulators, in the repository
TAG = "KINFED_BENCH_RUN"
SAMPLING = 0.02  # seconds between two looks at the memory of a running contender


class Absent(KinfedError):
    """A contender cannot take part; the message says why."""


@dataclass(frozen=True)
class Contender:
    """Which driver is run, by which interpreter."""

    name: str
    about: str = "another simulator"
    driver: str = ""  # of kinfed.bench.drivers; empty: the file of its name in `drivers`
    arguments: tuple[str, ...] = ()
    threads: int = 0  # 0: as many as the race has
    python: str = sys.executable
    drivers: Path | None = None  # the folder of other simulators' drivers

    @property
    def is_peer(self) -> bool:
        """Whether it is another simulator."""
        return not self.driver

    def command(self, job: Job) -> list[str]:
        """The command that starts its driver."""
        settings = json.dumps(asdict(job) | ({"threads": self.threads} if self.threads else {}))
        if self.is_peer:
            return [self.python, "-m", f"peers.{self.name}", settings]
        return [self.python, "-m", "kinfed.bench.drivers", settings, self.driver, *self.arguments]


CONTENDERS = {
    "kinfed": Contender("kinfed", "this engine, vectorised", "kinfed", ("vectorised",)),
    "kinfed-tf32": Contender(
        "kinfed-tf32", "the same with engine.precision = tf32, on a GPU", "kinfed", ("vectorised", "tf32")
    ),
    "kinfed-bf16": Contender("kinfed-bf16", "the same with bf16", "kinfed", ("vectorised", "bf16")),
    "sequential": Contender("sequential", "kinfed's reference engine", "kinfed", ("sequential",)),
    "plain": Contender("plain", "a plain PyTorch loop", "plain"),
    "plain-float32": Contender(
        "plain-float32",
        "the same in full float32: by default torch's convolutions on a GPU use TF32",
        "plain",
        ("float32",),
    ),
    "plain-1": Contender("plain-1", "the same with one thread", "plain", threads=1),
    "flower": Contender("flower", "Flower's simulation on Ray, an actor a thread"),
    "pfl": Contender("pfl", "pfl-research, a process a thread"),
    "fedlab": Contender("fedlab", "FedLab's serial trainer"),
    "fedjax": Contender("fedjax", "fedjax, compiled"),
}


def choose_contenders(
    names: Sequence[str], pythons: Mapping[str, str] | None = None, drivers: Path | None = None
) -> list[Contender]:
    """The contenders of these names, or all that have a driver here; `pythons`: the interpreters of peers' packages."""
    folder, pythons = find_drivers(drivers), pythons or {}
    files = sorted(path.stem for path in folder.glob("*.py") if is_driver(path)) if folder else []
    table = {name: Contender(name) for name in files} | CONTENDERS
    for name in pythons:
        if not look_up(name, table, "contender").is_peer:
            raise ConfigError(f"--peer-python: '{name}' runs in this environment; wanted one of the other simulators")
    chosen = [look_up(name, table, "contender") for name in names or ("kinfed", "sequential", "plain", *files)]
    return [replace(c, python=pythons.get(c.name, c.python), drivers=folder) for c in chosen]


def find_drivers(folder: Path | None) -> Path | None:
    """The folder of other simulators' drivers: the one that was asked for, else the repository's where there is one."""
    if folder and not folder.is_dir():
        raise ConfigError(f"--drivers {folder}: there is no such folder; wanted one like benchmarks/peers")
    return folder or (CHECKOUT if CHECKOUT.is_dir() else None)


def is_driver(path: Path) -> bool:
    """Whether a file can be started: others are parts of drivers."""
    return "__main__" in path.read_text(encoding="utf-8")


@dataclass
class Memory:
    """The peak of the resident memory of some processes, added up, over all times that it was watched."""

    tag: str
    peak: int = 0  # bytes

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Inside it the memory is sampled; psutil knows no peaks on Linux."""
        done = threading.Event()
        thread = threading.Thread(target=self.sample_until, args=(done,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def sample_until(self, done: threading.Event) -> None:
        """Samples until the event is set, and once after it."""
        processes = find_processes(self.tag)
        while not done.wait(SAMPLING):
            self.peak = max(self.peak, sum(map(resident_memory, processes)))
        self.peak = max(self.peak, sum(map(resident_memory, find_processes(self.tag))))


@dataclass(frozen=True)
class Runner:
    """A started contender."""

    contender: Contender
    process: "subprocess.Popen[str]"
    log: Path
    tag: str
    memory: Memory
    facts: dict[str, float] = field(default_factory=dict)  # what it measured itself

    def turn(self) -> float:
        """Seconds of one round."""
        assert self.process.stdin
        with self.memory.watch():
            with suppress(BrokenPipeError):
                self.process.stdin.write("go\n")
                self.process.stdin.flush()
            return float(str(self.receive("seconds")["seconds"]))

    def receive(self, wanted: str) -> dict[str, object]:
        """The next message that has `wanted` in it."""
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith(MARK):
                facts: dict[str, object] = json.loads(line.removeprefix(MARK))
                if "missing" in facts:
                    raise Absent(f"not found: {facts['missing']} (by {self.contender.python})")
                if wanted in facts:
                    return facts
                self.facts.update({name: float(str(value)) for name, value in facts.items()})
        raise Absent(f"it ended: {last_error(self.log)}")

    def peak(self) -> int:
        """Bytes: the peak of resident memory in all turns so far, of all its processes."""
        return self.memory.peak

    def cpu(self) -> float:
        """Seconds of CPU that all its processes have used so far."""
        return sum(map(cpu_seconds, find_processes(self.tag)))

    def close(self) -> None:
        """Ends it and all that it started."""
        if self.process.stdin:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        end_processes(self.tag)
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


@contextmanager
def start(contender: Contender, job: Job, folder: Path) -> Iterator[Runner]:
    """The contender, ready for its first round; its processes end with the context."""
    log, tag = folder / f"{contender.name}.log", uuid4().hex
    environment = dict(os.environ) | {TAG: tag, "PYTHONPATH": find_code(contender, folder), "PYTHONWARNINGS": "ignore"}
    with log.open("w") as errors:
        try:
            process = subprocess.Popen(
                contender.command(job), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                cwd=folder, env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise Absent(f"cannot start {contender.python}: {error.strerror}") from error
    runner = Runner(contender, process, log, tag, Memory(tag))
    try:
        runner.receive("ready")
        yield runner
    finally:
        runner.close()


def find_code(contender: Contender, folder: Path) -> str:
    """Where its interpreter finds its driver; peers see copies of drivers and nothing else of kinfed."""
    if not contender.is_peer:
        return str(HERE.parents[1])
    if contender.is_peer and not (contender.drivers and (contender.drivers / f"{contender.name}.py").exists()):
        raise Absent(
            "kinfed is installed without the drivers of other simulators; run it in a checkout of the repository, "
            "or pass its folder benchmarks/peers with --drivers"
        )
    return copy_code(folder / "code", contender.drivers)


def copy_code(target: Path, drivers: Path | None) -> str:
    """Copies all that drivers import: `kinfed.bench.drivers`, and the package `peers`."""
    if not target.exists():
        bench = target / "kinfed" / "bench"
        bench.mkdir(parents=True)
        for empty in (bench.parent / "__init__.py", bench / "__init__.py"):
            empty.touch()
        shutil.copy(HERE / "drivers.py", bench)
        if drivers:
            shutil.copytree(drivers, target / "peers", ignore=shutil.ignore_patterns("__pycache__"))
    return str(target)


def find_processes(tag: str) -> list[psutil.Process]:
    """The processes in whose environment the tag is."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(TAG) == tag:
                found.append(process)
    return found


def resident_memory(process: psutil.Process) -> int:
    """Bytes of a process's resident memory; 0 if it is gone."""
    with suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0


def cpu_seconds(process: psutil.Process) -> float:
    """Seconds of CPU a process has used; 0 if it is gone."""
    with suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def end_processes(tag: str) -> None:
    """Asks all processes with the tag to end, and kills those that are still there after five seconds."""
    processes = find_processes(tag)
    for process in processes:
        with suppress(psutil.Error):
            process.terminate()
    psutil.wait_procs(processes, timeout=5)
    for process in find_processes(tag):
        with suppress(psutil.Error):
            process.kill()


def last_error(log: Path) -> str:
    """The last line that names an error, else the last one that is not empty, else that there is none."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.split(":")[0]]
    return (errors or lines or ["its log is empty"])[-1]


def make_scratch() -> "tempfile.TemporaryDirectory[str]":
    """A temporary folder for samples, copies and logs."""
    return tempfile.TemporaryDirectory(prefix="kinfed-bench-", ignore_cleanup_errors=True)
