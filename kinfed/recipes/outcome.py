"""Outcomes of recipes: every cell's numbers beside the published ones, and whether claims hold."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import inf, isnan, nan
from statistics import mean
from typing import NamedTuple

from kinfed.config import Config
from kinfed.recipes.cells import Cell
from kinfed.recipes.costs import MACHINE, measure_costs
from kinfed.recipes.measures import MEASURES, Found, Measure, metric_after
from kinfed.recipes.recipe import Claim, Recipe
from kinfed.recipes.rules import OF_ALL_ROWS, RULES, Points, Shape
from kinfed.runs.reader import Run

Runs = Callable[[Config], Run | None]  # the run of a config, if it ended
HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "not run"
NO_DATA = "data not here"  # how the state of a cell begins that could not run


Numbers = Mapping[str, float]  # of one run, by measure; SECONDS and MACHINE too
SECONDS = "seconds"
AT_ROUND = "@"  # between a measure and a round
ROUND = "round"  # the axis of rounds
EVERY = ""  # the column of a claim that is about several at once


@dataclass(frozen=True)
class Result:
    """One cell: its numbers, or why there are none."""

    cell: Cell
    found: tuple[Found, ...]
    numbers: Mapping[int, Numbers] = field(default_factory=dict)  # by seed
    runs: tuple[Run, ...] = ()  # none where the numbers were kept
    state: str = ""  # why there are no numbers

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(self.numbers)

    @property
    def is_absent(self) -> bool:
        """Whether nothing was tried: it was not run, or its data are not here."""
        return not self.found and (self.state == UNKNOWN or self.state.startswith(NO_DATA))

    @property
    def seconds(self) -> float:
        """How long a run took, on average; 0 where that was not kept."""
        return mean_of(self.numbers, SECONDS, 0.0)


class Side(NamedTuple):
    """What a claim compares: a row in some columns, under a protocol, by a measure."""

    row: str
    columns: tuple[str, ...]
    protocol: str
    measure: str


@dataclass(frozen=True)
class Outcome:
    """All cells of a recipe."""

    recipe: Recipe
    results: tuple[Result, ...]
    quick: bool = False

    def claims(self) -> Iterator[tuple[Claim, str, str, str]]:
        """Each claim in each column, and protocol that its rows run under: (claim, column, protocol, holds or not)."""
        for claim in self.recipe.claims:
            columns = claim.columns or tuple(self.recipe.columns)
            at_once = claim.over_columns or self.is_along_columns
            for some in [columns] if at_once else [(column,) for column in columns]:
                for protocol in protocols_of(claim, self.recipe):
                    yield claim, EVERY if at_once else some[0], protocol, self.judge(claim, some, protocol)

    @property
    def is_along_columns(self) -> bool:
        """Whether it is a figure whose axis the columns are."""
        return self.recipe.figure is not None and self.recipe.figure.x != ROUND

    def judge(self, claim: Claim, columns: Sequence[str], protocol: str) -> str:
        """Whether a claim holds in these columns, by the seeds that both of two rows have."""
        own = Side(claim.better, tuple(columns), protocol, claim.measure or self.recipe.main)
        if not self.points(own, claim.over_columns):
            return UNKNOWN
        if claim.rule in OF_ALL_ROWS:
            others = [own._replace(row=row) for row in self.recipe.rows if row != own.row]
            shapes = [shape for other in others if (shape := self.compare(claim, own, other))]
            lacks = self.lacks_rows(columns, protocol)
        else:
            other = self.other_side(claim, own)
            if self.is_along_columns and not all(map(self.is_whole, [own, other] if other else [own])):
                return UNKNOWN
            shapes = [shape] if (shape := self.compare(claim, own, other)) else []
            lacks = not shapes
        if not all(RULES[claim.rule](shape) for shape in shapes):
            return FAILS
        return UNKNOWN if lacks else HOLDS

    def other_side(self, claim: Claim, own: Side) -> Side | None:
        """The other row of a claim, or the same elsewhere; None: zero."""
        if not claim.than:
            return None
        columns = (claim.than_column,) if claim.than_column else own.columns
        return Side(claim.than, columns, claim.than_protocol or own.protocol, claim.than_measure or own.measure)

    def compare(self, claim: Claim, own: Side, other: Side | None) -> Shape | None:
        """Two rows by the seeds that both have; None where there are none."""
        if other is None:
            return Shape(self.points(own, claim.over_columns), (), claim.by, claim.between)
        seeds = self.seeds_of(own) & self.seeds_of(other)
        mine, theirs = (self.points(side, claim.over_columns, seeds) for side in (own, other))
        return Shape(mine, theirs, claim.by, claim.between) if mine and theirs else None

    def is_whole(self, side: Side) -> bool:
        """Whether all cells of a row in these columns have numbers: else a peak may be where nothing was run."""
        return all(result.numbers for result in self.results_of(side))

    def lacks_rows(self, columns: Sequence[str], protocol: str) -> bool:
        """Whether a row of the paper that can be compared was not run in these columns: it may be above all others."""
        cells = [cell for row in self.recipe.rows for name in columns if (cell := self.result(row, name, protocol))]
        published = [result for result in cells if any(result.cell.printed) and not result.cell.incomparable]
        return not all(result.numbers for result in published or cells)

    def points(self, side: Side, mean_only: bool = False, seeds: Set[int] | None = None) -> Points:
        """A row's numbers as points: over rounds, over the columns of an axis, or one, of a column or of their mean."""
        found = {
            result.cell.column.name: numbers
            for result in self.results_of(side)
            if (numbers := {seed: own for seed, own in result.numbers.items() if seeds is None or seed in seeds})
        }
        if has_curves(self.recipe):
            return [point for numbers in found.values() for point in curve_of(numbers, side.measure)]
        values = {name: mean_of(numbers, side.measure, nan) for name, numbers in found.items()}
        known = {name: value for name, value in values.items() if not isnan(value)}
        if mean_only:
            return [(0.0, mean(known.values()))] if len(known) == len(side.columns) else []
        return sorted((self.recipe.columns[name].x or 0.0, value) for name, value in known.items())

    def seeds_of(self, side: Side) -> Set[int]:
        """The seeds that a row has in all of these columns where it was run."""
        each = [set(result.numbers) for result in self.results_of(side) if result.numbers]
        return set.intersection(*each) if each else set()

    def results_of(self, side: Side) -> list[Result]:
        """A row's cells in these columns, run or not."""
        return [result for name in side.columns if (result := self.result(side.row, name, side.protocol))]

    def result(self, row: str, column: str, protocol: str) -> Result | None:
        """The result of a cell."""
        for result in self.results:
            cell = result.cell
            if (cell.row.name, cell.column.name) == (row, column) and protocol in cell.protocols:
                return result
        return None


def has_curves(recipe: Recipe) -> bool:
    """Whether a recipe is a figure of lines over rounds."""
    return recipe.figure is not None and recipe.figure.kind == "lines" and recipe.figure.x == ROUND


def protocols_of(claim: Claim, recipe: Recipe) -> list[str]:
    """The protocols that a claim speaks of and that its rows run under."""
    better, than = recipe.rows[claim.better].under, recipe.rows[claim.than or claim.better].under
    asked = claim.protocols or tuple(recipe.protocols)
    return [name for name in asked if name in better and (claim.than_protocol or name) in than]


def result_of(recipe: Recipe, cell: Cell, seeds: Sequence[int], runs: Runs, state: str) -> Result:
    """The numbers of a cell from those of its runs that ended; of a sweep the variant with the best main number.

    A cell of several variants has the seeds of which all of them ended: others would compare them on other clients.
    """
    ended = [read_numbers(recipe, cell, variant, seeds, runs) for variant in cell.variants]
    whole = [seed for seed in ended[0] if all(seed in numbers for numbers in ended)]
    if not whole:
        return Result(cell, (), state=state or UNKNOWN)
    tried = [{seed: numbers[seed] for seed in whole} for numbers in ended]
    if cell.is_mean:
        numbers = average_variants(tried)
        all_runs = tuple(run for config in cell.configs(list(numbers)) if (run := runs(config)))
        return replace(judge_numbers(recipe, cell, numbers), runs=all_runs)
    sign = -1 if MEASURES[recipe.main].lower_is_better else 1
    best = max(range(len(tried)), key=lambda at: sign * mean_of(tried[at], recipe.main, -sign * inf))
    best_runs = [run for seed in whole if (run := runs(replace(cell.variants[best], seed=seed)))]
    return replace(judge_numbers(recipe, cell, tried[best]), runs=tuple(best_runs))


def average_variants(tried: Sequence[Mapping[int, Numbers]]) -> dict[int, Numbers]:
    """By seed the means over variants; a measure that only some variants have is the mean over those."""
    seeds = [seed for seed in tried[0] if all(seed in numbers for numbers in tried)]
    names = {name: None for numbers in tried for of_seed in numbers.values() for name in of_seed}
    return {
        seed: {
            name: mean(numbers[seed][name] for numbers in tried if name in numbers[seed])
            for name in names
            if any(name in numbers[seed] for numbers in tried)
        }
        for seed in seeds
    }


def judge_numbers(recipe: Recipe, cell: Cell, numbers: Mapping[int, Numbers]) -> Result:
    """A cell with these numbers beside the published ones."""
    printed = cell.printed or (None,) * len(recipe.measures)
    found = tuple(
        Found(MEASURES[name], p, values_of(numbers, name), cell.incomparable, cell.is_judged)
        for name, p in zip(recipe.measures, printed, strict=True)
    )
    return Result(cell, found, numbers)


def read_numbers(recipe: Recipe, cell: Cell, config: Config, seeds: Sequence[int], runs: Runs) -> dict[int, Numbers]:
    """What the runs of a config that ended have of each measure, by seed."""
    found: dict[int, Numbers] = {}
    for mine in (replace(config, seed=seed) for seed in seeds):
        if run := runs(mine):
            values = {name: measure_run(MEASURES[name], cell, run, mine, runs) for name in recipe.measures}
            known = {name: value for name, value in values.items() if value is not None}
            curves = read_curves(recipe, run, cell.row.round) if has_curves(recipe) else {}
            costs = {**measure_costs(recipe, cell, run, mine), SECONDS: run.seconds}
            costs |= {MACHINE: run.machine_seconds} if run.machine_seconds is not None else {}
            found[mine.seed] = {**known, **curves, **costs}
    return found


def measure_run(measure: Measure, cell: Cell, run: Run, config: Config, runs: Runs) -> float | None:
    """The number of a run at its end, or after the round at which its row is measured."""
    at = cell.row.round
    if not 0 < at < config.rounds:
        return measure.of(run, config, runs(reference(config, measure)))
    found = metric_after(run, at, measure.column)
    return None if found is None else measure.scale * found


def read_curves(recipe: Recipe, run: Run, until: int = 0) -> Numbers:
    """Each measure that has a column by round, by round; where it is given, until that round."""
    curved = [(name, column) for name in recipe.measures if (column := MEASURES[name].column)]
    return {
        f"{name}{AT_ROUND}{at:.0f}": MEASURES[name].scale * float(value)
        for name, column in curved
        for at, value in zip(run.rounds["round"], run.rounds.numbers.get(column, ()), strict=False)
        if not isnan(value) and not 0 < until < at
    }


def curve_of(numbers: Mapping[int, Numbers], measure: str) -> Points:
    """A measure over the rounds that all seeds have, as the mean over seeds."""
    begin = f"{measure}{AT_ROUND}"
    names = [name for name in next(iter(numbers.values())) if name.startswith(begin)]
    shared = [name for name in names if all(name in of_seed for of_seed in numbers.values())]
    return sorted((float(name.removeprefix(begin)), mean_of(numbers, name, nan)) for name in shared)


def values_of(numbers: Mapping[int, Numbers], name: str) -> tuple[float, ...]:
    """A measure over the seeds that have it."""
    return tuple(of_seed[name] for of_seed in numbers.values() if name in of_seed)


def mean_of(numbers: Mapping[int, Numbers], name: str, default: float) -> float:
    """The mean of a measure over seeds."""
    values = values_of(numbers, name)
    return mean(values) if values else default


def reference(config: Config, measure: Measure) -> Config:
    """The run that a measure divides by: the same clients and training, another method with its defaults."""
    return replace(config, method=measure.over or config.method, methods={} if measure.over else config.methods)


def references(recipe: Recipe, config: Config) -> Iterator[Config]:
    """All runs that a run's numbers are divided by."""
    others = {MEASURES[name].over: MEASURES[name] for name in recipe.measures if MEASURES[name].over}
    return (reference(config, measure) for measure in others.values())
