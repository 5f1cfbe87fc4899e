"""The house stays small: limits on files, names, the contract and lengths, and the rules by which they are measured."""

from pathlib import Path

import pytest

from benchmarks import house
from benchmarks.house import LIMITS, House, measure


def test_the_house_is_within_its_limits():
    measured = measure(House())
    exceeded = {name: measured[name] for name, limit in LIMITS.items() if measured[name] > limit}
    assert not exceeded, "python benchmarks/house.py --offenders shows which"


def write(folder: Path, files: dict[str, str]) -> House:
    """A package of these files."""
    for name, text in files.items():
        path = folder / "kinfed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return House(folder / "kinfed")


def test_participles_are_counted_and_verbs_are_not(tmp_path: Path):
    lines = ["def drawn(): ...", "def _placed(): ...", "def choosing(): ...", "def embed(): ...", "def feed_all(): ..."]
    method = "class A:\n    @property\n    def seated(self): ...\n    def told(self): ...\n    def __added__(self): ..."
    found = write(tmp_path, {"a.py": "\n".join([*lines, method])}).participles()
    assert [said.split()[-1] for said in found] == ["drawn", "_placed", "choosing", "told"]


def test_files_of_the_same_name_are_found_wherever_they_are(tmp_path: Path):
    made = write(tmp_path, {"a/__init__.py": "", "b/__init__.py": "", "a/tables.py": "", "b/tables.py": "", "c.py": ""})
    assert made.duplicates() == ["a/tables.py", "b/tables.py"]


def test_a_body_is_counted_without_docstring_comments_and_blank_lines(tmp_path: Path):
    long = 'def f():\n    """Says\n    much."""\n    # why\n    a = 1\n\n    return (\n        a\n    )\n'
    text = long + '\ndef g():\n    """Nothing."""\n'
    assert write(tmp_path, {"a.py": text}).lengths() == [4]


def test_modules_that_import_each_other_are_a_cycle_unless_one_does_so_later(tmp_path: Path):
    late = "def f():\n    import kinfed.a\n"
    files = {"a.py": "from kinfed.b import x\n", "b.py": "import kinfed.c\n", "c.py": late}
    assert write(tmp_path / "one", files).cycles() == []
    assert write(tmp_path / "two", files | {"c.py": "from kinfed import a\n"}).cycles() == [
        "kinfed.a <-> kinfed.b <-> kinfed.c"
    ]


def test_an_import_that_points_up_is_a_violation_even_inside_a_function(tmp_path: Path):
    files = {
        "params.py": "def f():\n    from kinfed.methods import FedAvg\n",
        "methods/fedavg.py": "import kinfed.params\n",
    }
    assert write(tmp_path, files).layer_violations() == ["params.py imports kinfed.methods.FedAvg"]
    assert write(tmp_path / "more", {"cellar.py": ""}).layer_violations() == ["cellar.py: 'cellar' is in no layer"]


def test_ignores_in_texts_do_not_count(tmp_path: Path):
    text = 'a = 1  # type: ignore[misc]\nb = "# type: ignore"\n'
    assert write(tmp_path, {"a.py": text}).ignores() == ["a.py:1"]


def test_the_table_names_what_exceeds_a_limit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr("sys.argv", ["house.py"])
    small = write(tmp_path, {"params.py": "def f():\n    return 1\n", "errors.py": ""})
    monkeypatch.setattr(house, "House", lambda: small)
    monkeypatch.setitem(LIMITS, "files", 1)
    house.main()
    assert "exceeded" in capsys.readouterr().out.splitlines()[0]
