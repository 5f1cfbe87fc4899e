"""What mkdocs calls while it builds the site: generated pages go in, links are turned, the menu is made."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from kinfed.config import DEMO
from kinfed.methods import METHODS
from website import api_pages, method_pages
from website.command_page import command_page
from website.config_page import config_page
from website.links import PAGES, page_of, rewritten, source_page, sources
from website.measured import read_tables
from website.navigation import navigation
from website.notebooks import notebook_page

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """All files of the site, generated ones included; the menu shows them."""
    for uri, text in {**references(), **project_pages()}.items():
        files.append(File.generated(config, uri, content=text))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        add_notebook(path, files, config)
    for source in sorted({source for file in files.documentation_pages() for source in linked(file)}):
        files.append(File.generated(config, page_of(source) or "", content=source_page(source)))
    config.nav = navigation([file.src_uri for file in files.documentation_pages()])
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """The text of a page with links that hold on the site."""
    return rewritten(markdown, page.file.src_uri, folder_of(page.file))


def references() -> dict[str, str]:
    """Page -> text, of all pages that are generated from code."""
    measured = read_tables()
    methods = {name: method_pages.method_page(name, measured) for name in METHODS}
    modules = {name: api_pages.api_page(name) for name in api_pages.modules()}
    return {
        "reference/config.md": config_page(DEMO.read_text()),
        "reference/commands.md": command_page(),
        "reference/methods/index.md": method_pages.overview(),
        **{f"reference/methods/{name}.md": text for name, text in methods.items()},
        "reference/api/index.md": api_pages.overview(),
        **{f"reference/api/{name}.md": text for name, text in modules.items()},
    }


def project_pages() -> dict[str, str]:
    """Page -> text, of pages that live at the root of the repository."""
    return {uri: (ROOT / name).read_text() for name, uri in PAGES.items() if uri != "index.md"}


def add_notebook(path: Path, files: Files, config: MkDocsConfig) -> None:
    """Puts a notebook's page and pictures into the site."""
    page = notebook_page(path)
    files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page.markdown))
    for name, picture in page.pictures.items():
        files.append(File.generated(config, f"notebooks/{name}", content=picture))


def linked(file: File) -> list[str]:
    """The files outside of the docs that a page links to."""
    return list(sources(file.content_string, folder_of(file)))


def folder_of(file: File) -> str:
    """The folder of the repository from which a page's links are meant."""
    return (
        "" if file.src_uri in PAGES.values() and file.src_uri != "index.md" else str(Path("docs", file.src_uri).parent)
    )
