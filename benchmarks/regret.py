"""The regret of each method by kind of heterogeneity: the best accuracy of a row minus the method's, or its error
minus the least one.

    python -m benchmarks.regret --data-dir DATA --device cuda --jobs 8 --out regret.jsonl     # the whole table
    python -m benchmarks.regret --data-dir DATA --only mnist-iid '*-clients-*' --seeds 0 1 --methods fedavg auto
    python -m benchmarks.regret --show --out regret.jsonl        # the table of what has run

Each run is a line of --out as soon as it ends, and runs that are there already are not run again. Methods that need
a number of clusters get the true one, and 5 where nothing is planted; all average those who took part. The
reference rows know the true clusters (`oracle`), or have all samples in one place (`centralised`: as many passes over
them as the federation makes, in batches five times as large with five times the step); they count in no regret.

On one GPU many small runs share it best under NVIDIA's Multi-Process Service (`nvidia-cuda-mps-control -d`).
"""

import argparse
import json
import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from benchmarks.regret_cases import CASES, Case
from kinfed.data import Dataset, Population, build_population, load
from kinfed.experiment import Evaluation, Experiment
from kinfed.method import Method
from kinfed.methods import CFL, FLHC, FLT, IFCA, REPA, Auto, Centralised, FedAvg, FedAvgFT, FedPer, FeSEM, Local, Oracle
from kinfed.methods import METHODS as REGISTERED
from kinfed.models import make_model
from kinfed.registry import explain_unknown
from kinfed.relatedness import Calibrated
from kinfed.signatures import EmbeddingStatistics, PartMeans, Pretraining
from kinfed.training import LocalTraining

REFERENCES = ("oracle", "centralised")
METHODS = ("fedavg", "fedavg_ft", "local", "flt", "fesem", "ifca", "repa", "cfl", "flhc", "fedper", "auto")
GIVEN = {  # the others that are given the number of clusters, and their name for it
    **dict.fromkeys(("fedgroup", "clove", "wd", "pca_km_hc", "fedsoft", "flsc"), "clusters"),
    **dict.fromkeys(("fedem", "fedrc"), "components"),
}
OWN: dict[str, dict[str, Any]] = {  # where a default would leave a method no choice but FedAvg
    "lg_fedavg": {"shared_tensors": 2},  # the last layer: an MLP has but two
    "feddrift": {"first": "own"},  # clients differ from the start
}
PUBLIC = {"flis_dc": 0.05, "flis_hc": 0.05}  # the share of test samples that the server needs: nobody is tested on them
ENCODERS = {"mnist": "fashion_mnist", "fashion_mnist": "mnist", "cifar10": "cifar100"}  # others: fashion_mnist
LOCAL = LocalTraining(epochs=2, batch_size=20, lr=0.05)
LOCAL_OF = {"lenet5": replace(LOCAL, lr=0.03)}
LOCAL_OF_NUMBERS = replace(LOCAL, lr=0.02)  # squared errors have steeper gradients
MEANS = {  # of the channels, and their deviations; a white background else makes training unstable
    "cifar10": ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
    "femnist": ((0.962,), (0.163,)),
}
PARTS = 3  # as many pieces of work for each process at least: some methods take far longer than others
LARGER = 5  # batches of centralised training


def true_clusters(population: Population) -> Tensor:
    """The planted clusters: [clients]; one for all where none are."""
    planted = population.true_clusters
    return torch.zeros(population.clients, dtype=torch.long) if planted is None else planted


def make_method(name: str, case: Case, population: Population, data_dir: str, seed: int) -> Method[object]:
    """The method; one that needs a number of clusters gets the true one."""
    model = make_model(case.model, tuple(population.x.shape[1:]), population.classes, seed, task=case.task)
    mean, std = MEANS.get(case.dataset, ((), ()))
    model = replace(model, mean=mean, std=std)
    local = LOCAL_OF.get(case.model, LOCAL) if case.task.has_classes() else LOCAL_OF_NUMBERS
    source = ENCODERS.get(case.dataset, "fashion_mnist")
    planted = int(true_clusters(population).max()) + 1
    clusters = planted if planted > 1 else 5
    images = PartMeans(pretraining=Pretraining(source, data_dir, epochs=10, samples=20_000))
    encoder = images if case.task.has_classes() else PartMeans()  # of tables: random features
    makers: dict[str, Callable[[], Method[Any]]] = {
        "fedavg": lambda: FedAvg(model, local),
        "fedavg_ft": lambda: FedAvgFT(model, local),
        "local": lambda: Local(model, local),
        "flt": lambda: FLT(model, local, signature=encoder, relatedness=Calibrated(), stale="exclude"),
        "fesem": lambda: FeSEM(model, local, clusters=clusters, stale="exclude"),
        "ifca": lambda: IFCA(model, local, clusters=clusters),
        "repa": lambda: REPA(model, local, signature=EmbeddingStatistics(), clusters=clusters),
        "cfl": lambda: CFL(model, local),
        "flhc": lambda: FLHC(model, local),
        "fedper": lambda: FedPer(model, local),
        "auto": lambda: Auto(model, local),
        "oracle": lambda: Oracle(model, local),
        "centralised": lambda: Centralised(
            model, replace(local, batch_size=LARGER * local.batch_size, lr=LARGER * local.lr)
        ),
    }
    if name in makers:
        return makers[name]()
    if name not in REGISTERED:
        raise SystemExit(explain_unknown(name, [*REGISTERED, *REFERENCES], "method"))
    given = {GIVEN[name]: clusters} if name in GIVEN else OWN.get(name, {})
    return cast("Callable[..., Method[Any]]", REGISTERED[name])(model, local, **given)


@cache
def load_once(name: str, data_dir: str) -> Dataset:
    return load(name, data_dir or None)


def make_population(case: Case, seed: int, data_dir: str, public: float = 0.0) -> Population:
    return build_population(
        load_once(case.dataset, data_dir).for_task(case.task), case.partition, seed, train_samples=case.train_samples,
        test_samples=case.test_samples, shift=case.shift, public_fraction=public,
        public_test=public > 0, public_train=public == 0,
    )  # fmt: skip


def measure(name: str, case: Case, population: Population, options: argparse.Namespace, seed: int) -> dict[str, object]:
    """One run: accuracy in per cent or the error, bytes, clusters."""
    began = time.perf_counter()
    method = make_method(name, case, population, options.data_dir, seed)
    run = Experiment(
        method, population, rounds=options.rounds, fraction=case.fraction, seed=seed, device=options.device,
        evaluation=Evaluation(every=10**6, signatures="none"),
    )  # fmt: skip
    summary = run.run()
    kept = {key: summary.get(key) for key in ("ari", "clusters", "bytes_down", "bytes_up")}
    seconds, metric = time.perf_counter() - began, case.task.metric()
    found, worst = summary[metric.name], np.inf if metric.lower_is_better else 0.0
    value = worst if found is None else metric.scale * float(found)
    return {metric.name: value, **kept, "seconds": round(seconds, 1)}


def run_case(job: tuple[str, int, argparse.Namespace]) -> None:
    """All methods on one draw of one case; each result is a line of the file."""
    name, seed, options = job
    torch.set_num_threads(options.threads)
    lines = [line for line in read_lines(options.out) if "error" not in line]  # what failed is tried again
    case, done = CASES[name], {(line["case"], line["seed"], line["method"]) for line in lines}
    wanted = [method for method in options.methods if (name, seed, method) not in done]
    shares = {PUBLIC.get(method, 0.0) for method in wanted}
    populations = {share: make_population(case, seed, options.data_dir, share) for share in shares}
    for method in wanted:
        result = {"case": name, "seed": seed, "method": method}
        try:
            result |= measure(method, case, populations[PUBLIC.get(method, 0.0)], options, seed)
        except Exception as error:  # one method that fails must not end the table; it is shown as such
            result |= {"error": f"{type(error).__name__}: {error}"[:300]}
        with options.out.open("a") as file:
            file.write(json.dumps(result) + "\n")


def list_jobs(options: argparse.Namespace) -> list[tuple[str, int, argparse.Namespace]]:
    """What is run at once: draws of cases, each in several parts where they are few for so many processes."""
    draws = [(name, seed) for seed in options.seeds for name in options.only]
    parts = max(1, PARTS * options.jobs // len(draws)) if options.jobs > 1 else 1
    chosen = [argparse.Namespace(**vars(options) | {"methods": options.methods[i::parts]}) for i in range(parts)]
    return [(name, seed, some) for some in chosen for name, seed in draws]


def read_lines(path: Path) -> Iterator[dict[str, object]]:
    if path.exists():
        yield from (json.loads(line) for line in path.read_text().splitlines())


Runs = dict[str, dict[int, dict[str, Any]]]  # method -> seed -> its line, and its gain: an error turned round


def find_runs(path: Path, methods: list[str]) -> dict[str, Runs]:
    """What has run, by case."""
    found: dict[str, Runs] = defaultdict(lambda: defaultdict(dict))
    for line in read_lines(path):
        if "error" not in line and line["method"] in methods:
            metric = CASES[str(line["case"])].task.metric()
            gain = metric.gain(cast("float", line[metric.name]))
            found[str(line["case"])][str(line["method"])][int(str(line["seed"]))] = line | {"gain": gain}
    return found


def show(path: Path, methods: list[str]) -> str:
    """The table of accuracies and of regrets, as Markdown; the methods of a row are compared on seeds all have."""
    found = find_runs(path, methods)
    header = ["case", "seeds", *methods, "regret of auto", "bytes of auto ÷ FedAvg's"]
    return as_markdown(header, [show_row(name, found[name], methods) for name in CASES if name in found])


def show_by_method(path: Path, methods: list[str]) -> str:
    """A row for each method, the least mean regret first: its accuracies, and its regret, the mean over all cases.

    A method that failed in a case has no mean.
    """
    found = find_runs(path, methods)
    cases = [name for name in CASES if name in found]
    means = {case: {m: float(np.mean([run["gain"] for run in runs.values()])) for m, runs in found[case].items()}
             for case in cases}  # fmt: skip
    best = {case: max(mean for m, mean in means[case].items() if m not in REFERENCES) for case in cases}
    regret = {m: float(np.mean([best[case] - means[case].get(m, -np.inf) for case in cases])) for m in methods}
    rows = []
    for m in sorted(methods, key=lambda m: (m in REFERENCES, regret[m])):
        own = [[means[case][m]] if m in means[case] else [] for case in cases]
        cells = [show_cell(case, values, values == [best[case]]) for case, values in zip(cases, own, strict=True)]
        rows.append([m, *cells, "–" if np.isinf(regret[m]) else f"{regret[m]:.2f}"])
    return as_markdown(["method", *cases, "mean regret"], rows)


def as_markdown(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows))


def show_row(case: str, runs: Runs, methods: list[str]) -> list[str]:
    """The cells of one case; reference rows count in no regret."""
    rivals = [method for method in methods if method in runs and method not in REFERENCES]
    seeds = sorted(set.intersection(*(set(runs[method]) for method in rivals)))
    values = {m: [runs[m][seed]["gain"] for seed in seeds if seed in runs[m]] for m in methods if m in runs}
    means = {method: float(np.mean(values[method])) for method in rivals} if seeds else {}
    best = max(means.values(), default=np.nan)
    moved = {m: sum(run["bytes_down"] + run["bytes_up"] for run in runs[m].values()) / len(runs[m]) for m in rivals}
    return [
        case, str(len(seeds)), *(show_cell(case, values.get(m, []), means.get(m) == best) for m in methods),
        f"{best - means['auto']:.2f}" if "auto" in means else "–",
        f"{moved['auto'] / moved['fedavg']:.2f}" if {"auto", "fedavg"} <= set(moved) else "–",
    ]  # fmt: skip


def show_cell(case: str, gains: list[float], is_best: bool) -> str:
    """The mean over seeds, and their deviation: accuracies with one digit, errors with two."""
    if not gains:
        return "–"
    metric = CASES[case].task.metric()
    digits = 2 if metric.lower_is_better else 1
    text = f"{metric.gain(float(np.mean(gains))):.{digits}f}"
    text += f" ± {np.std(gains, ddof=1):.{digits}f}" if len(gains) > 1 else ""
    return f"**{text}**" if is_best else text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="", help="folder with the datasets")
    parser.add_argument("--only", nargs="*", default=["*"], help="some of the cases, by name or pattern")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument(
        "--methods",
        nargs="*",
        default=[*METHODS, *REFERENCES],
        help="or others of `kinfed list methods`; all: every one",
    )
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes: draws of cases, or parts of them, at once")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each")
    parser.add_argument("--out", type=Path, default=Path("regret.jsonl"))
    parser.add_argument("--show", action="store_true", help="only the table of what has run")
    parser.add_argument("--by-method", action="store_true", help="a row for each method, and its mean regret")
    options = parser.parse_args()
    options.methods = [*REGISTERED] if options.methods == ["all"] else options.methods
    options.only = [name for name in CASES if any(fnmatch(name, wanted) for wanted in options.only)]
    if not options.only:
        raise SystemExit(f"no such case; there are {', '.join(CASES)}")
    if not options.show:
        jobs = list_jobs(options)
        with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=None) as pool:
            for _ in pool.imap_unordered(run_case, jobs):
                pass
    print((show_by_method if options.by_method else show)(options.out, options.methods))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
