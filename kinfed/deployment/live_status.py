"""How a deployed run is getting on: who is connected, which round, what went wrong; written by its server, for anybody.

The server writes `status.json` into the run folder whenever something changes, and every few seconds. `kinfed deploy
status` shows it in a terminal or as a page.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil

from kinfed.checks import within
from kinfed.deployment.plan import Plan
from kinfed.engines.flower import DeployedFederation
from kinfed.engines.flower.network_federation import now_text
from kinfed.errors import CheckpointError, ConfigError, FileError
from kinfed.methods import title_of
from kinfed.progress import as_html, as_text
from kinfed.runs.logs import STATUS, whole_lines, write_text

EVERY = 5.0  # seconds between two writes where nothing changed
WAITING, RUNNING, ENDED, FAILED, GONE = "waiting for clients", "running", "ended", "failed", "stopped"
Clock = Callable[[], float]
TextTable = list[list[str]]  # the first line is the header


@dataclass(frozen=True)
class ClientStatus:
    """One client, as its server sees it."""

    client: int
    name: str
    connected: bool
    train: int  # samples
    test: int
    missed: int  # tasks in a row without a reply
    problem: str = ""  # the last one, where it has not replied since


@dataclass(frozen=True)
class ProblemStatus:
    """What went wrong with a node, and when."""

    time: str
    node: str
    text: str


@dataclass(frozen=True)
class RunStatus:
    """A run at one moment."""

    state: str
    method: str
    rounds: int  # planned
    round: int  # that is going on, from 1; 0: none yet
    wanted: int  # clients that the server waits for
    started: str
    updated: str
    pid: int
    born: float  # when that process was started
    task: str = ""
    asked: int = 0  # clients, for that task
    replied: int = 0
    clients: tuple[ClientStatus, ...] = ()
    problems: tuple[ProblemStatus, ...] = ()
    error: str = ""  # why the run failed
    run_config: str = ""  # what `--run-config` set beside the folder

    @property
    def is_over(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in (ENDED, FAILED, GONE)

    @property
    def connected(self) -> int:
        """How many clients are connected."""
        return sum(client.connected for client in self.clients)


@dataclass
class StatusWriter:
    """Writes the status of a run whenever it has changed."""

    folder: Path
    method: str
    rounds: int
    plan: Plan
    run_config: str = ""  # what `--run-config` set beside the folder
    clock: Clock = time.monotonic
    started: str = field(default_factory=now_text)
    written: tuple[float, object] = (float("-inf"), None)  # when, and what

    @contextmanager
    def watch(self, fed: DeployedFederation) -> Iterator[None]:
        """Inside it the status follows the federation; how the run ends is its last one."""
        fed.on_change = lambda: self.update(fed)
        self.update(fed)
        try:
            yield
        except BaseException as error:
            self.update(fed, FAILED, " ".join(str(error).split()) or type(error).__name__)
            raise
        self.update(fed, ENDED)

    def update(self, fed: DeployedFederation, state: str = "", error: str = "") -> None:
        """Writes the status if it differs from the last one, or that is old; a full disk ends no run."""
        status = self.collect(fed, state or (RUNNING if fed.tasks else WAITING), error)
        content, now = asdict(status) | {"updated": ""}, self.clock()
        if content != self.written[1] or now - self.written[0] > EVERY:
            self.written = now, content
            with suppress(FileError):
                write_text(self.folder / STATUS, json.dumps(asdict(status), indent=1, ensure_ascii=False) + "\n")

    def collect(self, fed: DeployedFederation, state: str, error: str) -> RunStatus:
        """The status now."""
        clients = tuple(
            ClientStatus(
                client, known.name, client in fed.nodes, known.train, known.test, fed.misses.get(client, 0),
                fed.failing.get(known.name, ""),
            )
            for client, known in sorted(fed.roster.items())
        )  # fmt: skip
        task, asked, replied = fed.task if state == RUNNING else ("", 0, 0)
        return RunStatus(
            state, self.method, self.rounds, fed.round + 1 if fed.has_begun else 0, self.plan.wait_for, self.started,
            now_text(), os.getpid(), psutil.Process().create_time(), task, asked, replied, clients,
            tuple(ProblemStatus(*problem) for problem in fed.problems[-20:]), error,
            self.run_config,
        )  # fmt: skip


def read_status(run: Path) -> RunStatus:
    """The status in a run folder; CheckpointError where there is none."""
    path = run / STATUS
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        clients = tuple(ClientStatus(**client) for client in table.pop("clients"))
        problems = tuple(ProblemStatus(**problem) for problem in table.pop("problems"))
        status = RunStatus(**table, clients=clients, problems=problems)
    except FileNotFoundError:
        raise CheckpointError(
            f"no {STATUS} in {run}: wanted the folder of a deployed run (`out` of --run-config, runs/first by default, "
            "beside SuperExec), which its server writes when it has started"
        ) from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}): its server writes it anew") from None
    return status if status.is_over or is_alive(status) else replace(status, state=GONE)


def is_alive(status: RunStatus) -> bool:
    """Whether the run's server is there, or is on another machine or in a container and wrote a while ago."""
    with suppress(psutil.Error):
        process = psutil.Process(status.pid)
        if abs(process.create_time() - status.born) < 2:
            return bool(process.status() != psutil.STATUS_ZOMBIE)  # SuperExec does not wait for those that it started
    age = datetime.fromisoformat(now_text()) - datetime.fromisoformat(status.updated)
    return age.total_seconds() < 4 * EVERY


def read_metric(run: Path) -> str:
    """The main metric of the last round that was evaluated, in words; empty where none was."""
    header, *lines = [line.rstrip("\n").split(",") for line in whole_lines(run / "rounds.csv")] or [[]]
    done = [line for line in lines if len(line) == len(header) and line[1:2] != [""]]
    return f"{header[1]} {float(done[-1][1]):.4g} after round {done[-1][0]}" if done else ""


def summarise_status(status: RunStatus, metric: str = "") -> list[str]:
    """A run in a few lines: its state, the round, the task, how many are connected."""
    method, now = title_of(status.method), f"{status.state}, round {status.round} of {status.rounds}"
    lines = [f"{method}: {now}, {metric}" if metric else f"{method}: {now}"]
    if status.task and not status.is_over:
        lines.append(f"'{status.task}': {status.replied} of {status.asked} clients replied")
    waits = f", {status.wanted} wanted" if status.state == WAITING else ""
    lines.append(f"{status.connected} of {len(status.clients)} clients connected{waits}; as of {status.updated}")
    if status.state == GONE:
        lines.append("its server is gone: `flwr run` with the same --run-config resumes it from its checkpoint")
    return lines + ([f"error: {status.error}"] if status.error else [])


def list_clients(status: RunStatus) -> TextTable:
    """The clients as a table."""
    lines = [
        [one.name, "yes" if one.connected else "no", str(one.train), str(one.test), str(one.missed), one.problem or "–"]
        for one in status.clients
    ]
    return [["client", "connected", "train", "test", "tasks missed", "last error"], *lines]


def list_problems(status: RunStatus) -> TextTable:
    """What went wrong, the latest first."""
    return [["time", "node", "error"], *([one.time, one.node, one.text] for one in reversed(status.problems))]


def show_status(run: Path) -> str:
    """The status as text for a terminal."""
    status = read_status(run)
    parts = ["\n".join(summarise_status(status, read_metric(run)))]
    parts += [as_text(list_clients(status))] if status.clients else []
    parts += [as_text(list_problems(status))] if status.problems else []
    return "\n\n".join(parts)


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title><style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem }}
div {{ overflow-x: auto }} table {{ border-collapse: collapse }}
th, td {{ text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8885 }}
</style></head><body><h1>{title}</h1>{body}</body></html>
"""


def make_page(run: Path) -> str:
    """The status as a page that loads itself anew every five seconds."""
    status = read_status(run)
    lines = "".join(f"<p>{escape(line)}</p>" for line in summarise_status(status, read_metric(run)))
    tables = [list_clients(status), *([list_problems(status)] if status.problems else [])]
    body = lines + "".join(f"<div>{as_html(table)}</div>" for table in tables)
    return PAGE.format(title=escape(f"{title_of(status.method)}: {status.state}"), body=body)


def make_server(run: Path, port: int) -> ThreadingHTTPServer:
    """A server of that page on loopback; port 0 is any that is free."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/":
                return self.send_error(404)
            try:
                code, text = 200, make_page(run)
            except CheckpointError as error:
                code, text = 503, PAGE.format(title="no status yet", body=f"<p>{escape(str(error))}</p>")
            self.send_response(code)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *values: object) -> None:
            """Writes nothing."""

    within(0, 65535, port=port)
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise ConfigError(f"port {port} of 127.0.0.1 cannot be served ({error.strerror}): choose another") from None
