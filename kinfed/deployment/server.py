"""The server's part: it waits for clients, runs the experiment over them, and goes on from its checkpoint if killed."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kinfed import snapshot
from kinfed.commands import conduct
from kinfed.config import Config
from kinfed.config.assembly import device_of, experiment_of, make_algorithm, model_for
from kinfed.deployment.plan import Plan
from kinfed.engines.flower import Deployed
from kinfed.progress import Lines
from kinfed.runs import CHECKPOINT, SUMMARY, can_go_on, write_config

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp


def app_for(config: Config, out: Path, plan: Plan) -> "ServerApp":
    """The app that Flower's server runs; it writes a run folder, and a later run of it goes on from there.

    The run's config may name another folder as `out`.
    """
    from kinfed.engines.flower.messages import server_app

    def main(grid: "Grid", context: "Context") -> None:
        serve(config, Path(str(context.run_config.get("out", out))), plan, grid)

    return server_app(main)


def serve(config: Config, out: Path, plan: Plan, grid: "Grid") -> None:
    """Takes the experiment to its end over the nodes of this grid."""
    out.mkdir(parents=True, exist_ok=True)
    resuming = can_go_on(out, config)
    fed = federation(config, plan, grid)
    if resuming:
        fed.carry(snapshot.carried(out / CHECKPOINT))  # clients must be known before they come back
    display = Lines(sys.stdout)
    display.say(f"waiting for {plan.wait_for} clients, {plan.wait_seconds:.0f} s at most")
    fed.gather(plan.wait_for, plan.wait_seconds)
    display.say(f"{len(fed.nodes)} clients are there")
    experiment = experiment_of(config, fed.method, fed)
    write_config(out, config)
    (out / SUMMARY).unlink(missing_ok=True)
    conduct(config, out, display, experiment, resume=resuming)


def federation(config: Config, plan: Plan, grid: "Grid") -> Deployed:
    """The clients as this server sees them."""
    own = plan.own_rows()
    algorithm = make_algorithm(config, model_for(config, own.population(plan.clients)))
    return Deployed(
        algorithm, own, plan.clients, grid, fraction=config.fraction, seed=config.seed,
        device=device_of(config.engine), timeout=config.engine.timeout, attempts=config.engine.attempts,
    )  # fmt: skip
