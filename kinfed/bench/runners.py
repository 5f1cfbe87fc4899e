"""A contender as a process that runs a round when it is told to, and its peak of memory."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from uuid import uuid4

from kinfed.bench.peers.protocol import MARK, Job
from kinfed.errors import KinfedError

HERE = Path(__file__).parent
TAG = "KINFED_BENCH_RUN"


class Absent(KinfedError):
    """A contender cannot take part; the message says why."""


@dataclass(frozen=True)
class Contender:
    """Which driver is run, by which interpreter."""

    name: str
    driver: str  # module of kinfed.bench.peers
    arguments: tuple[str, ...] = ()
    threads: int = 0  # 0: as many as the race has
    python: str = sys.executable

    @property
    def is_own(self) -> bool:
        """Whether it is a part of kinfed."""
        return self.driver == "kinfed"


@dataclass(frozen=True)
class Runner:
    """A started contender."""

    contender: Contender
    process: "subprocess.Popen[str]"
    log: Path
    tag: str
    facts: dict[str, float] = field(default_factory=dict)  # what it said of itself

    def turn(self) -> float:
        """Seconds of one round."""
        assert self.process.stdin
        with suppress(BrokenPipeError):
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        return float(str(self.heard("seconds")["seconds"]))

    def heard(self, wanted: str) -> dict[str, object]:
        """The next thing it says that has `wanted` in it."""
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith(MARK):
                facts: dict[str, object] = json.loads(line.removeprefix(MARK))
                if "missing" in facts:
                    raise Absent(f"not found: {facts['missing']} (by {self.contender.python})")
                if wanted in facts:
                    return facts
                self.facts.update({name: float(str(value)) for name, value in facts.items()})
        raise Absent(f"it ended: {last_words(self.log)}")

    def peak(self) -> int | None:
        """Bytes: the peaks of resident memory of all its processes, added up; None where the system does not tell."""
        if not Path("/proc").is_dir():
            return None
        return sum(high_water(process) for process in tagged(self.tag))

    def cpu(self) -> float | None:
        """Seconds of CPU that all its processes have used so far; None where the system does not tell."""
        if not Path("/proc").is_dir():
            return None
        return sum(cpu_seconds(process) for process in tagged(self.tag))

    def close(self) -> None:
        """Ends it and all that it started."""
        if self.process.stdin:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        for signal_ in (signal.SIGTERM, signal.SIGKILL):
            for process in tagged(self.tag):
                with suppress(ProcessLookupError):
                    os.kill(int(process.name), signal_)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal_)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        if self.process.stdout:
            self.process.stdout.close()


@contextmanager
def started(contender: Contender, job: Job, folder: Path) -> Iterator[Runner]:
    """The contender, ready for its first round; its processes end with the context."""
    log, tag = folder / f"{contender.name}.log", uuid4().hex
    told = json.dumps(asdict(job) | ({"threads": contender.threads} if contender.threads else {}))
    environment = dict(os.environ) | {TAG: tag, "PYTHONPATH": path_for(contender, folder), "PYTHONWARNINGS": "ignore"}
    command = [contender.python, "-m", f"kinfed.bench.peers.{contender.driver}", told, *contender.arguments]
    with log.open("w") as errors:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder,
                env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise Absent(f"cannot start {contender.python}: {error.strerror}") from error
    runner = Runner(contender, process, log, tag)
    try:
        runner.heard("ready")
        yield runner
    finally:
        runner.close()


def path_for(contender: Contender, folder: Path) -> str:
    """Where its interpreter finds its driver; peers see a copy of `kinfed.bench` and nothing else of ours."""
    if contender.is_own:
        return str(HERE.parents[1])
    place = folder / "path"
    if not place.exists():
        shutil.copytree(HERE, place / "kinfed" / "bench", ignore=shutil.ignore_patterns("__pycache__"))
        (place / "kinfed" / "__init__.py").touch()
    return str(place)


def tagged(tag: str) -> list[Path]:
    """The processes in whose environment the tag is."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{TAG}={tag}".encode() in (process / "environ").read_bytes():
                found.append(process)
    return found


def high_water(process: Path) -> int:
    """The peak of a process's resident memory in bytes; 0 if it is gone."""
    with suppress(OSError):
        for line in (process / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def cpu_seconds(process: Path) -> float:
    """Seconds of CPU a process has used; 0 if it is gone."""
    with suppress(OSError):
        numbers = (process / "stat").read_text().rsplit(")", 1)[1].split()
        return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def last_words(log: Path) -> str:
    """The last line that names an error, else the last one that is not empty, else that there is none."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.split(":")[0]]
    return (errors or lines or ["without a word"])[-1]


def scratch() -> "tempfile.TemporaryDirectory[str]":
    """A folder for rows, copies and logs that goes away."""
    return tempfile.TemporaryDirectory(prefix="kinfed-bench-", ignore_cleanup_errors=True)
