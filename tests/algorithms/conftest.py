import pytest

from tests.algorithms.registry import METHODS, make


@pytest.fixture(params=METHODS)
def method(request):
    """Every registered method, ready for the tiny population."""
    return make(request.param)
