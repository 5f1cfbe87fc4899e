"""What a wheel is made of: every file of the package that is no module must be named as its data."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
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


def execute(*words: str | Path, folder: Path) -> str:
    """What a command prints in this folder, without this checkout on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_wheel(folder: Path) -> Path:
    """The wheel of the sdist of a copy of this checkout, as a release is made."""
    source = folder / "source"
    shutil.copytree(PACKAGE, source / "kinfed", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    execute(sys.executable, "-c", "from setuptools.build_meta import build_sdist; build_sdist('..')", folder=source)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-index", "--no-deps")
    execute(*pip, "--no-build-isolation", next(folder.glob("kinfed-*.tar.gz")), folder=folder)
    return next(folder.glob("kinfed-*.whl"))


def install(wheel: Path, folder: Path) -> Path:
    """The programs of a new environment that has this wheel, and what is installed here besides."""
    execute(sys.executable, "-m", "venv", "--without-pip", folder, folder=wheel.parent)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "--quiet")
    execute(*pip, "--no-index", "--no-deps", wheel, folder=wheel.parent)
    there = execute(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder).strip()
    here = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    Path(there, "others.pth").write_text(
        "\n".join(sorted(here))
    )  # after its own packages; their .pth files do not count
    return folder / "bin"


def test_a_release_installs_into_a_new_environment_and_runs(tmp_path: Path):
    wheel = build_wheel(tmp_path)
    packed = set(zipfile.ZipFile(wheel).namelist())
    there = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path.relative_to(ROOT).as_posix() for path in there} <= packed
    programs = install(wheel, tmp_path / "environment")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert execute(programs / "kinfed", "--version", folder=tmp_path) == f"kinfed {version}\n"
    code = "import kinfed; print(kinfed.__file__); kinfed.run('fedavg', 'digits', rounds=1, out='run', quiet=True)"
    used = execute(programs / "python", "-c", code, folder=tmp_path)
    assert Path(used.splitlines()[0]).is_relative_to(tmp_path / "environment")
    assert (tmp_path / "run" / "summary.json").is_file()


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
    for safe in ("pillow>=12.1.1", "scikit-learn>=1.6", "filelock>=3.20.3", "torch>=2.8,<3", "datasets>=4"):
        assert safe in wanted and not [
            each for each in wanted if each != safe and each.startswith(safe.split(">")[0] + ">")
        ]


def test_datasets_of_the_hub_are_pinned_by_commit():
    from kinfed.data.hub import SOURCES

    pinned = {name for name, source in SOURCES.items() if re.fullmatch("[0-9a-f]{40}", source.revision or "")}
    assert set(SOURCES) - pinned == {"kmnist", "emnist_balanced"}  # their commits are not known yet: fetching warns
