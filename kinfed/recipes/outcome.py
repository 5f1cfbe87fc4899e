"""What became of a recipe: every cell's numbers beside the published ones, and whether its claims hold."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import mean

from kinfed.config import Config
from kinfed.recipes.cells import Cell
from kinfed.recipes.measures import MEASURES, Measure, Run
from kinfed.recipes.recipe import Claim, Recipe
from kinfed.recipes.verdict import Found

Runs = Callable[[Config], Run | None]  # the run of a config, if it ended
HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "not known"


@dataclass(frozen=True)
class Result:
    """One cell: its numbers, or why there are none."""

    cell: Cell
    found: tuple[Found, ...]
    seeds: tuple[int, ...]
    runs: tuple[Run, ...]
    state: str = ""  # why there are no numbers


@dataclass(frozen=True)
class Outcome:
    """All cells of a recipe."""

    recipe: Recipe
    results: tuple[Result, ...]
    quick: bool = False

    def claims(self) -> Iterator[tuple[Claim, str, str, str]]:
        """Each claim in each column and protocol: (claim, column, protocol, holds or not)."""
        for claim in self.recipe.claims:
            for column in claim.columns or self.recipe.columns:
                for protocol in claim.protocols or self.recipe.protocols:
                    yield claim, column, protocol, self.judged(claim, column, protocol)

    def judged(self, claim: Claim, column: str, protocol: str) -> str:
        """Whether a claim holds."""
        better, than = (self.main(row, column, protocol) for row in (claim.better, claim.than))
        if better is None or (claim.than and than is None):
            return UNKNOWN
        return HOLDS if better - (than or 0.0) >= claim.by else FAILS

    def main(self, row: str, column: str, protocol: str) -> float | None:
        """The main number of a cell."""
        for result in self.results:
            cell = result.cell
            if (cell.row.name, cell.column.name) == (row, column) and protocol in cell.protocols:
                return result.found[self.recipe.measures.index(self.recipe.main)].mean if result.found else None
        return None


def result_of(recipe: Recipe, cell: Cell, seeds: Sequence[int], runs: Runs, state: str) -> Result:
    """The numbers of a cell from those of its runs that ended; of a sweep the variant with the best main number."""
    measures = [MEASURES[name] for name in recipe.measures]
    main = recipe.measures.index(recipe.main)
    if not all(ended_of(variant, seeds, runs) for variant in cell.variants):
        return Result(cell, (), (), (), state or "not run")
    sign = -1 if measures[main].lower_is_better else 1
    tried = [(variant, numbers_of(variant, measures, seeds, runs)) for variant in cell.variants]
    variant, numbers = max(tried, key=lambda each: mean(sign * x for x in each[1][main]) if each[1][main] else -inf)
    ended = ended_of(variant, seeds, runs)
    printed = cell.printed or (None,) * len(measures)
    found = tuple(Found(m, p, n, cell.incomparable) for m, p, n in zip(measures, printed, numbers, strict=True))
    return Result(cell, found, tuple(seed for seed, _ in ended), tuple(run for _, run in ended))


def ended_of(config: Config, seeds: Sequence[int], runs: Runs) -> list[tuple[int, Run]]:
    """The seeds whose run of this config has ended, and these runs."""
    return [(seed, run) for seed in seeds if (run := runs(replace(config, seed=seed)))]


def numbers_of(
    config: Config, measures: Sequence[Measure], seeds: Sequence[int], runs: Runs
) -> list[tuple[float, ...]]:
    """For each measure its numbers over the seeds that have them."""
    numbers: list[list[float]] = [[] for _ in measures]
    for seed in seeds:
        mine = replace(config, seed=seed)
        run = runs(mine)
        for into, measure in zip(numbers, measures, strict=True):
            value = measure.of(run, mine, runs(reference(mine, measure))) if run else None
            into += [] if value is None else [value]
    return [tuple(each) for each in numbers]


def reference(config: Config, measure: Measure) -> Config:
    """The run that a measure divides by: the same clients and training, another method with its defaults."""
    return replace(config, method=measure.over or config.method, methods={} if measure.over else config.methods)


def references(recipe: Recipe, config: Config) -> Iterator[Config]:
    """All runs that a run's numbers are divided by."""
    others = {MEASURES[name].over: MEASURES[name] for name in recipe.measures if MEASURES[name].over}
    return (reference(config, measure) for measure in others.values())
