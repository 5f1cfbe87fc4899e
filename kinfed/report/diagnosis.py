"""What a reader should know of these runs before trusting them, from what the runs wrote alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np

from kinfed.comparison.outcomes import name_population
from kinfed.methods import FAMILIES
from kinfed.quality import Metric
from kinfed.report.run_views import find_related, measure_pairs
from kinfed.report.series import Series, curve_of, main_metric, metrics_by
from kinfed.runs.reader import TRAINS, Run
from kinfed.runs.run_tables import Numbers

Kind = Literal["warning", "note", "good"]
CHANCE = 0.05  # that a client is named who does not lose
LISTED = 5  # clients that are named
OVERLAP = 0.05  # share of unrelated pairs as near as related ones from which on clusters count as fragile
GAP = 20.0  # percentage points between the mean and the worst decile
RISING = 0.5  # percentage points over the last fifth of the rounds


class Verdict(NamedTuple):
    """A sentence on one method; `detail` is what methods of which the same is said differ in."""

    kind: Kind
    says: str
    detail: str = ""


@dataclass(frozen=True)
class Finding:
    """A sentence, the methods of which it is said, and whether it warns."""

    kind: Kind
    methods: str
    says: str


def find_all(series: Sequence[Series]) -> list[Finding]:
    """All findings, warnings first; methods of which the same is said share one."""
    together: dict[tuple[Kind, str], list[str]] = {}
    for one in series:
        for kind, says, detail in (*judge_training(one), *judge_clusters(one), *judge_losses(one, series)):
            together.setdefault((kind, says), []).append(f"{one.name} ({detail})" if detail else one.name)
    found = [Finding(kind, ", ".join(methods), says) for (kind, says), methods in together.items()]
    return sorted(found, key=lambda finding: ("warning", "note", "good").index(finding.kind))


def judge_training(one: Series) -> Iterator[Verdict]:
    """Whether its curve still rises or has fallen, and whether some clients are served badly."""
    metric = metrics_by(main_metric([one]))[0]
    curve = curve_of(one, metric)
    if curve is None:
        return
    values = curve.mean if not metric.lower_is_better else -curve.mean
    small = RISING if metric.unit == "%" else 0.02 * abs(float(values[-1]))
    before = float(values[max(0, len(values) - 1 - max(1, len(values) // 5))])
    if len(values) > 4 and values[-1] - before > small:
        gain = f"+{metric_gap(metric, float(values[-1]) - before)}"
        yield Verdict("note", "still improving over the last fifth of the rounds: train for more", gain)
    if values.max() - values[-1] > 10 * small:
        fell = f"−{metric_gap(metric, float(values.max() - values[-1]))}"
        yield Verdict("warning", "ends far below its best round: training is unstable; lower training.lr", fell)
    worst = curve_of(one, metrics_by(main_metric([one]))[1])
    if metric.unit == "%" and worst is not None and curve.mean[-1] - worst.mean[-1] > GAP:
        ends = f"{worst.mean[-1]:.1f} % against {curve.mean[-1]:.1f} %"
        yield Verdict("warning", "some clients are served badly: the worst tenth is far below the mean", ends)


def metric_gap(metric: Metric, gap: float) -> str:
    """A difference in words."""
    return f"{gap:.1f} points" if metric.unit == "%" else f"{gap:.3g} {metric.title.lower()}"


def judge_clusters(one: Series) -> Iterator[Verdict]:
    """How far its clusters can be trusted; first what the method says itself."""
    first = one.runs[0]
    if first.diagnosis:
        yield Verdict("warning" if "fragile" in first.diagnosis else "note", first.diagnosis)
    if first.found is None:
        return
    counts = sorted({len(np.unique(run.found[run.found >= 0])) for run in one.runs if run.found is not None})
    if counts == [1]:
        yield Verdict("note", "one cluster found: all clients are served the same model")
        return
    if len(counts) > 1:
        numbers = f"{counts[0]} to {counts[-1]}"
        yield Verdict("warning", "clusters are fragile: how many there are depends on the seed", numbers)
    share = max((overlap_of(run) or 0.0) for run in one.runs)
    if share > OVERLAP:
        some = f"{share:.0%} of them"
        yield Verdict("warning", "clusters are fragile: unrelated pairs of clients are as near as related ones", some)
    yield from judge_sizes(first)


def judge_sizes(run: Run) -> Iterator[Verdict]:
    """Clusters of one client, and clusters that still change."""
    found = run.found if run.found is not None else np.zeros(0, np.int64)
    sizes = np.unique(found[found >= 0], return_counts=True)[1]
    alone = int((sizes == 1).sum())
    if alone:
        yield Verdict("note", "some clusters have one client, which trains alone", f"{alone} of {len(sizes)}")
    last, rounds = run.clusters[-1][0], int(run.rounds["round"][-1])
    if len(run.clusters) > 1 and rounds >= 5 and last > rounds - max(1, rounds // 5):
        before = run.clusters[-2][1]
        moved = int((before != found).sum()) if len(before) == len(found) else 0
        yield Verdict("warning", "clusters are fragile: they still change", f"{moved} clients in round {last}")


def overlap_of(run: Run) -> float | None:
    """The share of unrelated pairs that are as near as nine tenths of the related ones; None where it is not known."""
    measured = measure_pairs(run)
    if measured is None or (related := find_related(run)) is None:  # of many clients no matrix is made
        return None
    pairs = np.triu(~np.isnan(measured[0]), 1)
    near, far = measured[0][pairs & related], measured[0][pairs & ~related]
    return float((far <= np.quantile(near, 0.9)).mean()) if len(near) and len(far) else None


def judge_losses(one: Series, series: Sequence[Series]) -> Iterator[Verdict]:
    """Which clients lose by being clustered: they did better with one model for all, or alone, beyond chance."""
    if one.runs[0].found is None or main_metric([one]).unit != "%":
        return
    safe = []
    for rival, name in find_rivals(series):
        pairs = [(run, other) for run in one.runs for other in rival.runs if have_same_clients(run, other)]
        several = len(pairs) > 1
        losers = [
            f"{client}{f' of seed {run.seed}' * several} (−{points:.0f})"
            for run, other in pairs
            for client, points in find_losers(run, other)
        ]
        if losers:
            more = f" and {len(losers) - LISTED} more" if len(losers) > LISTED else ""
            says = f"these clients lose by being clustered, in points against {name}"
            yield Verdict("warning", f"{says}: {', '.join(losers[:LISTED])}{more}")
        safe += [name] if pairs and not losers else []
    if safe:
        yield Verdict("good", f"no client loses by being clustered, beyond chance, against {' or '.join(safe)}")


def find_rivals(series: Sequence[Series]) -> Iterator[tuple[Series, str]]:
    """The best method with one model, and local training, where the report has them."""
    metric = main_metric(series)
    single = [one for one in series if one.runs[0].method in FAMILIES["one model"].papers]
    ranked = sorted(
        single, key=lambda one: -metric.gain(float(np.nanmean([run.final(metric.name) or 0 for run in one.runs])))
    )
    yield from ((one, one.name) for one in ranked[:1])
    yield from ((one, "training alone") for one in series if one.runs[0].method == "local")


def have_same_clients(run: Run, other: Run) -> bool:
    """Whether two runs have the same clients with the same samples."""
    return name_population(run) == name_population(other) and run.seed == other.seed and run.count == other.count


def find_losers(run: Run, other: Run) -> list[tuple[int, float]]:
    """Training clients that do worse than in the other run beyond chance, and by how many percentage points.

    Chance is the binomial error of both test accuracies; the more clients are compared, the more it must be exceeded.
    """
    samples = count_tests(run)
    mine, theirs = run.scores, other.scores
    compared = np.isin(run.roles, TRAINS) & ~np.isnan(mine) & ~np.isnan(theirs) & (samples > 0)
    middle = (mine + theirs) / 2
    error = np.sqrt(2 * np.maximum(middle * (1 - middle), 0.25 / np.maximum(samples, 1)) / np.maximum(samples, 1))
    limit = NormalDist().inv_cdf(1 - CHANCE / max(1, int(compared.sum())))
    gap = np.where(compared, theirs - mine, 0.0)
    losers = np.flatnonzero(compared & (gap > limit * error))
    return sorted(((int(c), 100 * float(gap[c])) for c in losers), key=lambda each: -each[1])


def count_tests(run: Run) -> Numbers:
    """How many test samples each client has; 0 for one that was not scored."""
    every = np.zeros(run.count)
    every[run.clients.whole("client", 0)] = run.clients["test_samples"]
    return np.nan_to_num(every)
