"""What a wheel is made of: every file of the package that is no module must be named as its data."""

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
