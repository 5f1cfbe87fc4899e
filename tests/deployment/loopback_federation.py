"""A whole federation of Flower's processes on loopback, in a network of its own where the system allows one."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = 900.0  # seconds before a test gives up; a slow and busy machine needs minutes for a step
LOOPBACK_UP = """
import fcntl, signal, socket, struct
SIOCGIFFLAGS, SIOCSIFFLAGS, UP = 0x8913, 0x8914, 1
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
    name, flags = struct.unpack("16sh", fcntl.ioctl(one, SIOCGIFFLAGS, struct.pack("16sh", b"lo", 0)))
    fcntl.ioctl(one, SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | UP))
print("ready", flush=True)
signal.pause()
"""
LOCAL = ("00000000", "0100007F", "0" * 32, "0" * 24 + "01000000", "0" * 16 + "FFFF00000100007F")  # as /proc writes them


@dataclass(frozen=True)
class NetworkNamespace:
    """A network that has nothing but loopback; `holder` is a process in it, 0: this machine's own network."""

    holder: int

    @property
    def entrance(self) -> list[str]:
        """What a command begins with to run there."""
        if not self.holder:
            return []
        return ["nsenter", "--target", str(self.holder), "--user", "--net", "--preserve-credentials"]

    def attempts(self) -> int:
        """How often a process there tried to reach anything else, as the kernel counted."""
        lines = Path(f"/proc/{self.holder}/net/snmp").read_text().splitlines()
        names, values = (line.split() for line in lines if line.startswith("Ip:"))
        six = Path(f"/proc/{self.holder}/net/snmp6").read_text().split()
        return int(values[names.index("OutNoRoutes")]) + int(six[six.index("Ip6OutNoRoutes") + 1])


@contextmanager
def isolate_network() -> Iterator[NetworkNamespace]:
    """A network of its own; where that is not permitted, this machine's."""
    command = ["unshare", "--map-root-user", "--net", sys.executable, "-c", LOOPBACK_UP]
    try:
        holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except FileNotFoundError:
        yield NetworkNamespace(0)
        return
    with holder:
        is_ready = holder.stdout is not None and holder.stdout.readline() == "ready\n"
        try:
            yield NetworkNamespace(holder.pid if is_ready else 0)
        finally:
            holder.kill()


@dataclass(frozen=True)
class LoopbackFederation:
    """The app folders of a federation, and what can be done to its processes; `folder` is the one they live in."""

    folder: Path
    network: NetworkNamespace

    def call(self, *command: str, seconds: float = PATIENCE) -> "subprocess.CompletedProcess[str]":
        """A command that has come to its end, in the folder.

        It writes to a file: SuperExec lives until its parent is gone, and a parent is not while its pipe is read.
        """
        with tempfile.TemporaryFile("w+") as output:
            ended = subprocess.run(
                [*self.network.entrance, *command], cwd=self.folder, env=self.environment(), timeout=seconds,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            output.seek(0)
            return subprocess.CompletedProcess(command, ended.returncode, output.read())

    def script(self, *words: str) -> None:
        """A step of try.sh."""
        result = self.call("./try.sh", *words)
        assert result.returncode == 0, f"{words}: {result.stdout}\n{self.logs()}"

    def environment(self) -> dict[str, str]:
        """That of a user in an activated environment, with this kinfed before an installed one."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        mine = {"PATH": path, "PYTHONPATH": str(ROOT), "FLWR_HOME": str(self.folder / ".flower")}
        return kept | mine | offline(self.folder)

    def address(self) -> str:
        return f"127.0.0.1:{(self.folder / '.flower' / 'port').read_text().strip()}"

    def has(self, run: str, file: str) -> bool:
        """Whether a run has written this."""
        return (self.folder / "runs" / run / file).exists()

    def free_port(self) -> str:
        with socket.create_server(("127.0.0.1", 0)) as one:
            return str(one.getsockname()[1])

    def kill(self, name: str) -> None:
        """Kills a process and all that it started, and waits until they are gone."""
        group = int((self.folder / ".flower" / "pid" / name).read_text())
        os.killpg(group, signal.SIGKILL)
        self.until(lambda: not members(group), f"the end of {name}")

    def processes(self, part: str = "") -> set[int]:
        """Those that belong to the federation and have this in their command line."""
        return {pid for pid, line in command_lines() if part in line and is_in(pid, self.folder)}

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Waits for something; the failure has the logs of all processes."""
        end = time.monotonic() + PATIENCE
        while not is_so():
            assert time.monotonic() < end, f"{what} did not happen\n{self.logs()}"
            time.sleep(0.3)

    def logs(self) -> str:
        paths = sorted((self.folder / ".flower" / "log").glob("*.log"))
        return "\n".join(f"== {path.name}\n{path.read_text()[-1500:]}" for path in paths)


def open_files(pid: int) -> set[str]:
    """What a process has open; none if it has ended."""
    found = set()
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                found.add(os.readlink(link))
    return found


def offline(folder: Path) -> dict[str, str]:
    """The switches in offline.sh."""
    lines = (folder / "offline.sh").read_text().splitlines()
    return dict(line.removeprefix("export ").split("=") for line in lines if line.startswith("export "))


def command_lines() -> Iterator[tuple[int, str]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield int(path.parent.name), path.read_text().replace("\0", " ")
        except (OSError, UnicodeDecodeError):
            continue


def members(group: int) -> list[str]:
    """The states of processes of a group, but for those that have ended and wait to be noticed."""
    states = [(row[0], int(row[2])) for row in map(status, Path("/proc").glob("[0-9]*/stat")) if row]
    return [state for state, its in states if its == group and state != "Z"]


def status(path: Path) -> list[str]:
    """What follows the name of a process in its stat: its state, its parent, its group."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return []  # it has ended


def is_in(pid: int, folder: Path) -> bool:
    """Whether a process works in this folder."""
    try:
        return Path(f"/proc/{pid}/cwd").resolve() == folder.resolve()
    except OSError:
        return False


def foreign_peers(pids: set[int]) -> set[str]:
    """The addresses beyond loopback that sockets of these processes have at this moment."""
    found = set()
    for pid in pids:
        mine = open_files(pid)
        try:
            tables = [Path(f"/proc/{pid}/net/{kind}").read_text() for kind in ("tcp", "tcp6", "udp", "udp6")]
        except OSError:
            continue  # it has ended
        for row in (line.split() for table in tables for line in table.splitlines()[1:]):
            peer = row[2].rpartition(":")[0]
            if f"socket:[{row[9]}]" in mine and peer not in LOCAL:
                found.add(peer)
    return found
