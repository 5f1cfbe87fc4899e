"""A user's own model and method on the nodes: what stands in the working folder travels with the app."""

import shutil
from importlib.util import find_spec
from pathlib import Path

from kinfed.config import Config
from kinfed.errors import ConfigError


def own_modules(config: Config) -> list[str]:
    """The top modules of what the config names as package.module:name."""
    return list(dict.fromkeys(name.partition(":")[0].split(".")[0] for name in named(config) if ":" in name))


def named(config: Config) -> tuple[str, str]:
    return config.model, config.method


def take_along(config: Config, folder: Path) -> list[str]:
    """Copies the modules that stand in the working folder into the app's; gives patterns of what was copied."""
    patterns = []
    for name in own_modules(config):
        source = place_of(name)
        if source is None:
            continue
        if (folder / source.name).resolve() == source.resolve():
            raise ConfigError(f"the app cannot be written into {folder}, where its module {source.name} is")
        if source.is_dir():
            shutil.rmtree(folder / source.name, ignore_errors=True)
            shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
            patterns.append(f"{source.name}/**/*.py")
        else:
            shutil.copy(source, folder / source.name)
            patterns.append(source.name)
    return patterns


def place_of(module: str) -> Path | None:
    """The file or folder of a module in the working folder; None where it is installed elsewhere."""
    spec = find_spec(module)
    inside = list(spec.submodule_search_locations or ()) if spec else []
    found = Path(inside[0]) if inside else Path(spec.origin) if spec and spec.origin else None
    return found if found and found.resolve().parent == Path.cwd().resolve() else None
