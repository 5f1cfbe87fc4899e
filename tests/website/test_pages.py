"""The code on the pages works, and so do the commands: `python -m website.sessions PAGE` renews what they say."""

import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest
import typer.main
from typer.testing import CliRunner

from kinfed.cli import app
from kinfed.cli.options import read_words
from kinfed.config import DEMO, read_toml
from kinfed.sweeps import Definition, Space
from website.sessions import blocks_of, replayed

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = ("tutorial.md", "own-data.md", "own-model.md", "own-method.md", "own-partition.md", "own-encoder.md")
QUICK = (*(f"methods.flt.signature.pretraining.{key}=1" for key in ("epochs", "least_steps")),)
FENCED = re.compile(r"```(sh|console)\n(.*?)```", re.DOTALL)


def quickly(command: str) -> str:
    """Runs a command for few rounds in this process, and without its pipes; others in a shell."""
    first, *rest = re.split(r" *(?:[|;>]) *", command)
    program, *words = shlex.split(first)
    if program != "kinfed":
        return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout
    if words[0] == "report":  # draws for half a minute; tests/report has it
        return ""
    trained = words[0] in ("run", "compare")
    rounds = "rounds=11" if "late" in first else "rounds=2"  # late clients join in round 10
    done = CliRunner().invoke(app, [*words, *((rounds, *QUICK) if trained else ())])
    fails = any("exit code" in word for word in rest)
    assert done.exit_code == (2 if fails else 0), command
    return f"{done.output}exit code 2\n" if fails else ""


@pytest.mark.parametrize("name", RUN)
def test_the_code_on_a_page_works(name, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    blocks = [block for block in blocks_of((ROOT / "docs" / name).read_text()) if "kill -INT" not in block.text]
    now = replayed(blocks, quickly)
    assert len(blocks) > 2
    for before, after in zip(blocks, now, strict=True):
        if before.kind == "text" or all("exit code" in command for command in before.commands or [""]):
            assert without_numbers(before.text) == without_numbers(after.text)


def without_numbers(text: str) -> str:
    """The text with one 0 for every number, or list of numbers: an encoder of one epoch finds no kin."""
    return re.sub(r"\d+(, \d+)*", "0", text)


def commands() -> list[tuple[str, str]]:
    """Page and words of every command in a fenced block of the docs."""
    blocks = [(path.name, kind, block) for path in PAGES for kind, block in FENCED.findall(path.read_text())]
    lines = [(name, kind, line) for name, kind, block in blocks for line in block.splitlines()]
    typed = [(name, line.removeprefix("$ ")) for name, kind, line in lines if kind == "sh" or line.startswith("$ ")]
    return [(name, re.split(r" *[|;&]", line)[0]) for name, line in typed if line.startswith("kinfed ")]


@pytest.mark.parametrize(("name", "line"), commands())
def test_every_command_in_the_docs_is_understood(name, line, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    cluster = typer.main.get_command(app)
    assert isinstance(cluster, click.Group)
    _, word, *rest = shlex.split(line, comments=True)
    if word.startswith("-"):
        return
    given = cluster.commands[word].make_context(word, rest).params
    is_run = name in RUN or "my_metrics:" in line  # with the files of its page
    settings = given.get("settings") if not is_run else None
    if word == "sweep" and settings:
        assert Definition(Space(read_toml(DEMO), tuple(settings)), draws=given["random"]).configs
    elif settings and not any(".toml" in text and not Path(text).exists() for text in settings):
        read_words(settings, {})


def inline_settings(name: str) -> list[str]:
    """What a page has in line as `kinfed run key=value …`, or as `key=value` alone."""
    spans = re.findall(r"`([^`\n]+)`", (ROOT / "docs" / name).read_text())
    words = [span.removeprefix("kinfed run ") for span in spans]
    return [span for span in words if re.match(r"[a-z_.]+=\S", span) and ":" not in span]


@pytest.mark.parametrize("settings", inline_settings("coming-from.md"))
def test_settings_for_those_who_come_from_elsewhere_are_valid(settings):
    read_words([word for word in settings.split(" --")[0].split(" ") if "=" in word], {})
