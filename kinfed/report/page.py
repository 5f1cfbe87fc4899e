"""The page: one HTML file with everything in it."""

import json
from collections.abc import Sequence
from html import escape
from importlib.metadata import version
from importlib.resources import files
from string import Template

from kinfed.comparison import Column, mean_and_spread
from kinfed.config import Table, to_toml
from kinfed.report.payload import payload, shown_runs
from kinfed.report.series import Series
from kinfed.report.tables import as_html, cell_of, differences, ledger, results, useful_columns
from kinfed.runs.reader import Run

SCRIPTS = ("base", "controls", "lines", "bars", "map", "matrix", "tree", "labels", "bands", "tables", "main")
MOVED = "What was moved for what, mean over seeds; asking for scores (evaluate) is no cost of the method"
NOBODY_LOOKS = '<p class="empty">None of these methods looks for groups: there is nothing to show about kinship.</p>'


def page(series: Sequence[Series]) -> str:
    """The report of these series as HTML that needs no other file."""
    parts = {
        "title": escape(title(series)),
        "facts": facts(series),
        "lede": escape(lede(series)),
        "notes": notes(series),
        "results_say": escape(results_say(series)),
        "bands_say": "Lines are means over seeds, bands one standard deviation to either side."
        if seeded(series)
        else "",
        "results": as_html(*results(series), caption="After the last evaluation; the best of a column is bold"),
        "kinship": asset("kinship.html") if looks_for_kin(series) else NOBODY_LOOKS,
        "ledger": as_html(*ledger(series), caption=MOVED, text=("method", "task")),
        "settings": settings(series),
        "version": version("kinfed"),
        "sources": ", ".join(f"<code>{escape(run.path.name)}</code>" for one in series for run in one.runs),
        "data": json.dumps(payload(series), separators=(",", ":"), allow_nan=False).replace("</", "<\\/"),
        "style": asset("style.css"),
        "script": "\n".join(asset(f"{name}.js") for name in SCRIPTS),
    }
    return Template(asset("page.html")).substitute(parts)


def asset(name: str) -> str:
    """The text of a file that comes with the package."""
    return files("kinfed.report").joinpath("assets", name).read_text(encoding="utf-8")


def title(series: Sequence[Series]) -> str:
    """The methods and the data in words."""
    methods = list(dict.fromkeys(one.runs[0].method for one in series))
    listed = methods[0] if len(methods) == 1 else f"{', '.join(methods[:-1])} and {methods[-1]}"
    return f"{listed} on {either(series, 'data', 'name')}"


def facts(series: Sequence[Series]) -> str:
    """What was run, in a line."""
    clients = " or ".join(dict.fromkeys(f"{run.count:,}" for one in series for run in one.runs))
    seeds = sorted({seed for one in series for seed in one.seeds})
    said = [
        f"{clients} clients",
        f"{either(series, 'rounds')} rounds",
        f"partition {either(series, 'partition', 'name')}",
        f"model {either(series, 'model')}",
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}",
    ]
    return " · ".join(f"<span>{escape(words)}</span>" for words in said)


def either(series: Sequence[Series], *path: str) -> str:
    """A setting, or all that it is in some series."""
    found = []
    for one in series:
        value: object = one.runs[0].config
        for key in path:
            value = value.get(key, "?") if isinstance(value, dict) else "?"
        found.append(str(value))
    return " or ".join(dict.fromkeys(found))


def lede(series: Sequence[Series]) -> str:
    """The result in a sentence or two."""
    accuracy = useful_columns(series)[0]
    ranked = sorted(series, key=lambda one: -(cell_of(accuracy, one).value or 0))
    best = cell_of(accuracy, ranked[0])
    spread = f" {best.spread}" if best.spread else ""
    if len(ranked) == 1:
        return f"Clients are served at {best.shown}{spread} % accuracy on average." + kin_sentence(ranked[0])
    first, second = ranked[:2]
    if cell_of(accuracy, second).shown == best.shown:
        return f"{first.name} and {second.name} serve clients best, both at {best.shown} % on average."
    said = f"{first.name} serves clients best: {best.shown}{spread} % on average, {ahead_of(ranked, accuracy)}."
    return said + kin_sentence(first)


def ahead_of(ranked: Sequence[Series], column: Column) -> str:
    """How far the first is ahead of the second, and whether seeds differ by more than that."""
    (first, spread), (second, other) = (mean_and_spread(column, one.outcomes) for one in ranked[:2])
    ahead = (first or 0) - (second or 0)
    within = ", which is less than seeds differ by" if ahead < max(spread or 0, other or 0) else ""
    return f"{ahead:.2f} points above {ranked[1].name}{within}"


def kin_sentence(one: Series) -> str:
    """What it found, if it looked for groups."""
    numbers = {column.name: cell_of(column, one) for column in useful_columns([one])}
    clusters, ari = numbers.get("clusters"), numbers.get("ari")
    if clusters is None or clusters.value is None:
        return ""
    fit = f", which fit the planted ones with an ARI of {ari.shown}" if ari and ari.value is not None else ""
    return f" It found {clusters.shown} group{'' if clusters.value == 1 else 's'}{fit}."


def notes(series: Sequence[Series]) -> str:
    """What a reader should know before comparing."""
    said = [unfinished(one.name, run) for one in series for run in one.runs if not run.has_ended]
    if differences(series)[1] and len(series) > 1:
        said.append("The methods do not share all settings; the last section lists where they differ.")
    if any(len(shown_runs(one, series)) < len(one.runs) for one in series):
        said.append("There are many clients: pictures of single clients are of each method's first seed.")
    return f'<ul class="notes">{"".join(f"<li>{escape(line)}</li>" for line in said)}</ul>' if said else ""


def unfinished(name: str, run: Run) -> str:
    done, wanted = int(run.rounds["round"][-1]), run.config.get("rounds")
    return f"{name}, seed {run.seed} has not ended: it is shown as of round {done} of {wanted}."


def results_say(series: Sequence[Series]) -> str:
    spread = " Numbers are means ± standard deviations over seeds." if seeded(series) else ""
    return f"Accuracies are means over the clients that train, each tested on its own test rows.{spread}"


def seeded(series: Sequence[Series]) -> bool:
    """Whether some series has several seeds."""
    return any(len(one.runs) > 1 for one in series)


def looks_for_kin(series: Sequence[Series]) -> bool:
    """Whether some run has groups or signatures to show."""
    folders = [run.path for one in series for run in one.runs]
    return any(run.found is not None for one in series for run in one.runs) or any(
        (folder / name).exists() for folder in folders for name in ("signatures.npz", "relatedness.npz")
    )


def own_config(run: Run) -> Table:
    """The config of a run without the settings of other methods, and without those of comparisons."""
    methods = run.config.get("methods", {})
    own = {run.method: methods[run.method]} if isinstance(methods, dict) and run.method in methods else {}
    return {k: v for k, v in run.config.items() if k not in ("compare", "seeds")} | {"methods": own}


def settings(series: Sequence[Series]) -> str:
    """Where the series differ, and the whole config of each."""
    header, rows = differences(series)
    table = f'<div class="scroll">{as_html(header, rows, "Settings that differ", header)}</div>' if rows else ""
    said = (
        '<p class="say">All settings, defaults included. Save one as a .toml file and run it again with '
        "<code>kinfed run</code>.</p>"
    )
    blocks = "".join(
        f"<details><summary>{escape(one.name)}</summary><pre>{escape(to_toml(own_config(one.runs[0])))}</pre></details>\n"
        for one in series
    )
    return said + table + blocks
