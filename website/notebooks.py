"""An executed notebook -> a page and the pictures in it. `python -m website.notebooks FILE...` runs notebooks again."""

import base64
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]  # as notebooks are


@dataclass(frozen=True)
class NotebookPage:
    """What the site shows of a notebook."""

    markdown: str
    pictures: dict[str, bytes]  # by file name


def notebook_page(path: Path) -> NotebookPage:
    """The page of a notebook: texts, code, and what the code showed when it was last run."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    pictures: dict[str, bytes] = {}
    parts = []
    for number, cell in enumerate(cells):
        parts += (
            [text_of(cell["source"])]
            if cell["cell_type"] == "markdown"
            else code(cell, f"{path.stem}-{number}", pictures)
        )
    parts.insert(1, f"This page is an executed notebook: [download it]({path.name}), or read on.")
    return NotebookPage("\n\n".join(parts) + "\n", pictures)


def code(cell: Json, name: str, pictures: dict[str, bytes]) -> list[str]:
    """A cell's code and what it showed; its pictures are put with the others, under the code's first line."""
    title = text_of(cell["source"]).split("\n")[0].lstrip("# ")
    outputs = joined(cell["outputs"])
    shown = [output(found, f"{name}-{at}.png", title, pictures) for at, found in enumerate(outputs)]
    return [f"```python\n{text_of(cell['source'])}\n```", *(text for text in shown if text)]


def joined(outputs: list[Json]) -> list[Json]:
    """The outputs with what was printed line by line as one."""
    found: list[Json] = []
    for one in outputs:
        if found and one["output_type"] == found[-1]["output_type"] == "stream":
            found[-1] = found[-1] | {"text": text_of(found[-1]["text"]) + text_of(one["text"])}
        else:
            found.append(one)
    return found


def output(found: Json, name: str, title: str, pictures: dict[str, bytes]) -> str:
    """One output as Markdown."""
    if found["output_type"] == "stream":
        printed = text_of(found["text"]).strip("\n")
        return f"```text\n{printed}\n```"
    data = found.get("data", {})
    if "image/svg+xml" in data:
        name = f"{name.removesuffix('.png')}.svg"
        pictures[name] = text_of(data["image/svg+xml"]).encode()
        return f"![{title}]({name})"
    if "image/png" in data:
        pictures[name] = base64.b64decode(data["image/png"])
        return f"![{title}]({name})"
    if "text/markdown" in data:
        return text_of(data["text/markdown"])
    return f"```text\n{text_of(data['text/plain'])}\n```" if "text/plain" in data else ""


def text_of(source: str | list[str]) -> str:
    """A notebook's text, which may be in lines."""
    return source if isinstance(source, str) else "".join(source)


def execute(path: Path) -> None:
    """Executes a notebook and writes down what it shows."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=1800, kernel_name="python3", record_timing=False).execute()
    for found in (found for cell in notebook.cells for found in cell.get("outputs", [])):
        if "image/png" in found.get("data", {}):
            found.data["image/png"] = shrink(found.data["image/png"])
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def shrink(png: str) -> str:
    """A picture (in base64) with 64 colours, which charts do not exceed: a quarter of the bytes."""
    from PIL import Image

    small = io.BytesIO()
    Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB").quantize(64).save(small, "PNG", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        execute(Path(name))
