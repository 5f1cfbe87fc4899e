"""What is in the menu: sections in which pages stand in this order, if they are there; the others come last."""

from collections.abc import Collection

from kinfed.methods import METHODS

Nav = list[dict[str, str | list[str]]]
SECTIONS = {
    "Start": ["tutorial.md", "choosing.md", "coming-from.md", "notebooks/which-clients-are-related.md", "notebooks/*"],
    "How to": [
        "own-data.md", "natural-data.md", "drift.md", "tasks.md", "own-model.md", "own-method.md", "adding-a-method.md",
        "sweeps.md", "reports.md", "reproducing.md", "serving.md", "deployment.md", "flower.md", "security.md",
    ],
    "Methods": ["reference/methods/index.md", *(f"reference/methods/{name}.md" for name in METHODS)],
    "Measured": [
        "results.md", "results/*", "recovery.md", "roles.md", "metrics.md", "methods/*", "performance.md", "scaling.md",
    ],
    "Reference": ["glossary.md", "reference/config.md", "reference/commands.md"],
    "Python": ["reference/api/index.md", "reference/api/*"],
    "Project": ["architecture.md", "contributing.md", "changelog.md"],
}  # fmt: skip
MORE = "Project"  # where pages stand that no section names


def navigation(uris: Collection[str]) -> Nav:
    """The menu of these pages."""
    left = {uri for uri in uris if uri != "index.md" and not uri.startswith("source/")}
    menu: dict[str, list[str]] = {}
    for title, patterns in SECTIONS.items():
        menu[title] = list(dict.fromkeys(uri for pattern in patterns for uri in matching(pattern, left)))
        left -= set(menu[title])
    menu[MORE] += sorted(left)
    sections: Nav = [{title: found} for title, found in menu.items() if found]
    return [{"Home": "index.md"}, *sections]


def matching(pattern: str, uris: Collection[str]) -> list[str]:
    """The pages that a name or "folder/*" stands for; an index is only meant by its name."""
    if not pattern.endswith("/*"):
        return [pattern] if pattern in uris else []
    return sorted(uri for uri in uris if uri.startswith(pattern[:-1]) and not uri.endswith("/index.md"))
