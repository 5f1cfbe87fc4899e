"""A user's own model and method on the nodes: what stands in the working folder travels with the app."""

import shutil
from importlib.util import find_spec
from pathlib import Path

from kinfed.config import Config


def own_modules(config: Config) -> list[str]:
    """The top modules of what the config names as package.module:name."""
    named = [name for name in (config.model, config.method) if ":" in name]
    return list(dict.fromkeys(name.partition(":")[0].split(".")[0] for name in named))


def take_along(config: Config, folder: Path) -> list[str]:
    """Copies the code of modules in the working folder into the app's; gives patterns of what was copied."""
    places = [place for place in map(place_of, own_modules(config)) if place]
    for place in places:
        for file in list(place.rglob("*.py")) if place.is_dir() else [place]:
            target = folder / file.relative_to(place.parent)
            if target.resolve() != file.resolve():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target)
    return [f"{place.name}/**/*.py" if place.is_dir() else place.name for place in places]


def place_of(module: str) -> Path | None:
    """The file or folder of a module in the working folder; None where it is installed elsewhere."""
    spec = find_spec(module)
    inside = list(spec.submodule_search_locations or ()) if spec else []
    found = Path(inside[0]) if inside else Path(spec.origin) if spec and spec.origin else None
    return found if found and found.resolve().parent == Path.cwd().resolve() else None
