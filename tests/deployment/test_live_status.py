"""The status of a deployed run: what its server writes, what a terminal and a page show."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from urllib.request import urlopen

import psutil
import pytest

pytest.importorskip("flwr")

from flwr.app import Error, Message
from typer.testing import CliRunner

from kinfed.cli import app
from kinfed.config import load_config
from kinfed.deployment import live_status
from kinfed.deployment.live_status import STATUS, make_server, read_status, show_status
from kinfed.engines.flower.transport import read_config
from kinfed.errors import ConfigError, NetworkError
from tests.deployment.test_apps import PLAN, federation, folders, serve  # noqa: F401

CONFIG = load_config(None, ["method=fedavg", "rounds=2", "fraction=1.0", "engine.timeout=5"])


def shown(run) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["deploy", "status", str(run)])
    return result.exit_code, result.output


def test_a_run_says_who_is_connected_and_how_far_it_is(folders):  # noqa: F811
    seen = []

    def look(request, reply):
        if read_config(request).get("task") == "train":
            seen.append(read_status(folders / "run"))
        return [reply]

    serve(federation(folders, CONFIG, tamper=look), folders / "run", CONFIG)
    first, last = seen[0], seen[-1]
    assert (first.state, first.round, first.rounds, first.connected) == ("running", 1, 2, 6) and last.round == 2
    assert [client.name for client in first.clients] == [f"clinic-{i}" for i in range(6)]
    assert (last.task, last.asked) == ("train", 6)
    code, text = shown(folders / "run")
    assert code == 0 and text.startswith("FedAvg: ended, round 2 of 2, accuracy ") and "after round 2" in text
    assert "6 of 6 clients connected" in text and "clinic-3" in text


def test_a_run_that_failed_says_why_and_its_exit_code_does(folders):  # noqa: F811
    grid = federation(folders, CONFIG)
    grid.online[105]["data"] = str(folders / "nowhere")
    with pytest.raises(NetworkError):
        serve(grid, folders / "run", CONFIG, replace(PLAN, wait_seconds=0.5))
    code, text = shown(folders / "run")
    assert code == 1 and "FedAvg: failed, round 0 of 2" in text and "error: 5 of 6 clients enrolled" in text
    assert text.count("node 105") == 1 and "cannot take part: its samples cannot be read" in text


def write_status(folder, **changes):
    known = {"state": "running", "method": "flt", "rounds": 3, "round": 1, "wanted": 2, "started": "", "clients": []}
    process = {"updated": "2020-01-01T00:00:00+00:00", "pid": 2**22 + 7, "born": 0.0}
    table = known | process | {"problems": [{"time": "now", "node": "<b>", "text": "a & b"}]}
    (folder / STATUS).write_text(json.dumps(table | changes))


def test_a_server_that_is_gone_is_not_mistaken_for_one_that_runs(tmp_path):
    write_status(tmp_path)
    code, text = shown(tmp_path)
    assert code == 1 and "FLT: stopped" in text and "resumes it" in text
    write_status(tmp_path, updated=live_status.now_text())  # on another machine, a moment ago
    assert read_status(tmp_path).state == "running" and shown(tmp_path)[0] == 0


def test_a_killed_server_that_nobody_waited_for_is_gone_and_one_in_a_container_is_not(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        born, now = psutil.Process(process.pid).create_time(), live_status.now_text()
        write_status(tmp_path, pid=process.pid, born=born)
        assert read_status(tmp_path).state == "running"
        write_status(tmp_path, pid=process.pid, born=born - 1000, updated=now)  # the same number, another process
        assert read_status(tmp_path).state == "running"
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        write_status(tmp_path, pid=process.pid, born=born, updated=now)
        assert read_status(tmp_path).state == "stopped"


def test_a_run_is_running_while_clients_compute_their_signatures(folders):  # noqa: F811
    states = {}

    def look(request, reply):
        states[read_config(request).get("task")] = read_status(folders / "run").state
        return [reply]

    config = load_config(None, ["method=flt", "rounds=1", "fraction=1.0", "engine.timeout=5"])
    serve(federation(folders, config, tamper=look), folders / "run", config)
    assert states[None] == "waiting for clients" and states["compute_signature"] == states["train"] == "running"


def test_a_second_server_of_a_folder_is_refused_at_once_and_leaves_its_status(folders):  # noqa: F811
    seen = []

    def start_another(request, reply):
        if read_config(request).get("task") == "train" and not seen:
            before, other = (folders / "run" / STATUS).read_bytes(), federation(folders, CONFIG)
            with pytest.raises(ConfigError, match="another process is at work on the run"):
                serve(other, folders / "run", CONFIG)
            seen.append((before == (folders / "run" / STATUS).read_bytes(), other.sent))
        return [reply]

    serve(federation(folders, CONFIG, tamper=start_another), folders / "run", CONFIG)
    assert seen == [(True, [])]


def test_a_folder_without_a_status_and_a_damaged_one_are_errors_in_one_line(tmp_path):
    code, text = shown(tmp_path)
    assert code == 2 and "no status.json" in text and len(text.splitlines()) == 1
    (tmp_path / STATUS).write_text("{")
    assert shown(tmp_path)[0] == 2
    write_status(tmp_path, more=1)
    assert shown(tmp_path)[0] == 2


@contextmanager
def serving(run):
    with make_server(run, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_the_page_shows_the_same_and_what_nodes_write_is_no_markup(tmp_path):
    write_status(tmp_path, updated=live_status.now_text())
    with serving(tmp_path) as address, urlopen(address) as reply:
        page = reply.read().decode()
    assert "FLT: running" in page and "&lt;b&gt;" in page and "a &amp; b" in page and "<b>" not in page
    assert 'http-equiv="refresh"' in page and "<b>" in show_status(tmp_path)


def test_a_port_that_is_taken_or_is_none_is_an_error_in_one_line(tmp_path):
    with make_server(tmp_path, 0) as server:
        for port in (server.server_port, 99999, -1):
            result = CliRunner().invoke(app, ["deploy", "status", str(tmp_path), "--serve", str(port)])
            assert result.exit_code == 2 and len(result.output.splitlines()) == 1 and str(port) in result.output


def test_the_last_error_of_a_client_goes_once_it_replies_again(folders):  # noqa: F811
    seen = []

    def fail_once(request, reply):
        config = read_config(request)
        if config.get("task") != "train":
            return [reply]
        if config["client"] == 0:
            seen.append(read_status(folders / "run").clients[2].problem)
        is_first = config["client"] == 2 and config["round"] == 0
        return [Message(Error(0, "out of memory"), reply_to=request) if is_first else reply]

    serve(federation(folders, CONFIG, tamper=fail_once), folders / "run", CONFIG)
    status = read_status(folders / "run")
    assert seen[0] == "" and "failed at 'train'" in status.problems[0].text and status.problems[0].node == "clinic-2"
    assert status.clients[2].problem == "" and status.clients[2].missed == 0
