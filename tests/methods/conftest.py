import pytest

from tests.methods.registry import CASES, make


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in CASES], scope="module")
def named(request) -> str:
    """The name of every registered method; one process runs all tests of a module with it."""
    return request.param


@pytest.fixture
def method(named):
    """Every registered method, ready for the tiny population."""
    return make(named)
