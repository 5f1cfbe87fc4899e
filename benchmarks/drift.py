"""How soon does each method notice that clients' samples changed, and what does that give? Three kinds of drift.

    python benchmarks/drift.py [--data digits] [--seeds 5] [--methods a,b] [--kinds x,y] [--write]

Prints a Markdown table, means ± standard deviations over seeds; with --write it also goes into docs/drift.md. Twenty
clients of IID samples form five groups; some of them change before round 10 and some before round 20, of 30. Methods
that must be given the number of clusters get the number of concepts. --data mnist needs mnist.npz (KINFED_DATA).
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

from kinfed.config import Config, assemble, merge_tables, read
from kinfed.registry import explain_unknown

PAGE = Path(__file__).parents[1] / "docs" / "drift.md"
BEGIN, END = "<!-- written by benchmarks/drift.py: {} -->", "<!-- end of {} -->"
CHANGES = (10, 20)
STAGES = [[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 1, 1, 1, 0]]  # concepts of the groups; a change is never of most
Table = dict[str, object]
BASE: Table = {
    "rounds": 30,
    "fraction": 1.0,
    "model": "mlp_200",
    "partition": {"name": "iid", "clients": 20},
    "training": {"epochs": 2, "batch_size": 10, "lr": 0.1},
    "evaluation": {"metrics": "main"},
    "drift": {"change_rounds": list(CHANGES), "concepts": STAGES},
}
DATA: dict[str, Table] = {
    "digits": {"data": {"name": "digits"}},
    "mnist": {"data": {"name": "mnist", "train_samples": 100, "test_samples": 100}},
}
KINDS: dict[str, Table] = {
    "label_swap": {"pairs": [[1, 2]]},
    "rotation": {"degrees": [0, 180]},
    "new_classes": {"labels": [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]},
}
METHODS: dict[str, Table] = {
    "fedavg": {},
    "flt": {"dynamic": True, "signature": {"name": "part_means", "labels": True}},
    "ifca": {"clusters": 2},
    "fesem": {"clusters": 2},
    "cfl": {"after": 5, "rule": {"mean_below": 0.5, "some_above": 0.9, "gap": 0.55}},
    "feddrift": {"delta": 0.1, "step_rounds": 2},
    "oracle": {},
}
COLUMNS = {
    "accuracy": ("accuracy %, all rounds", 1),
    "last": ("last round %", 1),
    "changed": ("changed clients %", 1),
    "ari": ("ARI", 2),
    "drift_delay": ("noticed after", 1),
    "drift_delay_share": ("noticed %", 0),
    "drift_recovery": ("recovered after", 1),
    "drift_recovery_share": ("recovered %", 0),
    "megabytes": ("MB", 1),
}


def config_of(method: str, kind: str, data: str, seed: int) -> Config:
    """The config of one run."""
    table: Table = {"method": method, "seed": seed, "methods": {method: METHODS[method]}}
    for part in (BASE, DATA[data], {"drift": {"name": kind, **KINDS[kind]}}):
        table = merge_tables(table, part)
    return read(table)


def measure(config: Config) -> dict[str, float]:
    """The numbers of one run: means over rounds, changed clients and ARI from the first change on; and the end."""
    experiment = assemble(config)
    summary = experiment.run()
    found = {
        "accuracy": [metrics["accuracy"] for _, metrics in experiment.history],
        "changed": [m["accuracy_changed"] for _, m in experiment.history if "accuracy_changed" in m],
        "ari": [m["ari"] for done, m in experiment.history if "ari" in m and done > CHANGES[0]],
    }
    numbers = {name: mean(values) for name, values in found.items() if values}
    numbers |= {name: float(summary[name] or 0) for name in COLUMNS if name.startswith("drift") and name in summary}
    moved = sum(float(summary[name] or 0) for name in ("bytes_down", "bytes_up"))
    return numbers | {"last": float(summary["accuracy"] or 0), "megabytes": moved / 1e6}


def format_cell(name: str, runs: Sequence[Mapping[str, float]]) -> str:
    """Mean ± standard deviation over runs; a dash where a method has no such number."""
    scale = 100 if "%" in COLUMNS[name][0] else 1
    values = [scale * run[name] for run in runs if name in run]
    if not values:
        return "–"
    digits = COLUMNS[name][1]
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 and name != "megabytes" else ""
    return f"{mean(values):.{digits}f}{spread}"


def make_table(kind: str, data: str, seeds: int, methods: Sequence[str]) -> str:
    """One kind of drift: a row for each method."""
    lines = ["| method | " + " | ".join(title for title, _ in COLUMNS.values()) + " |"]
    lines.append("|---|" + "---|" * len(COLUMNS))
    for method in methods:
        runs = [measure(config_of(method, kind, data, seed)) for seed in range(seeds)]
        lines.append(f"| `{method}` | " + " | ".join(format_cell(name, runs) for name in COLUMNS) + " |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def write_table(name: str, table: str) -> None:
    """Puts a table between its marks on the page."""
    text, (begin, end) = PAGE.read_text(encoding="utf-8"), (mark.format(name) for mark in (BEGIN, END))
    before, _, rest = text.partition(begin)
    if not rest:
        before, rest = f"{text.rstrip()}\n\n### {name}\n\n", f"{end}\n"
    PAGE.write_text(f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=DATA, default="digits")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    for names, known in ((given.methods, METHODS), (given.kinds, KINDS)):
        for name in names.split(","):
            if name not in known:
                parser.error(explain_unknown(name, list(known), "name"))
    for kind in given.kinds.split(","):
        print(f"{kind}, {given.data}", flush=True)
        table = make_table(kind, given.data, given.seeds, given.methods.split(","))
        if given.write:
            write_table(f"{kind}, {given.data}", table)


if __name__ == "__main__":
    main()
