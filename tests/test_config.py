"""Config: tables to dataclasses and back, overrides, errors that help, the parts put together."""

import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pytest
import torch

from kinfed.config import DEMO, Config, assemble, laid_over, load_config, read, write
from kinfed.config.assembly import located
from kinfed.config.tables import build, to_table
from kinfed.config.toml import overridden, parse
from kinfed.data import PARTITIONS, SHIFTS
from kinfed.data.partitions import DisjointClasses
from kinfed.errors import ConfigError, ModelError
from kinfed.methods import METHODS


@dataclass(frozen=True)
class Inner:
    size: int = 1
    data_dir: str = ""


@dataclass(frozen=True)
class Outer:
    rate: float = 0.5
    kind: Literal["a", "b"] = "a"
    pairs: tuple[tuple[int, int], ...] = ()
    limit: int | None = None
    callback: type | None = None  # no table can express it
    inner: Inner = field(default_factory=Inner)


def tiny(*settings: str) -> Config:
    return load_config(None, ["method=fedavg", "partition.clients=10", *settings])


def test_a_table_becomes_a_dataclass():
    table = {"rate": 2, "kind": "b", "pairs": [[1, 2], [3, 4]], "limit": 7, "inner": {"size": 5}}
    assert build(Outer, table, "x") == Outer(2.0, "b", ((1, 2), (3, 4)), 7, None, Inner(5))
    assert isinstance(build(Outer, {"rate": 2}, "x").rate, float)


def test_a_dataclass_survives_the_journey_through_toml():
    settings = Outer(1e-05, "b", ((1, 2),), None, None, Inner(3, 'a "quoted"\\ path\n\x7f'))
    assert build(Outer, tomllib.loads(write(to_table(settings))), "x") == settings


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rat": 1}, "unknown key 'x.rat', did you mean 'x.rate'?"),
        ({"callback": 1}, "unknown key 'x.callback'"),
        ({"inner": {"sise": 1}}, "unknown key 'x.inner.sise', did you mean 'x.inner.size'?"),
        ({"rate": "fast"}, "x.rate: wanted a number, got 'fast'"),
        ({"rate": float("nan")}, "x.rate: wanted a number, got nan"),
        ({"rate": True}, "x.rate: wanted a number, got true"),
        ({"inner": {"size": 1.5}}, "x.inner.size: wanted a whole number, got 1.5"),
        ({"kind": "c"}, "x.kind: wanted one of 'a', 'b', got 'c'"),
        ({"pairs": [[1, 2], [3]]}, "x.pairs[1]: wanted a list of 2: a whole number, a whole number, got [3]"),
        ({"pairs": [[1, "b"]]}, "x.pairs[0][1]: wanted a whole number, got 'b'"),
        ({"limit": "all"}, "x.limit: wanted a whole number or \"none\", got 'all'"),
        ({"inner": 3}, "x.inner: wanted a table, got 3"),
    ],
)
def test_a_wrong_table_says_what_is_wrong_where(table: dict[str, object], message: str):
    with pytest.raises(ConfigError) as caught:
        build(Outer, table, "x")
    assert str(caught.value).startswith(message)


def test_overrides_are_toml_values_and_bare_words_are_text():
    assert [parse(text) for text in ("3", "0.1", "true", "[1, 2]", "mnist", '"3"', "1\nx = 2")] == [
        3, 0.1, True, [1, 2], "mnist", "3", "1\nx = 2",
    ]  # fmt: skip
    before = {"a": {"b": 1, "c": 2}}
    assert overridden(before, ["a.b=5", "d.e=word"]) == {"a": {"b": 5, "c": 2}, "d": {"e": "word"}}
    assert before == {"a": {"b": 1, "c": 2}}


@pytest.mark.parametrize("text", ["rounds", "=3", "a..b=3"])
def test_an_override_without_key_or_value_is_refused(text: str):
    with pytest.raises(ConfigError, match="wanted key=value"):
        overridden({}, [text])


def test_options_go_over_overrides_which_go_over_the_file(tmp_path: Path):
    file = tmp_path / "a.toml"
    file.write_text('method = "fedavg"\nrounds = 1\nseed = 1\n[training]\nlr = 1\nepochs = 2\n')
    config = load_config(file, ["rounds=2", "training.lr=0.5"], {"rounds": 3})
    assert load_config(str(file), ["rounds=2", "training.lr=0.5"], {"rounds": 3}) == config
    assert (config.rounds, config.seed, config.training.lr, config.training.epochs) == (3, 1, 0.5, 2)


def test_the_nearest_known_key_is_named():
    with pytest.raises(ConfigError, match=r"unknown key 'roundz', did you mean 'rounds'\?"):
        read({"roundz": 3})
    with pytest.raises(ConfigError, match=r"unknown key 'lr', did you mean 'training.lr'\?"):
        read({"lr": 0.1})
    with pytest.raises(ConfigError, match=r"unknown key 'partition.groops', did you mean 'partition.groups'\?"):
        read({"partition": {"groops": 3}})
    with pytest.raises(ConfigError, match=r"unknown key 'methods.fedavg.agregate_over', did you mean"):
        read({"methods": {"fedavg": {"agregate_over": "participants"}}})
    with pytest.raises(ConfigError, match=r"unknown method 'fedavgg', did you mean 'fedavg'\?"):
        read({"method": "fedavgg"})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("methods.cfl.mean_below", "methods.cfl.rule.mean_below"),  # it moved
        ("methods.cfl.mean_belo", "methods.cfl.rule.mean_below"),
        ("methods.flt.latent", "methods.flt.signature.latent"),
        ("data.clients", "partition.clients"),
        ("engine.rounds", "rounds"),
        ("partition.holdout", "roles.holdout"),
    ],
)
def test_the_nearest_key_is_looked_for_in_all_sections(key, meant):
    with pytest.raises(ConfigError, match=f"^unknown key '{key}', did you mean '{meant}'\\?; known in "):
        load_config(None, [f"{key}=1"])


def test_an_impossible_value_names_its_section():
    with pytest.raises(ConfigError, match=r"^training: wanted lr > 0"):
        read({"training": {"lr": -1.0}})


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("shift", ["", *SHIFTS])
def test_a_resolved_config_reads_back_as_the_same(method: str, partition: str, shift: str):
    config = load_config(
        None, [f"method={method}", f"partition.name={partition}", f"shift.name={shift}", "change.round=3"]
    )
    text = write(config.resolve())
    assert read(tomllib.loads(text)) == config
    assert write(read(tomllib.loads(text)).resolve()) == text


def test_a_resolved_config_has_every_default():
    resolved = tiny().resolve()
    assert resolved["fraction"] == 0.2
    assert resolved["change"] == {"round": 0}
    assert resolved["partition"] == {
        "name": "disjoint_classes", "clients": 10, "clusters": 5, "labels_per_cluster": 2, "samples_per_class": "none",
    }  # fmt: skip
    assert resolved["methods"] == {"fedavg": {"aggregate_over": "participants"}}


def test_methods_of_one_seed_meet_the_same_clients():
    one, other = (assemble(replace(tiny(), method=method)).fed.population for method in ("fedavg", "local"))
    assert torch.equal(one.x, other.x)
    assert all(torch.equal(a, b) for a, b in zip(one.train + one.test, other.train + other.test, strict=True))


def test_settings_arrive_where_they_belong():
    experiment = assemble(
        tiny("training.lr=0.3", "methods.fedavg.aggregate_over=all_clients", "engine.block=3", "rounds=7")
    )
    assert experiment.method.local.lr == 0.3
    assert vars(experiment.method)["aggregate_over"] == "all_clients"
    assert (vars(experiment.fed)["block"], experiment.rounds, experiment.fed.fraction) == (3, 7, 0.2)


def test_an_empty_data_dir_inside_a_method_is_filled():
    assert located(Outer(), "/data") == Outer(inner=Inner(data_dir="/data"))
    assert located(Outer(inner=Inner(data_dir="mine")), "/data") == Outer(inner=Inner(data_dir="mine"))


def test_a_model_of_the_users_own_is_imported_and_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code = "from torch import nn\ndef net(shape, classes, out=None):\n    "
    code += "return nn.Sequential(nn.Flatten(), nn.Linear(64, out or classes))\ndef narrow(s, c): return net(s, c, 7)\n"
    (tmp_path / "own_networks.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert assemble(tiny("model=own_networks:net")).method.model.parameters() == 650
    with pytest.raises(ModelError, match=r"output for 2 rows has shape \(2, 7\), wanted \(2, 10\)"):
        assemble(tiny("model=own_networks:narrow"))
    with pytest.raises(ConfigError, match="cannot be imported"):
        assemble(tiny("model=own_networks:wide"))
    (tmp_path / "half_written.py").write_text("def net(\n")
    with pytest.raises(ConfigError, match=r"model 'half_written:net' cannot be imported: .+half_written.py, line 1\)"):
        assemble(tiny("model=half_written:net"))


OWN_NETWORKS = """
from torch import nn
def refusing(shape, classes): raise ValueError("wants images of 28x28")
def missing(shape, classes): return {}["width"]
def negative(shape, classes): return nn.Linear(-1, classes)
def few(shape): return nn.Linear(64, 10)
def nothing(shape, classes): nn.Linear(64, classes)
class Unpacking(nn.Linear):
    def __init__(self, shape, classes): super().__init__(64, classes)
    def forward(self, x):
        rows, pixels = x.shape
"""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("refusing", r"called with \(1, 8, 8\) and 10 it failed: ValueError: wants images of 28x28"),
        ("missing", "it failed: KeyError: 'width'"),
        ("negative", "it failed: RuntimeError: .*negative dimension"),
        ("few", "it failed: TypeError: .*2 were given"),
        ("nothing", "it gave a NoneType"),
        ("Unpacking", r"failed on rows of shape \(1, 8, 8\): ValueError: too many values to unpack"),
    ],
)
def test_whatever_a_model_of_the_users_own_raises_names_it(name, why, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "raising_networks.py").write_text(OWN_NETWORKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModelError, match=f"model 'raising_networks:{name}' .*{why}"):
        assemble(tiny(f"model=raising_networks:{name}"))


OWN_METHODS = """
from dataclasses import dataclass
from kinfed.method import Method
from kinfed.methods.fedavg import FedAvg
from kinfed.models import Model
from kinfed.training import LocalTraining

@dataclass(frozen=True)
class Mine(FedAvg):
    strength: float = 0.5

@dataclass(frozen=True)
class Half(Method):
    model: Model
    local: LocalTraining = LocalTraining()

    def init(self, fed): ...

@dataclass(frozen=True)
class Blind(Method):
    init = round = offer = admit = personalise = None  # all there, but nothing to train
"""


@pytest.fixture
def own_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "methods.py").write_text(OWN_METHODS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("own_methods")
def test_a_method_of_the_users_own_is_imported_and_has_its_settings():
    config = tiny("method=my.methods:Mine", 'methods."my.methods:Mine".strength=0.7')
    method = assemble(config).method
    assert type(method).__name__ == "Mine" and method.strength == 0.7 and method.local == config.training
    again = read(tomllib.loads(write(config.resolve())))
    assert again == config and again.settings_of("my.methods:Mine")["strength"] == 0.7


@pytest.mark.usefixtures("own_methods")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method=my.methods:Mien"], "method 'my.methods:Mien' cannot be imported: .* wanted package.module:Class"),
        (["method=my.method:Mine"], "cannot be imported: No module named 'my.method'"),
        (["method=my.methods:Model"], "must be a dataclass that inherits from kinfed.method.Algorithm"),
        (["method=my.methods:LocalTraining"], "must be a dataclass that inherits from"),
        (["method=my.methods:Half"], "method 'my.methods:Half' lacks admit, personalise"),
        (["method=my.methods:Blind"], "lacks the field model and local"),
        (
            ["method=my.methods:Mine", 'methods."my.methods:Mine".strenght=1'],
            "unknown key 'methods.my.methods:Mine.strenght', did you mean 'methods.my.methods:Mine.strength'",
        ),
        (["compare=['my.methods:Mien']", "method=my.methods:Mien"], "cannot be imported"),
    ],
)
def test_a_method_of_the_users_own_that_cannot_be_is_one_line(words, said):
    with pytest.raises(ConfigError, match=said):
        tiny(*words)


def test_a_config_can_be_made_without_a_file():
    config = Config(method="local", partition=DisjointClasses(clients=10), rounds=1)
    assert len(assemble(config).run()) > 5


def test_another_partition_by_name_drops_the_settings_of_the_one_before(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[partition]\nname = "disjoint_classes"\ngroups = 5\n')
    config = load_config(file, ["partition.name=iid", "partition.clients=7"])
    assert config.partition.clients == 7 and type(config.partition).__name__ == "IID"
    assert load_config(file, ["partition.name=disjoint_classes", "partition.clients=10"]).partition.clusters == 5


def test_the_demo_is_a_valid_config():
    assert load_config(DEMO).data.public == 0.15


def test_a_table_laid_over_another_keeps_what_it_does_not_say():
    under = {"rounds": 5, "training": {"lr": 0.1, "epochs": 2}, "partition": {"name": "iid", "clients": 4}}
    over = {"training": {"lr": 0.5}, "partition": {"clients": 7}}
    assert laid_over(under, over)["training"] == {"lr": 0.5, "epochs": 2}
    assert laid_over(under, over)["partition"] == {"name": "iid", "clients": 7}
    assert laid_over(under, {"partition": {"name": "shards"}})["partition"] == {"name": "shards"}
    nameless = {"partition": {"clients": 20}}
    assert laid_over(nameless, {"partition": {"name": "iid"}})["partition"] == {"clients": 20, "name": "iid"}
    assert under["training"] == {"lr": 0.1, "epochs": 2}
