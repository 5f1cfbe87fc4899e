"""Which heterogeneity can each method see? ARI of every method on five kinds of planted clusters.

    python benchmarks/recovery.py --data digits --seeds 3 [--device cuda] [--methods a,b] [--kinds x,y] [--write]
    python benchmarks/recovery.py --configs FOLDER

Prints a Markdown table. With --write it also goes into docs/recovery.md, beside what recovery.toml says of the
expectations and of what each method is given (--seeds 0: nothing is measured, and only these are renewed). --configs
writes the config of every cell into a folder, for `kinfed run FOLDER/METHOD-KIND.toml`.
"""

import argparse
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from sklearn.cluster import AgglomerativeClustering

from kinfed.config import Config, assemble, flatten, make_population, merge_tables, read, to_toml
from kinfed.errors import KinfedError
from kinfed.methods import METHODS
from kinfed.metrics import agreement
from kinfed.registry import explain_unknown

PLAN = Path(__file__).with_suffix(".toml")
PAGE = Path(__file__).parents[1] / "docs" / "recovery.md"
REFERENCE = "(mean images)"  # a yardstick, not a method
FOUND, UNSEEN = 0.9, 0.2  # ARI from which on clusters are found, and up to which they are not seen
DIFFERS = " ≠"
Claim = Literal["finds", "partly", "blind", "no clusters"]
CLAIMS: tuple[Claim, ...] = ("finds", "partly", "blind", "no clusters")
Table = dict[str, object]
Cell = tuple[str, str]  # method, kind


@dataclass(frozen=True)
class Expectation:
    """What is claimed of a method on a kind, and why."""

    claim: Claim
    reason: str

    def __post_init__(self) -> None:
        if self.claim not in CLAIMS or not self.reason:
            raise ValueError(f"wanted one of {', '.join(CLAIMS)} and a reason, got {self.claim!r} and {self.reason!r}")


@dataclass(frozen=True)
class Kind:
    """One kind of heterogeneity: the part of a config that plants it."""

    says: str
    seeds: tuple[int, ...]
    config: Table


@dataclass(frozen=True)
class Given:
    """What a method is given, for all kinds alike."""

    knows: str = "nothing"
    rounds: int = 1
    settings: Table = field(default_factory=dict)
    training: Table = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """All of recovery.toml."""

    base: Table
    data: Mapping[str, Table]
    kinds: Mapping[str, Kind]
    given: Mapping[str, Given]
    expected: Mapping[Cell, Expectation]
    differs: Mapping[Cell, Expectation]  # what was measured instead, and why

    def missing(self) -> list[str]:
        """The cells that nothing was written down for."""
        every = [(method, kind) for method in METHODS for kind in self.kinds]
        return [" x ".join(cell) for cell in every if cell not in self.expected]

    def holds(self, cell: Cell) -> Claim:
        """What the code does by now: as expected, or as measured where that differs."""
        return (self.differs.get(cell) or self.expected[cell]).claim


def read_plan(path: Path = PLAN) -> Plan:
    """The plan in a TOML file."""
    whole = tomllib.loads(path.read_text(encoding="utf-8"))
    kinds = {name: Kind(t["says"], tuple(t["seeds"]), t["config"]) for name, t in whole["kinds"].items()}
    given = {name: Given(**table) for name, table in whole["given"].items()}
    said = (cells(whole[part], kinds) for part in ("expected", "differs"))
    return Plan(whole["base"], whole["data"], kinds, given, *said)


def cells(table: Mapping[str, Mapping[str, list[str]]], kinds: Iterable[str]) -> dict[Cell, Expectation]:
    """[METHOD] kind = [claim, reason] -> by method and kind; `all` stands for all kinds."""
    return {
        (method, kind): Expectation(*(row["all"] if "all" in row else row[kind]))  # type: ignore[arg-type]
        for method, row in table.items()
        for kind in (kinds if "all" in row else row)
    }


def config_of(plan: Plan, cell: Cell, seed: int, data: str = "digits", device: str = "cpu") -> Config:
    """The config of one cell: a user can run it with `kinfed run`."""
    method, kind = cell
    given = plan.given.get(method, Given())
    own = {"method": method, "seed": seed, "rounds": given.rounds, "training": given.training}
    own |= {"engine": {"device": device}, "methods": {method: given.settings}}
    table: Table = {}
    for part in (plan.base, plan.data[data], plan.kinds[kind].config, own):
        table = merge_tables(table, part)
    return read(dict(table))


def measure(config: Config) -> float | None:
    """The ARI of the clusters found with those planted; None where the method forms none."""
    return assemble(config).run().get("ari")


def reference(config: Config) -> float:
    """The ARI of Ward's linkage of mean images, given the number of clusters: what the pixels alone show."""
    population = make_population(config)
    if population.true_clusters is None:
        raise ValueError("wanted a population with planted clusters, got one without")
    means = torch.stack([population.x[rows].float().mean(0).flatten() for rows in population.train])
    found = AgglomerativeClustering(len(population.true_clusters.unique())).fit_predict(means.numpy())
    return agreement(torch.from_numpy(found), population.true_clusters)["ari"]


def verdict(found: Sequence[float | None]) -> Claim:
    """The claim that holds at every seed."""
    numbers = [ari for ari in found if ari is not None]
    if not numbers:
        return "no clusters"
    return "finds" if min(numbers) >= FOUND else "blind" if max(numbers) <= UNSEEN else "partly"


def shown(found: Sequence[float | None], expected: Claim) -> str:
    """A cell: the mean over seeds, the least one where they differ, and a sign where it is not as expected."""
    numbers = [ari for ari in found if ari is not None]
    if not numbers:
        return "–"
    mean, least = (f"{ari + 0:.2f}".replace("-0.00", "0.00") for ari in (sum(numbers) / len(numbers), min(numbers)))
    sign = "" if expected in ("partly", verdict(found)) else DIFFERS
    return (mean if mean == least else f"{mean} ({least})") + sign


def measured_row(plan: Plan, method: str, options: argparse.Namespace) -> str:
    """One line of the measured table."""
    line = [method if method == REFERENCE else f"`{method}`"]
    for kind in options.kinds:
        seeds = plan.kinds[kind].seeds[: options.seeds]
        cell = ("fedavg" if method == REFERENCE else method, kind)
        configs = [config_of(plan, cell, seed, options.data, options.device) for seed in seeds]
        found = [reference(c) if method == REFERENCE else measure(c) for c in configs]
        line.append(shown(found, "partly" if method == REFERENCE else plan.expected[cell].claim))
    return row(line)


def row(parts: Iterable[str]) -> str:
    return f"| {' | '.join(parts)} |"


def head(titles: Sequence[str]) -> list[str]:
    return [row(titles), "|---" * len(titles) + "|"]


def expectations(plan: Plan) -> str:
    """The table of what was expected."""
    rows = [row([f"`{m}`", *(plan.expected[m, kind].claim for kind in plan.kinds)]) for m in METHODS]
    return "\n".join([*head(["method", *plan.kinds]), *rows])


def reasons(plan: Plan, said: Mapping[Cell, Expectation]) -> str:
    """A list of claims with their reasons; kinds with the same are in one line."""
    lines = []
    for method in METHODS:
        kinds: dict[Expectation, list[str]] = {}
        for kind in plan.kinds:
            if (method, kind) in said:
                kinds.setdefault(said[method, kind], []).append(kind)
        parts = [f"{', '.join(names)}: **{one.claim}**, {one.reason}." for one, names in kinds.items()]
        several = [f"- `{method}`", *(f"  - {part}" for part in parts)]
        lines += several if len(parts) > 1 else [f"- `{method}`, {part}" for part in parts]
    return "\n".join(lines).replace(f"{', '.join(plan.kinds)}: ", "all kinds: ")


def gifts(plan: Plan) -> str:
    """The table of what each method is given."""
    rows = []
    for method, given in plan.given.items():
        settings = to_toml(flatten({method: dict(given.settings), "training": dict(given.training)}))
        keys = settings.replace(f"{method}.", "").replace('"', "").split("\n")
        rows.append(row([f"`{method}`", given.knows, str(given.rounds), " ".join(f"`{k}`" for k in keys if k)]))
    titles = ["method", "is given", "rounds", "settings under `[methods.NAME]`, and `training`"]
    return "\n".join([*head(titles), *rows])


def put(name: str, block: str) -> None:
    """Replaces what stands between the marks of this name on the page."""
    before, mark, rest = PAGE.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->")
    PAGE.write_text(f"{before}{mark}\n{block}\n\n{end}{after}", encoding="utf-8")


def get(name: str) -> str:
    """What stands between the marks of this name on the page."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    return rest.partition(f"<!-- end of {name} -->")[0].strip()


def renewed(table: str, rows: Mapping[str, str], plan: Plan) -> str:
    """The measured table with these rows in it; those of other methods stay."""
    old = {line.split("|")[1].strip(" `"): line for line in table.splitlines() if line.startswith("|")}
    lines = {name: rows.get(name) or old.get(name) for name in (*METHODS, REFERENCE)}
    return "\n".join([*head(["method", *plan.kinds]), *(line for line in lines.values() if line)])


def write_configs(plan: Plan, folder: Path, options: argparse.Namespace) -> None:
    """One file for each method and kind."""
    folder.mkdir(parents=True, exist_ok=True)
    for method in [name for name in options.methods if name != REFERENCE]:
        for kind in options.kinds:
            config = config_of(plan, (method, kind), plan.kinds[kind].seeds[0], options.data, options.device)
            (folder / f"{method}-{kind}.toml").write_text(to_toml(config.resolve()), encoding="utf-8")


def write_page(plan: Plan, data: str, rows: Mapping[str, str]) -> None:
    """Renews docs/recovery.md: these rows of the measured table, and all that the plan says."""
    put(f"measured {data}", renewed(get(f"measured {data}"), rows, plan))
    put("expected", expectations(plan))
    put("reasons", reasons(plan, plan.expected))
    put("given", gifts(plan))
    put("differs", reasons(plan, plan.differs))


def parsed(arguments: Sequence[str] | None, plan: Plan) -> argparse.Namespace:
    """The options on the command line."""
    methods, kinds = [*METHODS, REFERENCE], list(plan.kinds)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=list(plan.data), default="digits")
    parser.add_argument("--seeds", type=int, default=3, choices=range(7), help="so many of each kind's seeds")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--methods", type=lambda text: text.split(","), default=methods, help="all of them unless given"
    )
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=kinds, help=f"of {', '.join(kinds)}")
    parser.add_argument("--write", action="store_true", help="into docs/recovery.md too; of all kinds")
    parser.add_argument("--configs", type=Path, metavar="FOLDER")
    options = parser.parse_args(arguments)
    for names, there, what in ((options.methods, methods, "method"), (options.kinds, kinds, "kind")):
        for name in set(names) - set(there):
            parser.error(explain_unknown(name, there, what))
    if options.write and options.kinds != kinds:
        parser.error(f"--write needs all kinds, {', '.join(kinds)}: leave out --kinds")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    plan = read_plan()
    options = parsed(arguments, plan)
    if options.configs:
        return write_configs(plan, options.configs, options)
    rows: dict[str, str] = {}
    print("\n".join(head(["method", *options.kinds])), flush=True)
    for method in options.methods if options.seeds else ():
        rows[method] = measured_row(plan, method, options)
        print(rows[method], flush=True)
    if options.write:
        write_page(plan, options.data, rows)


if __name__ == "__main__":
    try:
        main()
    except KinfedError as error:  # no GPU, or no dataset
        sys.exit(f"error: {error}")
