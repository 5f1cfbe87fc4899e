"""Tables of a report: in HTML, LaTeX and Markdown."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from html import escape

import numpy as np

from kinfed.comparison import NOTHING, Cell, Outcome, make_cells
from kinfed.comparison import markdown_table as markdown_results
from kinfed.quality import Metric
from kinfed.report.series import Series, main_metric, megabytes_at, settings_of
from kinfed.runs.reader import Run

LEVELS = (20, 30, 40, 50, 60, 70, 75, 80, 85, 90, 92, 94, 95, 96, 97, 98, 99, 99.5)  # accuracies in percent, as targets
LISTED = 5000  # clients at most in the table of a run; clients.csv has them all
SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "±": r"$\pm$"}


def results(series: Sequence[Series]) -> tuple[list[str], list[list[Cell]]]:
    """The header and one row a series: means over seeds, the best of each column marked."""
    return make_cells(outcomes_of(series), filled=True)


def outcomes_of(series: Sequence[Series]) -> list[Outcome]:
    """How all runs of these series ended."""
    return [outcome for one in series for outcome in one.outcomes]


def targets_table(series: Sequence[Series]) -> tuple[list[str], list[list[Cell]]]:
    """After how many rounds and megabytes each method's mean reaches some targets: means over seeds."""
    metric, targets = main_metric(series), choose_targets(series)
    header = ["method", *(f"{name_level(metric, target)}: {what}" for target in targets for what in ("round", "MB"))]
    rows = [[Cell(one.name), *(cell for target in targets for cell in cells_at_target(one, target))] for one in series]
    columns = [mark_least(list(column)) for column in zip(*(row[1:] for row in rows), strict=True)]
    return header, [[row[0], *(column[at] for column in columns)] for at, row in enumerate(rows)]


def name_level(metric: Metric, target: float) -> str:
    """A target in words."""
    return f"{metric.scale * target:g} {metric.unit or metric.title}"


def choose_targets(series: Sequence[Series]) -> list[float]:
    """Three levels of the main metric that tell methods apart, the last one near the best end."""
    metric, ends = main_metric(series), [mean_end(one) for one in series]
    best = max(ends, key=metric.gain)
    if metric.unit == "%":
        reached = [level / 100 for level in LEVELS if level / 100 <= best] or [best]
        few = [level for level in reached if sum(end >= level for end in ends) < len(ends)] or reached[-1:]
        return sorted({few[0], few[len(few) // 2], few[-1]})
    first = min((float(run.main[~np.isnan(run.main)][0]) for one in series for run in one.runs), key=metric.gain)
    return [float(f"{first + share * (best - first):.3g}") for share in (0.5, 0.8, 0.95)]


def mean_end(one: Series) -> float:
    """The main metric at the end, the mean over seeds."""
    return float(np.mean([run.main[~np.isnan(run.main)][-1] for run in one.runs]))


def cells_at_target(one: Series, target: float) -> list[Cell]:
    """The round and the megabytes at which a method reaches a target; how many seeds do, where not all do."""
    rounds = [run.first_round_at(target) for run in one.runs]
    reached = [(run, at) for run, at in zip(one.runs, rounds, strict=True) if at is not None]
    if len(reached) < len(rounds):
        return [Cell(f"{len(reached)} of {len(rounds)} seeds" if reached else NOTHING), Cell(NOTHING)]
    at, moved = np.mean([at for _, at in reached]), np.mean([megabytes_at(run, [at])[0] for run, at in reached])
    return [Cell(f"{at:.3g}", float(at)), Cell(f"{moved:,.1f}", float(moved))]


def mark_least(cells: list[Cell]) -> list[Cell]:
    """The cells with the least number marked, where some differ."""
    values = [cell.value for cell in cells if cell.value is not None]
    if len({*values}) < 2:
        return cells
    return [replace(cell, is_best=cell.value == min(values)) for cell in cells]


def ledger(series: Sequence[Series]) -> tuple[list[str], list[list[Cell]]]:
    """What each method moved for what, the mean over seeds."""
    header = ["method", "task", "clients asked", "MB down", "MB up"]
    rows = []
    for one in series:
        for task in dict.fromkeys(task for run in one.runs for task in run.ledger.text.get("task", [])):
            asked, down, up = (
                float(np.mean([sum_task(run.ledger[name], run.ledger.text["task"], task) for run in one.runs]))
                for name in ("clients", "bytes_down", "bytes_up")
            )
            cells = [Cell(f"{asked:,.0f}", asked), *(Cell(f"{v / 1e6:,.2f}", v) for v in (down, up))]
            rows.append([Cell(one.name), Cell(task), *cells])
    return header, rows


def sum_task(values: "np.typing.NDArray[np.float64]", tasks: Sequence[str], task: str) -> float:
    """The sum of the values of one task."""
    return float(values[np.array(tasks) == task].sum())


def differences(series: Sequence[Series]) -> tuple[list[str], list[list[Cell]]]:
    """The settings in which series differ, but for those of their methods: one row a setting."""
    settings = [settings_of(one.runs[0]) for one in series]
    keys = dict.fromkeys(key for some in settings for key in some if key != "method" and not key.startswith("methods."))
    differing = [key for key in keys if len({repr(some.get(key)) for some in settings}) > 1]
    rows = [[Cell(key), *(Cell(str(some.get(key, NOTHING))) for some in settings)] for key in differing]
    return ["setting", *(one.name for one in series)], rows


def client_table(run: Run) -> str:
    """Every client of a run at the last evaluation."""
    columns: dict[str, Callable[[int], Cell]] = {
        "client": lambda c: Cell(run.name_client(c), float(c)),
        "role": lambda c: Cell(run.roles[c] or NOTHING),
    }
    clusters = {"found cluster": run.found, "ground-truth cluster": run.true_clusters}
    columns |= {title: partial(cluster_cell, values) for title, values in clusters.items() if values is not None}
    if run.labels is not None:
        samples = run.labels.sum(1)
        columns["training samples"] = lambda c: Cell(f"{samples[c]:,}", float(samples[c]))
    columns[run.metric.column] = lambda c: metric_cell(run.metric, float(run.scores[c]))
    rows = [[cell(client) for cell in columns.values()] for client in range(min(run.count, LISTED))]
    more = f"; the first {LISTED:,} of {run.count:,}" if run.count > LISTED else ""
    return as_html(list(columns), rows, f"Clients{more}", text=("role",))


def cluster_table(run: Run) -> str:
    """The clusters that a run found, the largest first."""
    if run.found is None:
        return '<p class="empty">This method looks for no clusters.</p>'
    names, sizes = np.unique(run.found[run.found >= 0], return_counts=True)
    header = ["cluster", "clients", f"mean {run.metric.column}", f"worst client {run.metric.unit}".strip()]
    header += [] if run.true_clusters is None else ["most frequent ground-truth cluster"]
    rows = [cluster_row(run, int(names[at]), run.found == names[at]) for at in np.argsort(-sizes, kind="stable")]
    return as_html(header, rows, "Clusters found, the largest first")


def cluster_row(run: Run, name: int, members: "np.typing.NDArray[np.bool_]") -> list[Cell]:
    """A cluster: its size, its clients' scores, and the ground truth that most of them share."""
    scored = run.scores[members][~np.isnan(run.scores[members])]
    worst = np.max if run.metric.lower_is_better else np.min
    row = [Cell(str(name)), Cell(f"{members.sum():,}", float(members.sum()))]
    row += [metric_cell(run.metric, float(f(scored)) if len(scored) else np.nan) for f in (np.mean, worst)]
    if run.true_clusters is None:
        return row
    names, counts = np.unique(run.true_clusters[members], return_counts=True)
    most = int(names[counts.argmax()])
    share = Cell(f"{most} ({counts.max() / counts.sum():.0%})", float(most))
    return [*row, Cell(NOTHING) if most < 0 else share]


def cluster_cell(clusters: "np.typing.NDArray[np.int64]", client: int) -> Cell:
    """The cluster of a client."""
    return Cell(NOTHING) if clusters[client] < 0 else Cell(str(clusters[client]), float(clusters[client]))


def metric_cell(metric: Metric, value: float) -> Cell:
    """A value of the main metric: a share in percent."""
    shown = f"{metric.scale * value:.2f}" if metric.unit == "%" else f"{metric.scale * value:.4g}"
    return Cell(NOTHING) if np.isnan(value) else Cell(shown, value)


def as_html(header: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str, text: Sequence[str] = ()) -> str:
    """A table that a script makes sortable; columns named in `text` are words."""
    is_text = [name in text for name in header]
    heads = "".join(
        f'<th scope="col"{text_class(words)}>{escape(name)}</th>' for name, words in zip(header, is_text, strict=True)
    )
    body = "".join(
        f'<tr><th scope="row">{escape(row[0].shown)}</th>'
        + "".join(td(cell, words) for cell, words in zip(row[1:], is_text[1:], strict=True))
        + "</tr>\n"
        for row in rows
    )
    return (
        f'<table class="data sortable"><caption><span>{escape(caption)}</span></caption>\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}</tbody></table>"
    )


def td(cell: Cell, is_text: bool) -> str:
    """A cell of a table's body."""
    kind = ' class="best"' if cell.is_best else text_class(is_text)
    sorts_as_shown = is_text or (not cell.spread and cell.shown.replace(".", "", 1).isdigit())
    value = "" if sorts_as_shown else f' data-value="{"" if cell.value is None else repr(cell.value)}"'
    spread = f' <span class="spread">{cell.spread}</span>' if cell.spread else ""
    return f"<td{kind}{value}>{escape(cell.shown)}{spread}</td>"


def text_class(is_text: bool) -> str:
    return ' class="text"' if is_text else ""


def markdown_table(series: Sequence[Series]) -> str:
    """The results in Markdown."""
    return markdown_results(outcomes_of(series)) + "\n"


def latex_table(series: Sequence[Series]) -> str:
    """The results in LaTeX (booktabs), the best of each column in bold."""
    header, rows = results(series)
    lines = [" & ".join(escape_latex(name) for name in header), *(" & ".join(map(latex_cell, row)) for row in rows)]
    body = [f"{line} \\\\" for line in lines]
    top = [r"% \usepackage{booktabs}", f"\\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", r"\toprule"]
    return "\n".join([*top, body[0], r"\midrule", *body[1:], r"\bottomrule", r"\end{tabular}", ""])


def latex_cell(cell: Cell) -> str:
    shown = f"\\textbf{{{escape_latex(cell.shown)}}}" if cell.is_best else escape_latex(cell.shown)
    return f"{shown} {escape_latex(cell.spread)}" if cell.spread else shown


def escape_latex(words: str) -> str:
    """Words with LaTeX's special characters escaped."""
    replace: Callable[[str], str] = lambda c: SPECIAL.get(c, f"\\{c}" if c in "&%$#_{}" else c)  # noqa: E731
    return "".join(map(replace, words))
