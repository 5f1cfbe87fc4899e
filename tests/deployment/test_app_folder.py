"""`kinfed deploy new`: a folder that Flower can run, made from any config."""

import importlib
import io
import json
import os
import shutil
import sys
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.common.config import get_fused_config_from_dir, parse_config_args
from typer.testing import CliRunner

from kinfed.aggregation import MEAN
from kinfed.cli import app
from kinfed.config import DEMO, assemble, load_config, make_population
from kinfed.deployment import Plan, load_folder, read_plan
from kinfed.deployment.run_settings import apply_run_config
from kinfed.errors import ConfigError, NetworkError
from tests.engines.flower.loopback import Loopback

SMALL = ["method=fedavg", "rounds=2", "fraction=1.0", "partition.clients=6", "partition.clusters=3", "engine.timeout=5"]


@pytest.fixture(autouse=True)
def away(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write_app(*words):
    result = CliRunner().invoke(app, ["deploy", "new", "mine", *words])
    assert result.exit_code == 0, result.output
    return Path("mine")


def read_refusal(*words):
    result = CliRunner().invoke(app, ["deploy", "new", *words])
    assert result.exit_code == 2 and result.stderr.startswith("error: "), result.output
    return result.stderr


def node_configs(folder):
    return [tomllib.loads(path.read_text()) for path in sorted((folder / "nodes").rglob("*.toml"))]


def import_apps(folder, monkeypatch):
    """The two apps, imported as Flower does: from the folder."""
    monkeypatch.syspath_prepend(str(folder.absolute()))
    for name in [name for name in sys.modules if name.startswith("kinfed_app")]:
        monkeypatch.delitem(sys.modules, name)
    return [importlib.import_module(f"kinfed_app.{side}").app for side in ("server_app", "client_app")]


def test_the_apps_of_a_new_folder_give_what_a_simulation_of_the_config_gives(monkeypatch, capsys):
    folder = write_app(*SMALL)
    server, client = import_apps(folder, monkeypatch)
    monkeypatch.chdir(folder)
    grid = Loopback(0)
    grid.app = client
    grid.online = {100 + i: config for i, config in enumerate(node_configs(Path()))}
    server(grid, Context(1, 0, {}, RecordDict(), {"out": "runs/other"}))
    summary = json.loads(Path("runs/other/summary.json").read_text())
    reference = assemble(load_config(DEMO, [*SMALL, "aggregation.name=norm_clipping"])).run()
    assert summary["accuracy"] == pytest.approx(reference["accuracy"], abs=1e-5)
    assert summary["bytes_up"] == reference["bytes_up"] and summary["rejected_replies"] == 0
    assert "waiting for 6 clients" in capsys.readouterr().out
    exported = CliRunner().invoke(app, ["export", "runs/other", "bundle"])
    assert exported.exit_code == 0, exported.output


def fuse(folder, text):
    """What Flower makes of `--run-config` and the app's own settings."""
    return get_fused_config_from_dir(folder, parse_config_args([text]))


def test_a_run_config_reaches_the_server_and_the_nodes(monkeypatch):
    folder = write_app(*SMALL)
    server, grid = import_apps(folder, monkeypatch)[0], Loopback(0)
    grid.app = import_apps(folder, monkeypatch)[1]
    monkeypatch.chdir(folder)
    grid.online = {100 + i: config for i, config in enumerate(node_configs(Path()))}
    grid.run_config = fuse(
        Path(),
        'out="runs/other" rounds=1 method="scaffold" training.lr=0.2 plan.wait_for=3 '
        'settings="inputs.mean=[0.5] inputs.std=[0.5] aggregation.name=mean"',
    )
    server(grid, Context(1, 0, {}, RecordDict(), grid.run_config))
    run = load_config(Path("runs/other/config.toml"))
    assert (run.rounds, run.method, run.training.lr, run.inputs.mean) == (1, "scaffold", 0.2, (0.5,))
    asked = ["method=scaffold", "rounds=1", "training.lr=0.2", "inputs.mean=[0.5]", "inputs.std=[0.5]"]
    reference = assemble(load_config(DEMO, [*SMALL, *asked, "aggregation.name=mean"])).run()
    summary = json.loads(Path("runs/other/summary.json").read_text())
    assert summary["accuracy"] == pytest.approx(reference["accuracy"], abs=1e-5)  # nodes train so too
    assert summary["bytes_up"] == reference["bytes_up"] and summary["rejected_replies"] == 0


def test_a_run_config_that_is_not_valid_is_refused_in_one_line():
    folder = write_app("method=flt", *SMALL[1:])
    config, plan = load_config(folder / "kinfed_app/config.toml"), read_plan(folder / "kinfed_app/plan.toml")
    assert apply_run_config(config, plan, fuse(folder, "")) == (config, plan)
    method = fuse(folder, 'methods.flt.dynamic=true plan.quorum=0.5 aggregation.name="median"')
    changed, planned = apply_run_config(config, plan, method)
    assert changed.methods["flt"]["dynamic"] is True and planned.quorum == 0.5
    with pytest.raises(ValueError, match="roundz"):
        fuse(folder, "roundz=3")
    for text, said in {
        'settings="training.lrr=1"': "did you mean 'training.lr'",
        "rounds=0": "rounds",
        'settings="plan.classes=3"': "plan.classes cannot be set for one run",
        "plan.wait_for=99": "wait_for",
    }.items():
        with pytest.raises(ConfigError, match=said):
            apply_run_config(config, plan, fuse(folder, text))


def test_samples_are_written_into_a_folder_for_each_client_and_one_for_the_server():
    folder, population = write_app(*SMALL), make_population(load_config(DEMO, SMALL))
    for client, config in enumerate(node_configs(folder)):
        data = load_folder(folder / config["data"])
        assert data.x.equal(population.x[population.train[client]])
        assert data.test_y.equal(population.y[population.test[client]])
    plan = read_plan(folder / "kinfed_app" / "plan.toml")
    assert (plan.clients, plan.wait_for, plan.shape, plan.classes) == (6, 6, (1, 8, 8), 10)
    assert plan.server_samples == "data/server" and len(load_folder(folder / "data" / "server").x) == len(
        population.public
    )
    planted = (folder / "data" / "planted.csv").read_text().splitlines()
    assert planted == [
        "name,cluster",
        *(f"client-{i:02},{cluster}" for i, cluster in enumerate(population.true_clusters.tolist())),
    ]


def test_the_config_in_the_folder_is_whole():
    config = load_config(write_app(*SMALL) / "kinfed_app" / "config.toml")
    assert config == load_config(DEMO, [*SMALL, "engine.name=flower", "aggregation.name=norm_clipping"])


def test_a_rule_that_is_given_stays_even_if_it_is_the_mean():
    config = load_config(write_app(*SMALL, "aggregation.name=mean") / "kinfed_app" / "config.toml")
    assert config.aggregation == MEAN


def test_the_mean_is_the_rule_where_a_server_sees_sums_alone():
    config = load_config(write_app(*SMALL, "privacy.secure_aggregation=true") / "kinfed_app" / "config.toml")
    assert config.aggregation == MEAN


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_nothing_but_the_app_travels():
    folder = write_app(*SMALL)
    (folder / "keys").mkdir()
    (folder / "keys" / "secret.toml").write_text("key = 1")
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(folder))) as bundle:
        sent = set(bundle.namelist())
    parts = ("__init__.py", "client_app.py", "config.toml", "plan.toml", "server_app.py")
    assert sent == {".info/CONTENT", "pyproject.toml", *(f"kinfed_app/{part}" for part in parts)}


OWN = """
from dataclasses import dataclass
from torch import nn
from kinfed.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    strength: float = 0.5

def line(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
@pytest.mark.parametrize("place", ["own_parts.py", "own_package/parts.py", "own_pack/__init__.py"])
def test_methods_and_models_of_the_users_own_travel_with_the_app(place, tmp_path, monkeypatch):
    Path(place).parent.mkdir(exist_ok=True)
    Path(place).write_text(OWN)
    module = place.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = write_app(*SMALL, f"method={module}:Mine", f"model={module}:line")
    assert "`kinfed[flower]` must be installed" in (folder / "README.md").read_text()
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(folder))) as bundle:
        bundle.extractall(tmp_path / "far" / "away")
    shutil.rmtree(folder)
    os.remove(place)
    for name in [name for name in sys.modules if name.startswith("own_pa")]:
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    import_apps(tmp_path / "far" / "away", monkeypatch)  # they make their model and method
    assert str(tmp_path / "far") in sys.modules[module].__file__


PARTS = {
    "own_task": """
from dataclasses import dataclass
from kinfed.learning_tasks import Classification

@dataclass(frozen=True)
class Mine(Classification):
    pass
""",
    "own_metric": "def share(output, y):\n    return 1.0\n",
    "own_network": """
from math import prod
from torch import nn

class Small(nn.Module):
    def __init__(self, shape, latent):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), latent))
        self.decoder = nn.Sequential(nn.Linear(latent, prod(shape)), nn.Unflatten(1, shape))

    def forward(self, x):
        return self.decoder(self.encoder(x))
""",
}


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("own_task", ["method=fedavg", "task.name=own_task:Mine"]),
        ("own_metric", ["method=fedavg", "task.metrics=['own_metric:share']"]),
        ("own_network", ["method=flt", "methods.flt.signature.name=encoder_centroids",
                         "methods.flt.signature.autoencoder=own_network:Small",
                         "methods.flt.relatedness.name=relatedness"]),
    ],
)  # fmt: skip
def test_tasks_metrics_and_encoders_of_the_users_own_travel_with_the_app(module, words, monkeypatch):
    Path(f"{module}.py").write_text(PARTS[module])
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = write_app(*SMALL, *words)
    assert (folder / f"{module}.py").read_text() == PARTS[module]
    assert f'fab-include = ["{module}.py", ' in (folder / "pyproject.toml").read_text()
    monkeypatch.delitem(sys.modules, module)


def test_modules_that_are_installed_must_be_installed_on_the_nodes():
    folder = write_app(*SMALL, "method=kinfed.methods.fedavg:FedAvg")
    assert "`kinfed[flower]` and `kinfed` must be installed" in (folder / "README.md").read_text()
    assert 'fab-include = ["kinfed_app/*.py"' in (folder / "pyproject.toml").read_text()


def test_late_holdout_and_unlabelled_clients_have_nodes_of_their_kind():
    folder = write_app(*SMALL, "partition.clients=12", "roles.late=0.25", "roles.join_round=1", "roles.holdout=0.25",
                 "roles.unlabelled=0.25", "roles.look_alikes=2")  # fmt: skip
    late = sorted(path.stem for path in (folder / "nodes" / "late").glob("*.toml"))
    configs = node_configs(folder)
    without = [c["name"] for c in configs if "y" not in np.load(folder / c["data"] / "samples.npz")]
    assert len(configs) == 12 and len(late) == 3 and len(without) == 3
    assert sum(config.get("holdout", False) for config in configs) == 3
    plan = read_plan(folder / "kinfed_app" / "plan.toml")
    assert (plan.clients, plan.wait_for) == (12, 9)


def test_nodes_may_bring_their_own_samples():
    folder = write_app("method=fedavg", "model=resnet9", "--shape", "3,32,32", "--classes", "7", "--clients", "3")
    plan = read_plan(folder / "kinfed_app" / "plan.toml")
    assert (plan.shape, plan.classes, plan.clients, plan.dtype) == ((3, 32, 32), 7, 3, "uint8")
    assert [config["name"] for config in node_configs(folder)] == ["client-00", "client-01", "client-02"]
    assert plan.server_samples == "" and "here none" in (folder / "README.md").read_text()
    assert not (folder / "data").exists()


@pytest.mark.parametrize("method", ["flt_paper", "flis_dc", "flis_hc"])
def test_a_method_whose_server_needs_samples_gets_a_folder_for_them(method):
    words = [f"method={method}", "--shape", "3,32,32", "--classes", "10", "--clients", "20"]
    result = CliRunner().invoke(app, ["deploy", "new", "mine", *words])
    assert f"{method} needs samples of the server's own too" in result.stdout and "server_samples" in result.stdout
    assert read_plan(Path("mine/kinfed_app/plan.toml")).server_samples == "data/server"
    assert "here `data/server`" in Path("mine/README.md").read_text()


def test_the_command_on_the_deployment_page_writes_an_app_whose_server_starts(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text()
    (command,) = [line for line in page.splitlines() if line.startswith("kinfed deploy new ../clinics")]
    words = [word.replace("../clinics", "clinics") for word in command.split()[1:]]
    assert CliRunner().invoke(app, words).exit_code == 0
    monkeypatch.chdir("clinics")
    plan = Path("kinfed_app/plan.toml")
    plan.write_text(plan.read_text().replace("wait_seconds = 600.0", "wait_seconds = 0.1"))
    Path("data/server").mkdir(parents=True)
    np.savez("data/server/samples.npz", x=np.zeros((9, 3, 32, 32), np.uint8))  # as the page says
    server, _ = import_apps(tmp_path / "clinics", monkeypatch)
    with pytest.raises(NetworkError, match="0 of 20 clients"):
        server(Loopback(0), Context(1, 0, {}, RecordDict(), {}))
    assert "waiting for 20 clients" in capsys.readouterr().out


def test_an_encoder_from_another_dataset_takes_no_samples_of_the_server():
    source = "methods.flt_paper.signature.pretraining.source=emnist"
    folder = write_app("method=flt_paper", source, "--shape", "1,28,28", "--classes", "10", "--clients", "3")
    assert read_plan(folder / "kinfed_app" / "plan.toml").server_samples == ""


def test_what_is_there_is_not_written_over_unless_forced():
    folder = write_app(*SMALL)
    (folder / "kinfed_app" / "client_app.py").write_text("mine")
    assert "mine is not empty" in read_refusal("mine", *SMALL) and "--force" in read_refusal("mine", *SMALL)
    assert (folder / "kinfed_app" / "client_app.py").read_text() == "mine"
    for inner in (folder, folder / "kinfed_app", folder / "data", *(folder / "data").glob("client-*")):
        (inner / ".samples.npz.123.new").write_text("half")  # of one that was killed
    write_app(*SMALL, "partition.clients=3", "--force")
    assert not list(folder.rglob(".*.new"))
    assert "make_client_app" in (folder / "kinfed_app" / "client_app.py").read_text()
    assert len(node_configs(folder)) == 3  # none is left of the six


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["mine", "method=fltt"], "did you mean 'flt'?"),
        (["mine", "nowhere.toml"], "no config file at nowhere.toml"),
        (["mine", "--shape", "3,32,32"], "--shape, --classes and --clients are needed"),
        (["mine", "--shape", "3x32", "--classes", "2", "--clients", "2"], "wanted whole numbers as in 3,32,32"),
        (["mine", "--shape", "-1,8,8", "--classes", "2", "--clients", "2"], "at least 1 as in 3,32,32, got [-1, 8, 8]"),
        (["mine", "model=lenet5"], "needs image sides of at least 16, got 8x8"),
        (["mine", "evaluation.correlation=true"], "which a deployed server has not"),
        (
            ["mine", "model=har_cnn", "--shape", "3,30,30", "--classes", "2", "--clients", "2"],
            "is for series [channels, length], got samples of shape [3, 30, 30]",
        ),
        (
            ["mine", "method=flt_paper", "data.public=0"],
            "flt_paper needs samples of the server's own, but there are none: set data.public = 0.1",
        ),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_folder(words, part):
    assert part in read_refusal(*words) and not Path("mine").exists()


def test_a_file_of_that_name_is_refused():
    Path("mine").write_text("")
    assert "mine is a file" in read_refusal("mine", *SMALL)


def test_class_names_are_planned():
    words = ["--shape", "1,8,8", "--clients", "3", "--class-names", "cat, dog"]
    plan = read_plan(write_app("method=fedavg", *words) / "kinfed_app" / "plan.toml")
    assert plan.class_names == ("cat", "dog") and plan.classes == 2
    assert "different class_names" in read_refusal("other", *words, "--classes", "3")


@pytest.mark.parametrize(
    ("words", "dtype"),
    [
        (["model=char_cnn", "task.name=next_token"], "int64"),
        (["model=linear", "task.name=regression"], "float32"),
        (["model=char_cnn", "--dtype", "int64"], "int64"),  # classes of texts
    ],
)
def test_own_samples_may_be_token_ids(words, dtype):
    folder = write_app("method=fedavg", *words, "--shape", "12", "--clients", "3", "--classes", "37")
    assert read_plan(folder / "kinfed_app" / "plan.toml").dtype == dtype
    assert "a dtype of uint8, float32, int64" in read_refusal(
        "other", "--shape", "12", "--clients", "3", "--classes", "2", "--dtype", "text"
    )


def test_a_plan_with_a_misspelt_key_names_the_nearest(tmp_path):
    (tmp_path / "plan.toml").write_text("clients = 3\nshape = [1, 8, 8]\nclases = 3\n")
    with pytest.raises(ConfigError, match=r"'plan.clases': did you mean 'plan.classes'"):
        read_plan(tmp_path / "plan.toml")


def test_scripts_can_be_started():
    folder = write_app(*SMALL)
    assert all((folder / name).stat().st_mode & 0o111 for name in ("try.sh", "certificates.sh"))
    assert "FLWR_TELEMETRY_ENABLED=0" in (folder / "offline.sh").read_text()
    assert "@" not in (folder / "README.md").read_text() + (folder / "pyproject.toml").read_text()


def test_superlink_stays_on_loopback_in_all_that_is_written():
    folder = write_app(*SMALL)
    texts = [(folder / name).read_text().replace("\\\n", " ") for name in ("README.md", "try.sh")]
    commands = [line.strip() for text in texts for line in text.splitlines()]
    starts = [line for line in commands if "flower-superlink --" in line]
    assert len(starts) == 2 and all("--host 127.0.0.1" in line for line in starts)
    assert all("--superexec-auth-secret-file" in line and "--enable-supernode-auth" in line for line in starts)
    assert all("deploy gate" in line for line in commands if "--host 0.0.0.0" in line)


@pytest.mark.parametrize(
    "wrong", [{"quorum": 1.5}, {"quorum": -0.1}, {"grace_seconds": -1.0}, {"max_samples": 0}, {"max_samples": 2**41},
              {"wait_seconds": float("inf")}],
)  # fmt: skip
def test_a_plan_refuses_settings_without_a_meaning(wrong):
    with pytest.raises(ConfigError):
        Plan(clients=2, shape=(1, 8, 8), classes=3, **wrong)
