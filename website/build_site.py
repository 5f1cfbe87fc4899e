"""The documentation site: all pages are written into one folder, generated ones included, and Sphinx builds them.

python -m website.build_site site  # a broken link is an error
"""

import shutil
import sys
import tempfile
from pathlib import Path

from sphinx.cmd.build import main as run_sphinx

from kinfed.config import DEMO
from kinfed.methods import METHODS
from website import api_pages, method_pages
from website.command_page import command_page
from website.config_page import config_page
from website.links import PAGES, page_of, rewritten, source_page, sources
from website.measured import read_tables
from website.navigation import add_menus
from website.notebooks import notebook_page

ROOT = Path(__file__).parents[1]
Files = dict[str, str | bytes]  # path in the site's sources -> what is in it


def collect_files() -> Files:
    """All files of the site; links of pages hold on it."""
    docs = ROOT / "docs"
    files: Files = {
        path.relative_to(docs).as_posix(): path.read_text() if path.suffix == ".md" else path.read_bytes()
        for path in sorted(docs.rglob("*"))
        if path.is_file()
    }
    files |= {uri: (ROOT / name).read_text() for name, uri in PAGES.items() if uri != "index.md"}
    files |= make_references()
    for path in sorted((docs / "notebooks").glob("*.ipynb")):
        page = notebook_page(path)
        files |= {f"notebooks/{path.stem}.md": page.markdown}
        files |= {f"notebooks/{name}": picture for name, picture in page.pictures.items()}
    pages = {uri: text for uri, text in files.items() if isinstance(text, str)}
    linked = sorted({source for uri, text in pages.items() for source in sources(text, folder_of(uri))})
    shown = {page_of(source) or "": source_page(source) for source in linked}
    pages = {uri: rewritten(text, uri, folder_of(uri)) for uri, text in pages.items()}
    return files | add_menus(pages) | shown


def make_references() -> dict[str, str]:
    """Page -> text, of all pages that are generated from code."""
    measured = read_tables()
    methods = {name: method_pages.method_page(name, measured) for name in METHODS}
    return {
        "reference/config.md": config_page(DEMO.read_text()),
        "reference/commands.md": command_page(),
        "reference/methods/index.md": method_pages.overview(),
        **{f"reference/methods/{name}.md": text for name, text in methods.items()},
        **{f"reference/api/{name}.md": text for name, text in api_pages.make_pages().items()},
    }


def folder_of(uri: str) -> str:
    """The folder of the repository from which a page's links are meant."""
    is_project = uri in PAGES.values() and uri != "index.md"
    return "" if is_project else Path("docs", uri).parent.as_posix()


def build(out: Path) -> int:
    """Builds the site into a folder, which is replaced; gives back 0, or not where Sphinx warns of something."""
    with tempfile.TemporaryDirectory() as folder:
        for uri, content in collect_files().items():
            path = Path(folder, uri)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        shutil.rmtree(out, ignore_errors=True)
        words = ["--quiet", "--fail-on-warning", "-c", str(ROOT / "website" / "theme"), "-d", f"{folder}/.doctrees"]
        return run_sphinx([*words, folder, str(out)])


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1])))
