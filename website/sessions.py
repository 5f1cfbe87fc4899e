"""Code on the pages, run: `python -m website.sessions PAGE...` runs a page's code and writes down what it says.

A block of `python` or `console` is run in a folder of its own, which also has the repository's examples. `text` after
`python` is what it printed; in `console` that is all that does not begin with "$ ". A block of `python` or `toml` that
begins with a comment "# NAME.py" (or .toml) is the file of that name. Blocks of `sh` are not run.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(python|console|text|toml)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# ([\w.-]+\.(?:py|toml))\b")
PROMPT = "$ "
Shell = Callable[[str], str]  # a command -> what it says


@dataclass(frozen=True)
class Block:
    """A piece of code on a page, or what it said."""

    kind: str
    text: str

    @property
    def file(self) -> str:
        """The file that the block is; empty if it is none."""
        found = FILE.match(self.text)
        return found[1] if found and self.kind in ("python", "toml") else ""

    @property
    def commands(self) -> list[str]:
        return [line.removeprefix(PROMPT) for line in self.text.splitlines() if line.startswith(PROMPT)]


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page, in order."""
    return [Block(kind, text) for kind, text in BLOCK.findall(page)]


def replayed(blocks: list[Block], shell: Shell) -> list[Block]:
    """The blocks with what they say when they are run here and now."""
    said: list[Block] = []
    names: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    for block in blocks:
        if block.file:
            Path(block.file).write_text(block.text)
        elif block.kind == "console":
            block = replace(block, text="".join(f"{PROMPT}{command}\n{shell(command)}" for command in block.commands))
        elif block.kind == "python":
            printed = executed(block.text, names)
        elif block.kind == "text" and printed:
            block, printed = replace(block, text=printed), ""
        said.append(block)
    return said


def executed(code: str, names: dict[str, object]) -> str:
    """What this code prints, run with these names."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "page", "exec"), names)
    return out.getvalue()


def bash(command: str) -> str:
    """What a command says to a person who types it."""
    where = {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", command], env=os.environ | where, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"'{command}' left with exit code {done.returncode}: {done.stderr}")
    return done.stderr + done.stdout


def renewed(page: str, shell: Shell = bash) -> str:
    """The page with what its code says now; the working folder is used."""
    fresh = iter(replayed(blocks_of(page), shell))

    def again(_: re.Match[str]) -> str:
        block = next(fresh)
        return f"```{block.kind}\n{block.text}```"

    return BLOCK.sub(again, page)


def main(paths: list[str]) -> None:
    """Renews these pages."""
    for path in map(Path, paths):
        path = path.absolute()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            Path("examples").symlink_to(ROOT / "examples")
            path.write_text(renewed(path.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
