"""What a wheel is made of: every file of the package that is no module must be named as its data."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "kinfed"


def test_all_files_of_the_package_are_packed():
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["kinfed"]
    packed = {path for pattern in named for path in PACKAGE.glob(pattern)}
    there = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path for path in there if path.suffix != ".py"} <= packed
    assert PACKAGE / "py.typed" in packed


def test_all_folders_with_modules_are_packages():
    folders = {path.parent for path in PACKAGE.rglob("*.py") if "template" not in path.parts}
    assert all((folder / "__init__.py").exists() for folder in folders)


def pins_of(name: str) -> dict[str, str]:
    """Package -> version of every line NAME==VERSION."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", (ROOT / name).read_text(), re.M)
    return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in found}


def test_the_lock_pins_what_the_constraints_pin_and_has_a_hash_for_each():
    lock, constraints = pins_of("requirements.lock"), pins_of("constraints.txt")
    assert lock["torch"] == constraints["torch"] and len(lock) > 100
    differ = {
        name: (version, lock[name]) for name, version in constraints.items() if lock.get(name, version) != version
    }
    assert not differ, "renew it with: make lock"
    blocks = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text())
    assert all("--hash=sha256:" in block for block in blocks if "==" in block and not block.startswith("#"))


def test_no_lower_bound_is_below_a_known_hole():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    for safe in ("pillow>=12.1.1", "scikit-learn>=1.5", "filelock>=3.20.3", "torch>=2.8,<3", "datasets>=4"):
        assert safe in wanted and not [
            each for each in wanted if each != safe and each.startswith(safe.split(">")[0] + ">")
        ]


def test_datasets_of_the_hub_are_pinned_by_commit():
    from kinfed.data.hub import SOURCES

    pinned = {name for name, source in SOURCES.items() if re.fullmatch("[0-9a-f]{40}", source.revision or "")}
    assert set(SOURCES) - pinned == {"kmnist", "emnist_balanced"}  # their commits are not known yet: fetching warns
