"""The two sides of a deployment.

The server waits for clients, runs the experiment over them, and resumes from its checkpoint. A node reads its own
samples, builds its own copy of the method, and runs tasks by name.
"""

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kinfed import checkpoint
from kinfed.capabilities import takes_server_samples
from kinfed.config import Config
from kinfed.config.assembly import loop_settings, make_method, model_for
from kinfed.data.arrays import ServerSamples
from kinfed.deployment.live_status import StatusWriter
from kinfed.deployment.node_data import NodeConfig, load_node_data
from kinfed.deployment.plan import Plan, choose_aggregation, make_planned_method
from kinfed.deployment.run_settings import OUT, apply_run_config, write_run_config
from kinfed.engines import choose_device
from kinfed.engines.flower import DeployedFederation
from kinfed.engines.flower.deployed import DEPLOYED_PATIENCE
from kinfed.engines.flower.node import ClientData, ClientNode, draw_bits
from kinfed.errors import ConfigError, KinfedError
from kinfed.experiment import Experiment
from kinfed.files import quote
from kinfed.progress import Lines, forward_log
from kinfed.runs import CHECKPOINT, can_resume, conduct_held, hold, refuse_begun, refuse_links, refuse_unknown_files
from kinfed.targets import is_known

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp


SHOW = "kinfed deploy status"


def make_server_app(config: Config, out: Path, plan: Plan) -> "ServerApp":
    """The app that Flower's server runs; it writes a run folder, and a later run of it resumes there.

    The run's config (`flwr run --run-config`) may name another folder as `out`, and set keys of config and plan.
    """
    from kinfed.engines.flower.transport import build_server_app

    def main(grid: "Grid", context: "Context") -> None:
        logging.getLogger("flwr").addFilter(shorten_traceback)
        chosen = apply_run_config(config, plan, context.run_config)
        folder = Path(str(context.run_config.get(OUT) or out))
        run_server(chosen[0], folder, chosen[1], grid, write_run_config(config, context.run_config))

    return build_server_app(main)


def shorten_traceback(record: logging.LogRecord) -> bool:
    """Makes one line of what Flower logs of an error of kinfed's own."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, KinfedError):
        record.msg, record.args, record.exc_info = "error: %s", (" ".join(str(error).split()),), None
    return True


def run_server(config: Config, out: Path, plan: Plan, grid: "Grid", run_config: str = "") -> None:
    """Takes the experiment to its end over the nodes of this grid; refuses a folder that another server writes.

    `run_config` is what `--run-config` set beside `out`: the status says it, for who resumes the run.
    """
    out.mkdir(parents=True, exist_ok=True)
    refuse_links(out)
    refuse_unknown_files(out)
    with hold(out):
        named = replace(config, aggregation=choose_aggregation(config))  # config.toml names it
        _run_held(named, StatusWriter(out, config.method, config.rounds, plan, run_config), grid)


def _run_held(config: Config, status: StatusWriter, grid: "Grid") -> None:
    out, plan = status.folder, status.plan
    resuming = can_resume(out, config)
    if not resuming:
        refuse_begun(out, config)
    fed = make_deployed_federation(config, plan, grid)
    fed.load_keys(out)
    if resuming:
        state = checkpoint.read_engine_state(out / CHECKPOINT)
        fed.load_state_dict(state)  # clients must be known before they come back
    display = Lines(sys.stdout)
    with status.watch(fed):
        display.say(
            f"waiting for {plan.wait_for} clients, {plan.wait_seconds:.0f} s at most; see `{SHOW} {quote(out)}`"
        )
        with forward_log(display.say):
            fed.wait_for_clients(plan.wait_for, plan.wait_seconds)
        display.say(f"{len(fed.nodes)} clients are connected")
        experiment: Experiment[object] = Experiment.over(fed, **loop_settings(config))
        conduct_held(config, out, display, experiment, resume=resuming)


def make_deployed_federation(config: Config, plan: Plan, grid: "Grid") -> DeployedFederation:
    """The clients as this server sees them."""
    samples = plan.load_server_samples()
    method = make_planned_method(config, plan, samples)
    if takes_server_samples(method) and not len(samples.y):
        raise ConfigError(
            f"{config.method} needs samples of the server's own, but there are none: put a samples.npz into a folder, "
            "and name it in server_samples of plan.toml"
        )
    patience = replace(
        DEPLOYED_PATIENCE, timeout=config.engine.timeout, attempts=config.engine.attempts, quorum=plan.quorum,
        grace=plan.grace_seconds,
    )  # fmt: skip
    fed = DeployedFederation(
        method, samples, plan.clients, grid, fraction=config.fraction, seed=config.seed,
        device=choose_device(config.engine.device), patience=patience, max_samples=plan.max_samples,
        binds_names=plan.bind_names,
    )  # fmt: skip
    fed.privacy = config.privacy
    fed.aggregation = choose_aggregation(config)
    return fed


if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.clientapp import ClientApp

Loader = Callable[[NodeConfig], ClientData]


def make_client_app(config: Config, plan: Plan, load: Loader | None = None) -> "ClientApp":
    """The app of a node. Its config has `name` (for good), and where its samples are, as `load_node_data` reads them.

    `load` reads them instead. `home` is the folder of the client's memory; `holdout=true` says that it wants a model
    without training.
    """
    from kinfed.engines.flower.transport import build_client_app

    def load_node(context: "Context", run: str) -> ClientNode:
        return make_node(*apply_run_config(config, plan, context.run_config), context.node_config, load)

    def find_folder(context: "Context", run: str) -> Path | None:
        return Path(str(context.node_config["home"])) if "home" in context.node_config else None

    return build_client_app(load_node, find_folder)


def make_node(config: Config, plan: Plan, node: NodeConfig, load: Loader | None = None) -> ClientNode:
    """The client of a node."""
    if not node.get("name"):
        raise ConfigError('the node\'s config has no name: start it with --node-config \'name="…" data="FOLDER"\'')
    own = load(node) if load else load_node_data(node, plan.kind, plan.class_names, plan.feature_names)
    data = plan.check(own, config.task)
    model = model_for(config, ServerSamples(data.x[:2], data.y[:2], plan.classes).population(1))
    for x, y in ((data.x, data.y), (data.test_x, data.test_y)):
        model.check_scores(x, y)  # the server has no samples to look at them
    labelled = bool(is_known(data.y).all())
    return ClientNode(
        str(node["name"]), make_method(config, model), lambda round: data, labelled=labelled,
        holdout=bool(node.get("holdout", False)), device=str(node.get("device", "cpu")), detects_changes=True,
        entropy=draw_bits, privacy=config.privacy,
    )  # fmt: skip
