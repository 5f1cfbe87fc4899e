"""The page on security says of every method what leaves a client, and whether sums and private means are possible."""

import re
from pathlib import Path

import pytest

from kinfed.capabilities import HidesClients, summed_tasks_of
from kinfed.methods import METHODS
from tests.methods.registry import make

PAGE = (Path(__file__).parents[1] / "docs" / "security.md").read_text(encoding="utf-8")


def rows():
    """Method -> the cells behind its name in the page's table."""
    table = PAGE.split("| method | leaves a client |")[1].split("\n\n")[0]
    found = {}
    for line in table.splitlines()[2:]:
        first, *cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        found |= {name: [cell.strip(" |") for cell in cells] for name in re.findall(r"`(\w+)`", first)}
    return found


def test_every_method_has_a_row_and_every_row_is_a_method():
    assert rows().keys() == METHODS.keys()


@pytest.mark.parametrize("name", METHODS)
def test_a_row_says_what_leaves_what_is_learnt_and_what_can_be_hidden(name):
    leaves, learns, sums, means = rows()[name]
    method = make(name)
    assert len(leaves) > 5 and len(learns) > 5
    assert sums == ("yes" if summed_tasks_of(method) else "no")
    hides = isinstance(method, HidesClients) and method.hides_clients and bool(method.summed_tasks)
    assert means == ("yes" if hides else "no")
