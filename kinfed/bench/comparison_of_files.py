"""Two files of `kinfed bench --json` side by side: what became slower."""

import json
from pathlib import Path

from kinfed.errors import ConfigError

HEADER = ("workload", "contender", "s a round before", "now", "× plain before", "now", "times as fast")
SLOWER = 0.9  # times as fast as before, from which on it is called slower
Timings = dict[tuple[str, str], dict[str, float]]


def compare_files(before: Path, now: Path) -> tuple[list[tuple[str, ...]], bool]:
    """A table of all that both files have, and whether kinfed became slower anywhere.

    Where both raced the plain loop, "× plain" is compared, which hardly depends on what else a machine does.
    """
    old, new = read_timings(before), read_timings(now)
    both = [key for key in old if key in new]
    if not both:
        raise ConfigError(f"{before} and {now} have no workload and contender in common")
    table = [make_row(key, old[key], new[key]) for key in both]
    is_slower = any(key[1].startswith("kinfed") and times_as_fast(old[key], new[key]) < SLOWER for key in both)
    return [HEADER, *table], is_slower


def read_timings(file: Path) -> Timings:
    """What a file holds of each workload and contender that took part."""
    try:
        timings = json.loads(file.read_text(encoding="utf-8"))["timings"]
        return {(t["workload"], t["contender"]): t for t in timings if t["rounds"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--compare {file}: wanted a file of kinfed bench --json, {error}") from error


def times_as_fast(before: dict[str, float], now: dict[str, float]) -> float:
    """By the plain loop where both have raced it, else by seconds."""
    if before.get("speed") and now.get("speed"):
        return now["speed"] / before["speed"]
    return before["median"] / now["median"]


def make_row(key: tuple[str, str], before: dict[str, float], now: dict[str, float]) -> tuple[str, ...]:
    """One contender on one workload as cells."""
    ratio = times_as_fast(before, now)
    speeds = ("–" if not t.get("speed") else f"{t['speed']:.2f}" for t in (before, now))
    verdict = f"{ratio:.2f}" + (" slower" if ratio < SLOWER else "")
    return (*key, f"{before['median']:.3f}", f"{now['median']:.3f}", *speeds, verdict)
