"""The menu: sections in which pages stand in this order, if they are there; the others come last."""

from collections.abc import Collection, Mapping, Sequence

from kinfed.methods import METHODS

SECTIONS = {
    "Start": ["tutorial.md", "choosing.md", "coming-from.md", "notebooks/which-clients-are-related.md", "notebooks/*"],
    "How to": [
        "own-data.md", "own-partition.md", "natural-data.md", "drift.md", "tasks.md", "own-model.md", "own-encoder.md",
        "own-metric.md", "own-method.md", "adding-a-method.md",
        "sweeps.md", "reports.md", "reproducing.md", "serving.md", "deployment.md", "flower.md", "security.md",
    ],
    "Methods": ["reference/methods/index.md", "methods/*"],
    "Measured": ["results.md", "recovery.md", "roles.md", "metrics.md", "performance.md", "scaling.md"],
    "Reference": ["glossary.md", "reference/config.md", "reference/commands.md", "reference/api/index.md"],
    "Project": ["architecture.md", "contributing.md", "changelog.md"],
}  # fmt: skip
UNDER = {  # pages that stand under another one
    "reference/methods/index.md": [f"reference/methods/{name}.md" for name in METHODS],
    "reference/api/index.md": ["reference/api/*"],
    "results.md": ["results/*"],
}
MORE = "Project"  # where pages stand that no section names


def add_menus(pages: Mapping[str, str]) -> dict[str, str]:
    """The pages with their parts of the menu at their ends."""
    under = {uri: [one for pattern in patterns for one in matching(pattern, pages)] for uri, patterns in UNDER.items()}
    left = set(pages) - {"index.md", *(uri for found in under.values() for uri in found)}
    menus = [make_menu(found, title) for title, found in find_sections(left).items()]
    ends = {"index.md": menus} | {uri: [make_menu(found)] for uri, found in under.items() if found}
    return {uri: "\n\n".join([text.rstrip(), *ends.get(uri, [])]) + "\n" for uri, text in pages.items()}


def find_sections(uris: Collection[str]) -> dict[str, list[str]]:
    """Section -> its pages."""
    left, menu = set(uris), {}
    for title, patterns in SECTIONS.items():
        menu[title] = list(dict.fromkeys(uri for pattern in patterns for uri in matching(pattern, left)))
        left -= set(menu[title])
    menu[MORE] += sorted(left)
    return {title: found for title, found in menu.items() if found}


def make_menu(uris: Sequence[str], title: str = "") -> str:
    """A part of the menu; its links are from the root of the site."""
    caption = f":caption: {title}\n" if title else ""
    listed = "\n".join(f"/{uri.removesuffix('.md')}" for uri in uris)
    return f"```{{toctree}}\n:hidden:\n{caption}\n{listed}\n```"


def matching(pattern: str, uris: Collection[str]) -> list[str]:
    """The pages that a name or "folder/*" stands for; an index is only meant by its name."""
    if not pattern.endswith("/*"):
        return [pattern] if pattern in uris else []
    return sorted(uri for uri in uris if uri.startswith(pattern[:-1]) and not uri.endswith("/index.md"))
