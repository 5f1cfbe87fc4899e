"""Imports point down: a module may import its own package and lower layers, nothing else of kinfed."""

import pytest

from benchmarks.house import House, Module, upward

HOUSE = House()


@pytest.mark.parametrize("module", HOUSE.modules, ids=lambda module: module.short)
def test_imports_point_down(module: Module):
    assert upward(module) == []


def test_methods_are_written_for_one_client():
    for module in HOUSE.modules:
        assert module.place != "methods" or "vmap" not in module.text, module.short


def test_no_modules_import_each_other():
    assert HOUSE.cycles() == []
