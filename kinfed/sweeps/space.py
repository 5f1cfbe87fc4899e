"""What a sweep varies: lists of values, ranges, and the points of a grid or of a random search.

A word `key=v1,v2` is an axis of values; `key=0.001..0.1` is a range to draw from, log-uniform, or uniform with a
`:linear` behind it; all other words are settings of every run. Commas in brackets or quotes part nothing.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from kinfed.config import Table
from kinfed.config.toml import override, parse_value, shorten_keys, split_key
from kinfed.data.partitions.split import generator
from kinfed.errors import ConfigError

OPENS, CLOSES, QUOTES = "[{", "]}", "\"'"
REFUSED = {
    "seed": "--seeds 0-4",
    "seeds": "--seeds 0-4",
    "compare": "method=fedavg,flt",
    "data.selection": "--validation 0.2",
}
DRAWS = 50  # for each point that is wanted: so often a random search may draw one that it has
Point = dict[str, object]  # dotted key -> value


@dataclass(frozen=True)
class Range:
    """Numbers between two ends."""

    low: float
    high: float
    is_linear: bool = False
    is_whole: bool = False

    def draw(self, rng: np.random.Generator) -> float | int:
        """A number of the range, rounded to four digits."""
        more = 0.5 if self.is_whole else 0.0  # whole numbers have the part of the scale that is rounded to them
        scale, back = (float, float) if self.is_linear else (math.log, math.exp)
        number = back(rng.uniform(scale(self.low - more), scale(self.high + more)))
        return min(max(round(number), int(self.low)), int(self.high)) if self.is_whole else float(f"{number:.4g}")


@dataclass(frozen=True)
class Axis:
    """A key and what it is set to."""

    key: str
    values: tuple[object, ...] = ()
    range: Range | None = None

    def draw(self, rng: np.random.Generator) -> object:
        """One of its values."""
        return self.range.draw(rng) if self.range else self.values[int(rng.integers(len(self.values)))]


@dataclass(frozen=True)
class Space:
    """The words of a sweep over a config's table."""

    base: Table
    words: tuple[str, ...]

    @property
    def axes(self) -> list[Axis]:
        """What is varied."""
        return [axis for word in self.words if (axis := parse_axis(word))]

    @property
    def fixed(self) -> Table:
        """The table of all settings that are not varied."""
        return self.settings({})

    def settings(self, point: Point) -> Table:
        """The table of a point; words go over each other in the order in which they came."""
        table = self.base
        for word in self.words:
            key, _, text = word.partition("=")
            path = split_key(key, word)
            if parse_axis(word) is None:
                table = override(table, path, parse_value(text.strip()))
            elif ".".join(path) in point:
                table = override(table, path, point[".".join(path)])
        return table

    def points(self, draws: int) -> list[Point]:
        """All points of the grid, or so many random ones; each once. More draws begin with the same points."""
        axes = self.axes
        if not axes:
            raise ConfigError(
                "nothing to sweep: wanted a key with several values, as in training.lr=0.01,0.03,0.1, or a range with "
                "--random 20, as in training.lr=0.001..0.1"
            )
        if not draws and (ranged := next((axis for axis in axes if axis.range), None)):
            raise ConfigError(f"{ranged.key} is a range: say with --random N how many points are drawn, or list values")
        self._refuse_idle(axes)
        found: dict[str, Point] = {}
        for point in draw_points(axes, draws) if draws else list_points(axes):
            own = self._prune(point)
            found.setdefault(json.dumps(own, default=str), own)
            if len(found) == draws:
                break
        return list(found.values())

    def _prune(self, point: Point) -> Point:
        """The point without settings of methods that it does not run."""
        method = str(point.get("method", self._method))
        return {k: v for k, v in point.items() if not k.startswith("methods.") or k.startswith(f"methods.{method}.")}

    @property
    def _method(self) -> str:
        """The method of points that name none."""
        return str(self.fixed.get("method", "flt"))

    def _refuse_idle(self, axes: Sequence[Axis]) -> None:
        """Raises where a setting is varied of a method that no point runs."""
        methods = next((list(map(str, axis.values)) for axis in axes if axis.key == "method"), [self._method])
        for key in (axis.key for axis in axes if axis.key.startswith("methods.")):
            if not key.startswith(tuple(f"methods.{method}." for method in methods)):
                raise ConfigError(f"{key} changes nothing: the sweep runs {', '.join(methods)}; set method, or drop it")


def list_points(axes: Sequence[Axis]) -> Iterator[Point]:
    """The grid, the last axis the fastest."""
    for values in product(*(axis.values for axis in axes)):
        yield dict(zip((axis.key for axis in axes), values, strict=True))


def draw_points(axes: Sequence[Axis], count: int) -> Iterator[Point]:
    """Random points; the n-th is the same however many are wanted."""
    for number in range(DRAWS * count):
        yield {axis.key: axis.draw(generator(0, "sweep", axis.key, number)) for axis in axes}


def parse_axis(word: str) -> Axis | None:
    """The axis that a word of the command line is; None where it sets one value."""
    key, equals, text = word.partition("=")
    name = ".".join(split_key(key, word))
    texts = [part.strip() for part in split_outside(text)]
    found = parse_range(text.strip()) if equals else None
    if found is None and len(texts) < 2:
        return None
    if name in REFUSED:
        raise ConfigError(f"{name} is not swept: use {REFUSED[name]}")
    if found:
        return Axis(name, range=found)
    values = tuple(parse_value(part) for part in texts if part)
    if len(set(map(repr, values))) < len(values):
        raise ConfigError(f"{name}: wanted every value once, got '{text}'")
    return Axis(name, values)


def split_outside(text: str) -> list[str]:
    """The parts of a text between commas that are not in brackets or quotes."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if sign in QUOTES and quote in ("", sign):
            quote = "" if quote else sign
        depth += 0 if quote else (sign in OPENS) - (sign in CLOSES)
        if sign == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def parse_range(text: str) -> Range | None:
    """The range that a text is, as in 0.001..0.1 or 1..10:linear; None where it is none."""
    low, dots, rest = text.partition("..")
    high, _, scale = rest.partition(":")
    ends = [parse_value(low), parse_value(high)]
    if not dots or not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends):
        return None
    first, last = (float(str(end)) for end in ends)
    if scale not in ("", "log", "linear") or not -math.inf < first < last < math.inf:
        raise ConfigError(f"wanted a range as in 0.001..0.1 or 1..10:linear, the lower end first, got '{text}'")
    if scale != "linear" and first <= 0:
        raise ConfigError(f"a range is log-uniform, and needs ends above 0, got '{text}': write {low}..{high}:linear")
    return Range(first, last, scale == "linear", all(isinstance(end, int) for end in ends))


def name_points(points: Sequence[Point]) -> list[str]:
    """Each point in words, with keys as short as they can be."""
    short = shorten_keys(list(dict.fromkeys(key for point in points for key in point)))
    return [", ".join(f"{short[key]}={value}" for key, value in point.items()) for point in points]
