"""What runs cost a machine that they share."""

import json
from pathlib import Path

import pytest

from kinfed.recipes.costs import share_machine


def write_events(folder: Path, *events: tuple[int, str]) -> None:
    folder.mkdir(parents=True)
    lines = [json.dumps({"time": f"2026-01-01T00:00:{at:02}.500+00:00", "event": kind}) for at, kind in events]
    (folder / "events.jsonl").write_text("\n".join([*lines, ""]))


def test_runs_that_go_on_at_once_share_the_time(tmp_path):
    write_events(tmp_path / "a", (0, "started"), (30, "ended"))
    write_events(tmp_path / "b", (10, "started"), (40, "ended"))
    assert share_machine(tmp_path) == {"a": 10 + 20 / 2, "b": 20 / 2 + 10}


def test_a_run_takes_nothing_between_its_interruption_and_its_resumption(tmp_path):
    write_events(tmp_path / "a", (0, "started"), (5, "interrupted"), (20, "resumed"), (26, "failed"))
    assert share_machine(tmp_path) == {"a": 5 + 6}


def test_a_killed_run_took_time_until_its_last_event(tmp_path):
    write_events(tmp_path / "a", (0, "started"), (4, "warning"), (30, "resumed"), (33, "ended"))
    write_events(tmp_path / "b", (40, "started"), (47, "warning"))
    assert share_machine(tmp_path) == {"a": 4 + 3, "b": 7}


def test_a_run_that_was_killed_at_once_takes_nothing_from_the_others(tmp_path):
    write_events(tmp_path / "a", (0, "started"))
    write_events(tmp_path / "b", (0, "started"), (9, "ended"), (20, "warning"))
    assert share_machine(tmp_path) == {"b": 9}


@pytest.mark.parametrize("line", ["", "no JSON", "[]", '{"time": 3, "event": "ended"}', '{"event": "ended"}'])
def test_a_line_that_no_run_wrote_is_left_out(tmp_path, line):
    write_events(tmp_path / "a", (0, "started"), (30, "ended"))
    whole = (tmp_path / "a" / "events.jsonl").read_text()
    (tmp_path / "a" / "events.jsonl").write_text(f"{line}\n{whole}")
    assert share_machine(tmp_path) == {"a": 30}


def test_a_folder_without_runs_has_no_shares(tmp_path):
    (tmp_path / "empty").mkdir()
    assert share_machine(tmp_path / "none") == share_machine(tmp_path) == {}
