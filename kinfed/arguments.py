"""What was typed on the command line, as the values that commands want."""

from pathlib import Path
from typing import TYPE_CHECKING

from kinfed.errors import ConfigError

if TYPE_CHECKING:
    from kinfed.config import Config
    from kinfed.deployment import Plan


def configured(settings: list[str] | None, options: dict[str, object]) -> "Config":
    """The config of the file (none: the demo's), the settings and the options, each over the one before."""
    from kinfed.config import DEMO, load_config

    first, *rest = settings or [""]
    is_file = bool(first) and "=" not in first
    if is_file and any("=" not in text for text in rest):
        raise ConfigError(f"wanted one CONFIG.toml and then key=value, got '{' '.join(settings or [])}'")
    given = {key: value for key, value in options.items() if value is not None}
    return load_config(Path(first) if is_file else DEMO, rest if is_file else settings or [], given)


def absolute(folder: Path | None) -> str | None:
    """A path that still holds when the run is resumed from elsewhere."""
    return None if folder is None else str(folder.expanduser().absolute())


def names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def numbers(text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(name) for name in names(text) or []]
    except ValueError:
        raise ConfigError(f"--seeds: wanted whole numbers as in 0,1,2, got '{text}'") from None


def own_plan(shape: str | None, classes: int | None, clients: int | None) -> "Plan | None":
    """The plan of a federation whose nodes bring their own rows; None if nothing was typed."""
    from kinfed.deployment import Plan

    if shape is None and classes is None and clients is None:
        return None
    if shape is None or classes is None or clients is None:
        raise ConfigError("where nodes bring their own rows, all of --shape, --classes and --clients are needed")
    try:
        sizes = tuple(int(size) for size in shape.split(","))
    except ValueError:
        raise ConfigError(f"--shape: wanted whole numbers as in 3,32,32, got '{shape}'") from None
    return Plan(clients, sizes, classes, dtype="uint8" if len(sizes) == 3 else "float32", wait_for=clients)


def pairs(texts: list[str]) -> dict[str, str]:
    """name=value options as a dict."""
    for text in texts:
        if "=" not in text:
            raise ConfigError(f"--peer-python: wanted name=/path/to/python, got '{text}'")
    return dict(text.split("=", 1) for text in texts)
