"""The server's part: it waits for clients, runs the experiment over them, and goes on from its checkpoint if killed."""

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kinfed import checkpoint
from kinfed.capabilities import takes_server_samples
from kinfed.config import Config
from kinfed.config.assembly import loop_settings
from kinfed.deployment.plan import Plan, method_for
from kinfed.engines import choose_device
from kinfed.engines.flower import Deployed
from kinfed.errors import ConfigError, KinfedError
from kinfed.experiment import Experiment
from kinfed.progress import Lines, forward_log
from kinfed.runs import CHECKPOINT, can_resume, conduct

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp


def app_for(config: Config, out: Path, plan: Plan) -> "ServerApp":
    """The app that Flower's server runs; it writes a run folder, and a later run of it goes on from there.

    The run's config may name another folder as `out`.
    """
    from kinfed.engines.flower.messages import server_app

    def main(grid: "Grid", context: "Context") -> None:
        logging.getLogger("flwr").addFilter(in_one_line)
        serve(config, Path(str(context.run_config.get("out", out))), plan, grid)

    return server_app(main)


def in_one_line(record: logging.LogRecord) -> bool:
    """Takes the traceback off what Flower logs of an error of kinfed's own."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, KinfedError):
        record.msg, record.args, record.exc_info = "error: %s", (" ".join(str(error).split()),), None
    return True


def serve(config: Config, out: Path, plan: Plan, grid: "Grid") -> None:
    """Takes the experiment to its end over the nodes of this grid."""
    out.mkdir(parents=True, exist_ok=True)
    resuming = can_resume(out, config)
    fed = federation(config, plan, grid)
    if resuming:
        fed.load_state_dict(
            checkpoint.read_engine_state(out / CHECKPOINT)
        )  # clients must be known before they come back
    display = Lines(sys.stdout)
    display.say(f"waiting for {plan.wait_for} clients, {plan.wait_seconds:.0f} s at most")
    with forward_log(display.say):
        fed.gather(plan.wait_for, plan.wait_seconds)
    display.say(f"{len(fed.nodes)} clients are there")
    experiment: Experiment[object] = Experiment.over(fed, **loop_settings(config))
    conduct(config, out, display, experiment, resume=resuming)


def federation(config: Config, plan: Plan, grid: "Grid") -> Deployed:
    """The clients as this server sees them."""
    own = plan.own_samples()
    method = method_for(config, plan, own)
    if takes_server_samples(method) and not len(own.y):
        raise ConfigError(
            f"{config.method} needs rows of the server's own, but there are none: put them into a folder as rows.npz, "
            "and name it in server_samples of plan.toml"
        )
    return Deployed(
        method, own, plan.clients, grid, fraction=config.fraction, seed=config.seed,
        device=choose_device(config.engine.device), timeout=config.engine.timeout, attempts=config.engine.attempts,
    )  # fmt: skip
