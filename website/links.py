"""Links of a page to files of the repository -> links to pages of the site; source files get pages of their own."""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "sh", ".yml": "yaml"}


def rewritten(markdown: str, uri: str, folder: str) -> str:
    """The text of the page `uri`, whose links are meant from this folder of the repository."""

    def there(link: re.Match[str]) -> str:
        target = page_of(posixpath.normpath(posixpath.join(folder, link[1])))
        if target is None:
            return link[0]
        return posixpath.relpath(target, posixpath.dirname(uri) or ".") + (link[2] or "")

    return LINK.sub(there, markdown)


def page_of(path: str) -> str | None:
    """The page that shows a file or a folder of the repository; None where there is none."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/").replace(".ipynb", ".md")
    if path in PAGES:
        return PAGES[path]
    if (ROOT / path).is_dir():
        return f"source/{path}/index.md"
    return f"source/{path}.md" if (ROOT / path).is_file() else None


def sources(markdown: str, folder: str) -> Iterator[str]:
    """The files and folders outside of the docs that a text links to."""
    for target, _ in LINK.findall(markdown):
        path = posixpath.normpath(posixpath.join(folder, target))
        if (page_of(path) or "").startswith("source/"):
            yield path


def source_page(path: str) -> str:
    """The page that shows a source file, or the files of a folder."""
    here = ROOT / path
    shown = (
        listed(here)
        if here.is_dir()
        else f"````{LANGUAGES.get(here.suffix, 'text')}\n{here.read_text().rstrip()}\n````"
    )
    return f"---\norphan: true\nnosearch: true\n---\n\n# {path}\n\n{shown}\n"


def listed(folder: Path) -> str:
    """The files in a folder, as a list."""
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return "\n".join(f"- `{path}`" for path in files if path.suffix != ".pyc")
