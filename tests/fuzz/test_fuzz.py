"""No malformed input ends in a traceback, a hang or silence; `python -m tests.fuzz.cases 2400 0` names what fails."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinfed.errors import ConfigError
from tests.fuzz.cases import Case, draw_cases, judge, made


@pytest.fixture(scope="module", autouse=True)
def clean() -> Iterator[None]:
    yield
    shutil.rmtree(made("folder"), ignore_errors=True)
    made.cache_clear()


def try_all(cases: Iterator[Case]) -> Counter[str]:
    outcomes = [judge(case) for case in cases]
    bad = [f"{outcome.verdict}: {outcome.case.name}\n{outcome.detail}" for outcome in outcomes if outcome.is_bad]
    assert not bad, "\n".join(bad[:5])
    return Counter(outcome.verdict for outcome in outcomes)


def test_a_few_hundred_malformed_inputs_are_refused_in_one_line_or_are_sound():
    assert try_all(draw_cases(160, seed=0, dear=False))["refused"] > 100


@pytest.mark.on_demand
def test_thousands_of_malformed_inputs_are_refused_in_one_line_or_are_sound():
    assert sum(try_all(draw_cases(2400, seed=1)).values()) >= 2400


def fail(folder: Path) -> None:
    raise ZeroDivisionError


def refuse(folder: Path) -> None:
    raise ConfigError("no")


def test_the_fuzzer_sees_what_it_looks_for():
    assert judge(Case("an error", fail)).verdict == "traceback"
    assert judge(Case("silence", lambda folder: None, must_refuse=True)).verdict == "silent"
    assert judge(Case("a refusal", refuse, must_refuse=True)).verdict == "refused"
    assert judge(Case("sound", lambda folder: None)).verdict == "accepted"
