"""What a race came to: a table for people, JSON for programs."""

from collections.abc import Sequence
from dataclasses import asdict

from kinfed.bench.race import ABOUT, YARDSTICK, Outcome, Plan
from kinfed.bench.workloads import WORKLOADS

HEADER = (
    "workload",
    "contender",
    "s a round",
    "least",
    "most",
    "ms a step",
    "× plain",
    "CPU s",
    "peak MB",
    "of bandwidth",
)


def table(outcomes: Sequence[Outcome], plan: Plan) -> list[tuple[str, ...]]:
    """A header and one row for each contender that took part, the fastest of a workload first."""
    took_part = [outcome for outcome in outcomes if not outcome.why]
    order = list(dict.fromkeys(outcome.workload for outcome in outcomes))
    return [
        HEADER,
        *(row(o, outcomes, plan) for o in sorted(took_part, key=lambda o: (order.index(o.workload), o.median))),
    ]


def row(outcome: Outcome, outcomes: Sequence[Outcome], plan: Plan) -> tuple[str, ...]:
    """One contender as cells."""
    speed = speed_of(outcome, outcomes)
    workload = WORKLOADS[outcome.workload].scaled(plan.scale)
    share = outcome.bandwidth_share(workload)
    return (
        outcome.workload, outcome.contender, f"{outcome.median:.3f}", f"{min(outcome.rounds):.3f}",
        f"{max(outcome.rounds):.3f}", f"{1000 * outcome.median / workload.steps_each:.3g}",
        "–" if speed is None else f"{speed:.2f}",
        "–" if outcome.cpu is None else f"{outcome.cpu:.3f}",
        "–" if outcome.peak is None else f"{outcome.peak / 2**20:.0f}", "–" if share is None else f"{share:.0%}",
    )  # fmt: skip


def speed_of(outcome: Outcome, outcomes: Sequence[Outcome]) -> float | None:
    """How many times as fast as the plain loop on the same workload; None if that did not take part."""
    for other in outcomes:
        if (other.workload, other.contender) == (outcome.workload, YARDSTICK) and other.rounds:
            return outcome.speed(other)
    return None


def left_out(outcomes: Sequence[Outcome]) -> list[str]:
    """One line for each contender that did not take part."""
    return [f"{o.workload}: {o.contender} ({ABOUT[o.contender]}) did not take part: {o.why}" for o in outcomes if o.why]


def as_json(outcomes: Sequence[Outcome], plan: Plan) -> dict[str, object]:
    """Everything that was measured, and how."""
    return {
        "plan": asdict(plan) | {"threads": plan.cores},
        "workloads": {o.workload: asdict(WORKLOADS[o.workload].scaled(plan.scale)) for o in outcomes},
        "outcomes": [
            asdict(o) | {"speed": speed_of(o, outcomes) if o.rounds else None, "median": o.median if o.rounds else None}
            for o in outcomes
        ],
    }
