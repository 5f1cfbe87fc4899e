"""What can be named in a config, each with one line."""

from kinfed.data import DATASETS, PARTITIONS, SHIFTS
from kinfed.engines import ENGINES
from kinfed.methods import METHODS
from kinfed.models import MODELS
from kinfed.registry import first_lines, look_up

FOUND = "the module is in the working folder, or installed"


def listing(kind: str | None = None) -> dict[str, dict[str, str]]:
    """Kind -> name -> one line; of all kinds or of one."""
    kinds = {
        "methods": first_lines(METHODS) | {"MODULE:CLASS": f"A method of your own; {FOUND}."},
        "datasets": dict(DATASETS),
        "partitions": first_lines(PARTITIONS),
        "shifts": first_lines(SHIFTS),
        "models": first_lines(MODELS) | {"MODULE:FUNCTION": f"A network of your own; {FOUND}."},
        "engines": first_lines(ENGINES),
    }
    return kinds if kind is None else {kind: look_up(kind, kinds, "kind of thing to list")}
