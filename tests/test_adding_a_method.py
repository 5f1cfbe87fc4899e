"""docs/adding-a-method.md shows real code, and its commands work."""

import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kinfed.cli import app
from kinfed.config import read

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "adding-a-method.md").read_text()
SHOWN = re.findall(r"<!-- from (\S+?)(, whole)? -->\n```python\n(.*?)\n```", PAGE, re.DOTALL)
COMMANDS = re.search(r"```sh\n(.*?)```", PAGE, re.DOTALL)[1].splitlines()


def test_every_python_block_says_where_it_is_from():
    assert len(SHOWN) == PAGE.count("```python") > 3


@pytest.mark.parametrize(("path", "whole", "code"), SHOWN)
def test_the_code_shown_is_the_code(path, whole, code):
    real = (ROOT / path).read_text()
    assert real == code + "\n" if whole else f"{code}\n" in real


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_work(command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    program, *words = command.split()
    assert program == "kinfed"
    result = CliRunner().invoke(app, [*words, "rounds=1", "-q"])
    assert result.exit_code == 0, result.output


def test_the_config_shown_can_be_read():
    shown = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)[1]
    assert read(tomllib.loads(shown)).settings_of("fedper") == {"personal_layers": 1}


def test_every_file_that_the_page_names_is_there():
    named = set(re.findall(r"`((?:kinfed|tests)/[\w/]+\.\w+)`", PAGE))
    named |= {f"kinfed/methods/{name}" for name in re.findall(r"`(\w+\.py)`", PAGE)}
    assert len(named) > 12 and all((ROOT / name).exists() for name in named)
    assert all((ROOT / "docs" / link).exists() for link in re.findall(r"\]\((?!http)([^)#]+)", PAGE))
