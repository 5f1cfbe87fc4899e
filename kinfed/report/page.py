"""A report on disk: one HTML file with everything in it, and beside it charts and tables on demand."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template

from kinfed.comparison import columns_for, headline, make_cell
from kinfed.config import Table, to_toml
from kinfed.config.assembly import OWN
from kinfed.errors import ConfigError
from kinfed.files import refuse_foreign
from kinfed.registry import suggest
from kinfed.report.diagnosis import find_all
from kinfed.report.matrix_charts import plot_confusion, plot_distances, plot_labels, plot_relatedness
from kinfed.report.method_charts import plot_accuracies, plot_convergence, plot_cost
from kinfed.report.parameter_chart import find_parameters, plot_parameters
from kinfed.report.report_tables import (
    as_html,
    client_table,
    cluster_table,
    differences,
    latex_table,
    ledger,
    markdown_table,
    outcomes_of,
    results,
    targets_table,
)
from kinfed.report.run_charts import plot_cluster_curves, plot_dendrogram, plot_membership, plot_signatures
from kinfed.report.series import Series, gather, is_scored_on_training, list_metrics, main_metric
from kinfed.report.vega import THEMES, Chart, Spec, bundle_scripts
from kinfed.runs.lifecycle import free_folder
from kinfed.runs.logs import write_text
from kinfed.runs.reader import Run

log = logging.getLogger("kinfed")
PAGE, FIGURES = "index.html", "figures"
MOST_HEAD = 2**16  # characters of a page before the end of its title
KINDS = ("png", "svg")
ENOUGH = 20_000  # clients of all runs that are shown one by one; of more only each method's first seed is
BYTES_CAPTION = "Bytes by task, mean over seeds; evaluation (evaluate) is no cost of the method"
TARGETS_CAPTION = "The first round whose mean over clients reaches a target, and the megabytes moved by then"
NO_CLUSTERS = '<p class="empty">None of these methods looks for clusters: there is nothing to show here.</p>'
RUN_CHARTS: dict[str, Callable[[Run], Chart]] = {
    "signatures": plot_signatures,
    "relatedness": plot_relatedness,
    "distances": plot_distances,
    "dendrogram": plot_dendrogram,
    "labels": plot_labels,
    "cluster_curves": plot_cluster_curves,
    "membership": plot_membership,
    "confusion": plot_confusion,
}
REASONS = {
    "signatures": "No signatures were written: FLT and REPA have signatures of their own; for other methods set "
    "evaluation.signatures=all, which lets every client train once more at the end.",
    "relatedness": "This method relates no clients to each other: there is no matrix.",
    "distances": "This run wrote neither merges nor signatures of its clients, or relates none: no distances.",
    "cluster_curves": "This method looks for no clusters: the curve above is all there is.",
    "confusion": "The task has no single class a sample, or more than 100 classes, or the run's evaluation.metrics is "
    "'main', or its clients are elsewhere: no confusion matrix.",
    "dendrogram": "This method does not merge clients, or there are too many to compare all pairs: no dendrogram.",
    "labels": "The labels of these clients are not known: their samples are elsewhere.",
    "membership": "The clusters did not change over rounds, or the method looks for none.",
}


def report_folder(runs: Sequence[Path]) -> Path:
    """`report` in the folder that was given; of several, a new one under runs/."""
    return runs[0] / "report" if len(runs) == 1 else free_folder(Path("runs") / "report")


def check_kinds(kinds: Sequence[str]) -> None:
    """Raises unless charts can be written as files of these kinds."""
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"--figures: wanted {' or '.join(KINDS)}, got '{kind}'{suggest(kind, KINDS)}")


def write_report(
    runs: Sequence[Path | str],
    folder: Path | str,
    figures: Sequence[str] = (),
    *,
    latex: bool = False,
    markdown: bool = False,
) -> list[Path]:
    """Writes the page of these runs and what else is wanted; gives back all files, the page first."""
    check_kinds(figures)
    folder, series = Path(folder), gather(runs)
    if not series:
        raise ConfigError("report: wanted at least one run, got none")
    wanted: dict[str, Callable[[Sequence[Series]], str]] = {PAGE: make_page}
    wanted |= {"results.tex": latex_table} if latex else {}
    wanted |= {"results.md": markdown_table} if markdown else {}
    charts = {f"{FIGURES}/{name}.{kind}": chart for name, chart in list_charts(series, figures) for kind in figures}
    if not is_report(folder):
        refuse_foreign(folder, [*wanted, *charts], "the report")
    texts = {name: make(series) for name, make in wanted.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_text(folder / name, text)
    draw_charts(charts, folder, figures)
    return [folder / name for name in (*wanted, *charts)]


def is_report(folder: Path) -> bool:
    """Whether the page in a folder is one of ours: its title says so."""
    if not (folder / PAGE).is_file():
        return False
    with open(folder / PAGE, encoding="utf-8", errors="replace") as file:
        return "kinfed report</title>" in file.read(MOST_HEAD)


def draw_charts(charts: Mapping[str, Chart], folder: Path, kinds: Sequence[str]) -> None:
    """Draws charts as files of these names in a folder."""
    if kinds:
        log.info("drawing the charts as %s", " and ".join(kinds))
        (folder / FIGURES).mkdir(exist_ok=True)
    for name, chart in charts.items():
        chart.save(folder / name)


def list_charts(series: Sequence[Series], kinds: Sequence[str]) -> list[tuple[str, Chart]]:
    """The charts to be drawn as files, by name; of each series' first seed those of one run."""
    return list(all_charts(series)) if kinds else []


def all_charts(series: Sequence[Series]) -> Iterator[tuple[str, Chart]]:
    """The file names and charts that there are data for."""
    for metric in list_metrics(series):
        yield f"convergence-{metric.name}", plot_convergence(series, metric.name)
    if chart := parameter_chart(series):
        yield "parameters", chart
    yield "cost", plot_cost(series)
    yield "accuracies", plot_accuracies(series)
    for one in series:
        for name, chart in run_charts(one.runs[0]).items():
            yield f"{name}-{file_name(one.name)}-seed{one.runs[0].seed}", chart


def parameter_chart(series: Sequence[Series]) -> Chart | None:
    """The main metric against parameters; none where series of a method do not differ in any."""
    return plot_parameters(series) if find_parameters(series) else None


def run_charts(run: Run) -> dict[str, Chart]:
    """The charts that a run has data for."""
    found = {}
    for name, plot in RUN_CHARTS.items():
        try:
            found[name] = plot(run)
        except ConfigError:  # the run has no such data
            continue
    return found


def file_name(name: str) -> str:
    """A series' name without characters that file names should not have."""
    return "".join(character if character.isalnum() or character in "-_.=" else "_" for character in name.lower())


def make_page(series: Sequence[Series]) -> str:
    """The report of these series as HTML that needs no other file."""
    shown = [(one.name, run) for one in series for run in list_runs(one, series)]
    bands = "Lines are means over seeds, bands one standard deviation to either side." if has_seeds(series) else ""
    parts = {
        "title": escape(title(series)),
        "facts": facts(series),
        "lede": escape(lede(series)),
        "notes": notes(series),
        "diagnosis": diagnosis_box(series),
        "targets": as_html(*targets_table(series), caption=TARGETS_CAPTION),
        "results_say": escape(caption_results(series)),
        "bands_say": bands,
        "results": as_html(*results(series), caption="After the last evaluation; the best of a column is bold"),
        "hide_parameters": "" if find_parameters(series) else "hidden",
        "metrics": options([metric.title for metric in list_metrics(series)]),
        "runs": options([f"{name}, seed {run.seed}" for name, run in shown]),
        "no_clusters": "" if has_clusters(series) else NO_CLUSTERS,
        "hide_clusters": "" if has_clusters(series) else "hidden",
        "tables": "\n".join(run_tables(at, run) for at, (_, run) in enumerate(shown)),
        "ledger": as_html(*ledger(series), caption=BYTES_CAPTION, text=("method", "task")),
        "settings": settings(series),
        "version": version("kinfed"),
        "sources": ", ".join(f"<code>{escape(run.path.name)}</code>" for one in series for run in one.runs),
        "data": as_json(page_data(series, [run for _, run in shown])),
        "style": asset("report.css"),
        "vega": bundle_scripts(),
        "script": asset("report.js"),
    }
    return Template(asset("report.html")).substitute(parts)


def page_data(series: Sequence[Series], runs: Sequence[Run]) -> Spec:
    """All that the page draws."""
    return {
        "themes": THEMES,
        "metrics": [plot_convergence(series, metric.name).for_page() for metric in list_metrics(series)],
        "parameters": chart.for_page() if (chart := parameter_chart(series)) else None,
        "cost": plot_cost(series).for_page(),
        "accuracies": plot_accuracies(series).for_page(),
        "runs": [{name: chart.for_page() for name, chart in run_charts(run).items()} | reasons(run) for run in runs],
    }


def reasons(run: Run) -> Spec:
    """Why a chart is missing."""
    unfinished = "The run has not ended: this is written at its end."
    return {"reasons": {name: said if run.has_ended else unfinished for name, said in REASONS.items()}}


def as_json(data: Spec) -> str:
    """JSON that cannot end the script it stands in."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def options(names: Sequence[str]) -> str:
    """The choices of a select element."""
    return "".join(f'<option value="{at}">{escape(name)}</option>' for at, name in enumerate(names))


def run_tables(at: int, run: Run) -> str:
    """The tables of a run, as templates until it is chosen."""
    clusters = f'<template id="clusters-{at}">{cluster_table(run)}</template>'
    return f'<template id="clients-{at}">{client_table(run)}</template>{clusters}'


def list_runs(one: Series, series: Sequence[Series]) -> Sequence[Run]:
    """The runs of a series that are shown client by client."""
    clients = sum(run.count for other in series for run in other.runs)
    return one.runs if clients <= ENOUGH else one.runs[:1]


def asset(name: str) -> str:
    """The text of a file that comes with the package."""
    return files("kinfed.report").joinpath("assets", name).read_text(encoding="utf-8")


def title(series: Sequence[Series]) -> str:
    """The methods and the data in words."""
    methods = list(dict.fromkeys(one.title for one in series))
    listed = methods[0] if len(methods) == 1 else f"{', '.join(methods[:-1])} and {methods[-1]}"
    return f"{listed} on {'own data' if has_own_data(series) else either(series, 'data', 'name')}"


def facts(series: Sequence[Series]) -> str:
    """What was run, in a line."""
    clients = " or ".join(dict.fromkeys(f"{run.count:,}" for one in series for run in one.runs))
    seeds = sorted({seed for one in series for seed in one.seeds})
    said = [
        f"{clients} clients",
        f"{either(series, 'rounds')} rounds",
        *([] if has_own_data(series) else [f"partition {either(series, 'partition', 'name')}"]),
        f"model {either(series, 'model')}",
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}",
    ]
    return " · ".join(f"<span>{escape(words)}</span>" for words in said)


def has_own_data(series: Sequence[Series]) -> bool:
    """Whether all clients came from Python as objects, which no partition divides."""
    return all(name.startswith(OWN) for name in either(series, "data", "name").split(" or "))


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
    outcomes, metric = outcomes_of(series), main_metric(series)
    if said := headline(outcomes):
        best = [one for one in series if said.startswith(f"{one.name} ")]
        return said + "".join(map(cluster_sentence, best))
    unit = f" % {metric.title}" if metric.unit == "%" else f" {metric.title}"
    return (
        f"Clients are served at {make_cell(columns_for(outcomes)[0], outcomes)}{unit} on average."
        + cluster_sentence(series[0])
    )


def cluster_sentence(one: Series) -> str:
    """What it found, if it looked for clusters."""
    numbers = {column.name: make_cell(column, one.outcomes) for column in columns_for(one.outcomes)}
    clusters, ari = numbers["clusters"], numbers["ari"]
    if clusters.value is None:
        return ""
    fit = f" (ARI {ari.shown} with the ground truth)" if ari.value is not None else ""
    return f" It found {clusters.shown} cluster{'' if clusters.value == 1 else 's'}{fit}."


def notes(series: Sequence[Series]) -> str:
    """What a reader should know before comparing."""
    said = [caption_unfinished(one.name, run) for one in series for run in one.runs if not run.has_ended]
    if differences(series)[1] and len(series) > 1:
        said.append("The methods do not share all settings; the last section lists where they differ.")
    if is_scored_on_training(series):
        said.append("Clients are scored on validation samples: training samples that they did not train on.")
    if any(len(list_runs(one, series)) < len(one.runs) for one in series):
        said.append("There are many clients: charts of single clients are of each method's first seed.")
    return f'<ul class="notes">{"".join(f"<li>{escape(line)}</li>" for line in said)}</ul>' if said else ""


def diagnosis_box(series: Sequence[Series]) -> str:
    """What to know before trusting the results; nothing where there is nothing to say."""
    rows = "".join(
        f'<li class="{finding.kind}"><b>{escape(finding.methods)}</b>: {escape(finding.says)}</li>\n'
        for finding in find_all(series)
    )
    head = '<div role="note" class="diagnosis" aria-labelledby="diagnosis-h"><h2 id="diagnosis-h">Diagnosis</h2>'
    return f"{head}<ul>{rows}</ul></div>" if rows else ""


def caption_unfinished(name: str, run: Run) -> str:
    """How far a run is that has not ended."""
    done, wanted = int(run.rounds["round"][-1]), run.config.get("rounds")
    return f"{name}, seed {run.seed} has not ended: it is shown as of round {done} of {wanted}."


def caption_results(series: Sequence[Series]) -> str:
    """What the numbers of the results are."""
    spread = " Numbers are means ± standard deviations over seeds." if has_seeds(series) else ""
    samples = "validation" if is_scored_on_training(series) else "test"
    return f"Scores are means over the clients that train, each tested on its own {samples} samples.{spread}"


def has_seeds(series: Sequence[Series]) -> bool:
    """Whether some series has several seeds."""
    return any(len(one.runs) > 1 for one in series)


def has_clusters(series: Sequence[Series]) -> bool:
    """Whether some run has clusters or signatures to show."""
    runs = [run for one in series for run in one.runs]
    written = ((run.path / f"{name}.npz").exists() for run in runs for name in ("signatures", "relatedness"))
    return any(run.found is not None for run in runs) or any(written)


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
