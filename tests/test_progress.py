import logging
from io import StringIO

import pytest
from rich.console import Console

from kinfed.experiment import RoundResult
from kinfed.progress import Bars, forward_log, in_bytes, log_once


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 bytes"), (816, "816 bytes"), (1000, "1 kB"), (52_400, "52 kB"), (1e6, "1.0 MB")]
)
def test_a_few_bytes_are_shown_as_such(count, shown):
    assert in_bytes(count) == shown


@pytest.fixture
def bar():
    """A bar in a wide terminal that nobody sees, and what it shows beside itself."""
    bars = Bars.on(Console(file=StringIO(), force_terminal=True, width=200))
    watcher = bars.watch("flt seed 0")
    return watcher, lambda: bars.progress.tasks[0].fields["rounds"]


def test_what_goes_on_is_shown_before_the_first_round_and_beside_the_rounds_that_are_done(bar):
    watcher, shown = bar
    watcher.message("describe: 25 of 100 clients")
    assert shown() == "describe: 25 of 100 clients"
    watcher.on_start(rounds=40, done=2)
    assert shown() == "2/40"
    watcher.message("train: 320 of 2400 clients")
    assert shown() == "2/40, train: 320 of 2400 clients"


def test_the_end_of_a_round_takes_its_place(bar):
    watcher, shown = bar
    watcher.on_start(rounds=40, done=2)
    watcher.message("train: 320 of 2400 clients")
    watcher.on_round(RoundResult(3, {}, None, None, down=0, up=0, seconds=1.0))
    assert shown() == "3/40"


def test_what_is_logged_twice_is_said_once_but_in_each_run(caplog: pytest.LogCaptureFixture):
    log, heard = logging.getLogger("kinfed"), []
    with log_once():
        for text in ("far from 1", "far from 1", "short"):
            log.warning(text)
            with forward_log(heard.append):
                log.warning(text)
    log.warning("short")
    assert [record.getMessage() for record in caplog.records] == ["far from 1", "short", "short"]
    assert heard == ["far from 1", "far from 1", "short"]
