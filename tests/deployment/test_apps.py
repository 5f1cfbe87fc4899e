"""The apps of a deployment, on a Grid inside this process: folders of samples in, a run folder out."""

import json
import logging
import shlex
from dataclasses import dataclass, replace

import numpy as np
import pytest
from torch import Tensor

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict
from flwr.common.config import parse_config_args

from kinfed import api
from kinfed.aggregation import DEPLOYED
from kinfed.client import Client, Reply, client_task
from kinfed.config import assemble, load_config
from kinfed.deployment import Plan, load_folder, make_client_app, make_server_app
from kinfed.deployment.run_settings import write_run_config
from kinfed.engines import workers as progress_log
from kinfed.engines.flower import DeployedFederation
from kinfed.engines.flower.transport import read_config
from kinfed.errors import CheckpointError, ConfigError, DataError, NetworkError
from kinfed.learning_tasks import Classification
from kinfed.methods import FedAvg
from kinfed.params import Params
from kinfed.runs.logs import name_resume
from kinfed.serving import export
from tests.engines.flower.loopback import Loopback
from tests.problems import assert_close, tiny_population

POPULATION = tiny_population()
PLAN = Plan(clients=6, shape=(1, 8, 8), classes=3, wait_for=6, wait_seconds=2.0)
CONFIG = load_config(None, ["method=scaffold", "rounds=4", "fraction=0.5", "checkpoint_every=2", "engine.timeout=0.5"])


@pytest.fixture
def folders(tmp_path):
    """A folder for each client, with its samples and no other's."""
    for client in range(6):
        train, test = POPULATION.train[client], POPULATION.test[client]
        folder = tmp_path / f"clinic-{client}"
        folder.mkdir()
        arrays = {
            "x": POPULATION.x[train],
            "y": POPULATION.y[train],
            "test_x": POPULATION.x[test],
            "test_y": POPULATION.y[test],
        }
        np.savez(folder / "samples.npz", **{name: t.numpy() for name, t in arrays.items()})
    return tmp_path


def federation(folders, config=CONFIG, clients=range(6), **more) -> Loopback:
    grid = Loopback(0, **more)
    grid.app = make_client_app(config, PLAN)
    for client in reversed(clients):  # in another order than their names
        here = folders / f"clinic-{client}"
        grid.online[100 + client] = {"name": here.name, "data": str(here), "home": str(here / "memory")}
    return grid


def serve(grid, out, config=CONFIG, plan=PLAN, given=None):
    grid.run_config = given or {}
    make_server_app(config, out, plan)(grid, Context(1, 0, {}, RecordDict(), grid.run_config))
    return json.loads((out / "summary.json").read_text())


def test_a_deployment_gives_what_a_simulation_of_the_same_clients_gives(folders, capsys):
    summary = serve(federation(folders), folders / "run")
    experiment = assemble(replace(CONFIG, aggregation=DEPLOYED), POPULATION)
    reference = experiment.run()
    assert summary["accuracy"] == pytest.approx(reference["accuracy"], abs=1e-5)
    assert summary["bytes_up"] == reference["bytes_up"] and summary["rejected_replies"] == 0
    assert "round 4/4" in capsys.readouterr().out
    mine = export(folders / "run").assign(POPULATION.x[:5])
    assert_close(mine.params, experiment.state.params)
    files = {path.name for path in (folders / "run").iterdir()}
    assert {"config.toml", "rounds.csv", "clients.csv", "ledger.csv", "checkpoint.safetensors"} <= files
    roster = (folders / "run" / "roster.csv").read_text().splitlines()
    assert roster[:2] == ["client,name,train,test,labelled,holdout,joins", "0,clinic-0,7,5,True,False,0"]
    assert list((folders / "clinic-0" / "memory").rglob("*.safetensors"))  # its control variate, at home


def test_a_restarted_server_resumes_from_its_checkpoint(folders):
    serve(federation(folders), folders / "whole")
    out, short = folders / "run", replace(CONFIG, rounds=2)
    serve(federation(folders, short), out, short)
    back = federation(folders)
    back.online = {900 - node: config for node, config in back.online.items()}  # other nodes, in another order
    serve(back, out)
    for name in ("rounds.csv", "clients.csv", "summary.json"):
        assert (out / name).read_text() == (folders / "whole" / name).read_text(), name


def test_a_run_is_not_resumed_with_classes_or_columns_in_another_order(folders):
    out, short = folders / "run", replace(CONFIG, rounds=2)
    plan = replace(PLAN, class_names=("a", "b", "c"))
    serve(federation(folders, short), out, short, plan)
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.name != "status.json"}
    for changed in (replace(plan, class_names=("b", "a", "c")), replace(plan, feature_names=("age", "chol"))):
        with pytest.raises(CheckpointError, match=r"plan.toml has changed .* was \[.*\], is \[.*\]. Set it back, or"):
            serve(federation(folders), out, plan=changed)
    assert before == {path.name: path.read_bytes() for path in out.iterdir() if path.name != "status.json"}
    assert serve(federation(folders), out, plan=plan)["accuracy"] > 0.5


def test_a_run_whose_checkpoint_does_not_say_the_columns_yet_is_resumed(folders, monkeypatch):
    out, short, state_dict = folders / "run", replace(CONFIG, rounds=2), DeployedFederation.state_dict
    monkeypatch.setattr(
        DeployedFederation, "state_dict", lambda fed: {n: v for n, v in state_dict(fed).items() if n != "samples"}
    )
    serve(federation(folders, short), out, short)
    serve(federation(folders), out)
    assert "resumed" in (out / "events.jsonl").read_text()


def test_only_the_server_of_a_deployment_takes_its_run_on(folders):
    out = folders / "run"
    serve(federation(folders), out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(
        CheckpointError, match=r"is of a deployment, .*: go on with `flwr run \. SUPERLINK --run-config"
    ):
        api.resume(out, rounds=6, quiet=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    (out / "summary.json").unlink()
    with pytest.raises(CheckpointError, match=r"has not ended: take it to its end with `flwr run"):
        export(out)
    with pytest.raises(ConfigError, match="already holds a run: go on with `flwr run"):
        api.run("fedavg", out=out, quiet=True)


class Killed(RuntimeError):
    """The server's process is gone."""


def kill_in_round_two(request, reply):
    if read_config(request).get("round") == 1:
        raise Killed
    return [reply]


@pytest.mark.parametrize("settings", ["inputs.mean=[0.5]", 'task.name="x"', ""])
def test_what_resumes_a_deployed_run_names_all_that_its_run_config_set(tmp_path, settings):
    given = {"seed": "", "rounds": 3, "training.lr": 0.01, "model": "a b", "inputs.scale": True, "settings": settings}
    out = tmp_path / "it's a run"
    out.mkdir()
    (out / "status.json").write_text(json.dumps({"run_config": write_run_config(CONFIG, given)}))
    command = shlex.split(name_resume(out))
    assert command[:5] == ["flwr", "run", ".", "SUPERLINK", "--run-config"]
    assert parse_config_args(command[5:]) == {name: v for name, v in given.items() if v != ""} | {"out": str(out)}


@pytest.mark.parametrize("status", ["{", "[]", '{"run_config": 3}', '{"run_config": "a\\nb"}', "{}"])
def test_a_status_that_does_not_say_what_was_set_leaves_the_folder_to_name(tmp_path, status):
    (tmp_path / "status.json").write_text(status)
    assert name_resume(tmp_path) == f"flwr run . SUPERLINK --run-config 'out=\"{tmp_path}\"'"


def test_a_run_without_a_checkpoint_is_not_started_again_with_other_settings(folders):
    out, given = folders / "run", {"rounds": 3, "training.lr": 0.02}
    with pytest.raises(Killed):
        serve(federation(folders, tamper=kill_in_round_two), out, given=given)
    with pytest.raises(ConfigError, match=r"run\" rounds=3 training\.lr=0\.02'"):
        api.run("fedavg", out=out, quiet=True)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(
        CheckpointError, match=r"another config, without a checkpoint: training\.lr was 0\.02, is 0\.01"
    ):
        serve(federation(folders), out)
    assert before == {path.name: path.read_bytes() for path in out.iterdir()}
    assert serve(federation(folders), out, given=given)["rounds"] == 3


def test_a_folder_without_labels_is_a_client_that_wants_a_model(folders):
    with np.load(folders / "clinic-5" / "samples.npz") as file:
        bare = {"x": file["x"]}
    np.savez(folders / "clinic-5" / "samples.npz", **bare)
    summary = serve(federation(folders), folders / "run")
    rows = (folders / "run" / "clients.csv").read_text().splitlines()
    assert summary["rejected_replies"] == 0 and any(",5,unlabelled," in row for row in rows)


@pytest.mark.parametrize("has_home", [True, False])
def test_a_client_detects_that_its_samples_have_changed(folders, has_home):
    def tamper(request, reply):
        config = read_config(request)
        if config.get("task") == "train" and config["client"] == 0 and config["round"] == 0:
            np.savez(folders / "clinic-0" / "samples.npz", x=POPULATION.x[:9].numpy(), y=POPULATION.y[:9].numpy())
        return [reply]

    (folders / "server").mkdir()
    np.savez(folders / "server" / "samples.npz", x=POPULATION.x.numpy(), y=POPULATION.y.numpy())
    config = load_config(None, ["method=flt", "rounds=3", "fraction=1.0", "methods.flt.dynamic=true",
                                "engine.timeout=5"])  # fmt: skip
    grid = federation(folders, config, tamper=tamper)
    for node in grid.online.values() if not has_home else ():
        del node["home"]
    serve(grid, folders / "run", config, replace(PLAN, server_samples=str(folders / "server")))
    roster, ledger = ((folders / "run" / f"{name}.csv").read_text().splitlines() for name in ("roster", "ledger"))
    assert roster[1] == "0,clinic-0,9,0,True,False,0" and roster[2] == "1,clinic-1,23,6,True,False,0"
    encoded = [row.split(",")[0] for row in ledger if ",compute_signature," in row]
    assert encoded == ["1", "2"]  # before the first round, and when a client detects that it has other samples


def test_samples_that_are_not_as_planned_are_refused_on_the_node_and_sent_nowhere(folders, monkeypatch, caplog, capsys):
    monkeypatch.setattr(progress_log, "SECONDS", 0.5)
    np.savez(folders / "clinic-5" / "samples.npz", x=np.zeros((4, 9, 9), np.uint8), y=np.zeros(4, np.int64))
    client = logging.getLogger("kinfed.engines")  # the server's, too, in one process
    client.addHandler(caplog.handler)
    try:
        with pytest.raises(NetworkError, match="5 of 6 clients"):
            serve(federation(folders), folders / "run")
    finally:
        client.removeHandler(caplog.handler)
    assert "wanted samples uint8 [1, 8, 8]" in caplog.text  # in its own log
    output = capsys.readouterr().out  # of the server
    said = (
        "node 105 cannot take part: its samples cannot be read, or are not as plan.toml says (DataError); its own log"
    )
    assert output.count(said) == 1 and "connected: 5 of 6 clients" in output and "[1, 8, 8]" not in output


def test_a_node_that_reports_its_errors_sends_their_text(folders, capsys):
    np.savez(folders / "clinic-5" / "samples.npz", x=np.zeros((4, 9, 9), np.uint8), y=np.zeros(4, np.int64))
    grid = federation(folders)
    grid.online[105]["report_errors"] = True
    with pytest.raises(NetworkError, match="5 of 6 clients"):
        serve(grid, folders / "run")
    assert "(DataError): wanted samples uint8 [1, 8, 8]" in capsys.readouterr().out


def test_a_task_that_fails_on_a_node_reaches_the_one_who_started_the_run_once(folders, capsys, monkeypatch):
    original = FedAvg.train

    def train(self, client: Client, params: Params) -> Reply:
        if int(client.train.size) == 18:  # clinic-5 alone has as many
            raise RuntimeError("patient 4711")
        return original(self, client, params)

    monkeypatch.setattr(FedAvg, "train", client_task(train))
    config = load_config(None, ["method=fedavg", "rounds=3", "fraction=1.0", "engine.timeout=5"])
    serve(federation(folders, config), folders / "run", config)
    output = capsys.readouterr().out
    assert output.count("clinic-5 failed at 'train': its task failed (RuntimeError); its own log says more") == 1
    assert "4711" not in output and output.count("failed at") == 1


@pytest.mark.parametrize("method", ["flt_paper", "flis_dc", "flis_hc"])
def test_a_server_without_the_samples_it_needs_says_so_before_it_waits(method, tmp_path, capsys):
    config = replace(CONFIG, method=method)
    with pytest.raises(ConfigError, match=rf"{method} needs samples of the server's own.* server_samples of plan.toml"):
        serve(Loopback(0), tmp_path / "run", config)
    missing = replace(PLAN, server_samples=str(tmp_path / "nowhere"))
    with pytest.raises(
        DataError, match=r"server_samples of plan.toml is '.*nowhere', but .*samples.npz cannot be read"
    ):
        serve(Loopback(0), tmp_path / "run", config, missing)
    assert "waiting" not in capsys.readouterr().out


def test_a_server_that_cannot_go_on_says_why_in_one_line(tmp_path, caplog):
    flower = logging.getLogger("flwr")
    flower.addHandler(caplog.handler)
    try:
        serve(Loopback(0), tmp_path / "run", replace(CONFIG, method="flt_paper"))
    except ConfigError as error:
        flower.error("ServerApp raised an exception", exc_info=error)  # as Flower does
    flower.removeHandler(caplog.handler)
    assert caplog.messages[-1].startswith("error: flt_paper needs samples of the server's own")
    assert "Traceback" not in caplog.text


def test_a_plan_whose_samples_the_method_cannot_take_is_refused_by_the_server(tmp_path):
    with pytest.raises(ConfigError, match=r"model 'har_cnn' is for series .*, got samples of shape \[1, 8, 9\]"):
        serve(Loopback(0), tmp_path / "run", replace(CONFIG, model="har_cnn"), replace(PLAN, shape=(1, 8, 9)))


def test_a_file_that_cannot_be_read_is_a_clear_error(tmp_path):
    with pytest.raises(DataError, match=r"samples.npz cannot be read"):
        load_folder(tmp_path)
    np.savez(tmp_path / "samples.npz", y=np.zeros(3, np.int64))
    with pytest.raises(DataError, match="no array x, only y"):
        load_folder(tmp_path)
    np.savez(tmp_path / "samples.npz", x=np.array([{}], dtype=object))
    with pytest.raises(DataError, match="cannot be read"):
        load_folder(tmp_path)


def test_a_file_of_the_old_name_is_refused_in_one_line(tmp_path):
    np.savez(tmp_path / "rows.npz", x=np.zeros((3, 8, 8), np.uint8))
    with pytest.raises(DataError, match=r"^rows.npz was renamed samples.npz: rename .*rows.npz$"):
        load_folder(tmp_path)


def test_an_invalid_plan_is_refused():
    with pytest.raises(ConfigError, match="wait_for"):
        Plan(clients=3, shape=(1, 8, 8), classes=3, wait_for=4)


@dataclass(frozen=True)
class Percent(Classification):
    """Scores of 0 and 100, whose range is left as it is for accuracies."""

    def scores(self, output: Tensor, y: Tensor) -> Tensor:
        return 100 * super().scores(output, y).float()


class Later(Percent):
    """The same of a network that has learnt something; the first one has no sample right."""

    def scores(self, output: Tensor, y: Tensor) -> Tensor:
        return super().scores(output, y) * (output.abs().amax() > FIRST)


FIRST = 1.0  # larger than any first output


@pytest.mark.parametrize(("name", "says"), [
    ("Percent", "cannot take part"), ("Later", "failed at 'evaluate'"),
])  # fmt: skip
def test_scores_out_of_the_range_of_an_own_task_are_an_error_on_the_node_that_excludes_nobody(
    folders, capsys, name, says
):
    settings = ["method=fedavg", "rounds=4", "fraction=1.0", "engine.timeout=5", "training.lr=0.5"]
    config = load_config(None, [*settings, f"task.name={__name__}:{name}"])
    grid = federation(folders, config)
    for node in grid.online.values():
        node["report_errors"] = True
    try:
        summary = serve(grid, folders / "run", config)
        assert "clients_excluded" not in summary and summary["rejected_replies"] == 0
    except NetworkError as error:
        assert name == "Percent" and "of 6 clients enrolled" in str(error)
    output = capsys.readouterr().out
    assert f"{says}: the network does not fit its samples, or scores leave the task's range" in output
    assert f"{name} gives scores from" in output and "least() and most() allow 0 to 1" in output
