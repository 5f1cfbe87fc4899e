"""Config: tables to dataclasses and back, overrides, errors that help, the parts put together."""

import ast
import inspect
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import jsonschema
import pytest
import torch

from kinfed.config import DEMO, Config, assemble, json_schema, load_config, merge_tables, read, read_toml, to_toml
from kinfed.config.assembly import POPULATION, configure, fill_data_dir, make_population
from kinfed.config.schema import build, to_table
from kinfed.config.settings import RENAMED, SYNONYMS, all_keys
from kinfed.config.toml import apply_overrides, parse_value
from kinfed.data import PARTITIONS, SHIFTS
from kinfed.data.drift import LabelSwapDrift, RotationDrift
from kinfed.data.partitions import IID, DisjointClasses, Natural
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
    assert build(Outer, tomllib.loads(to_toml(to_table(settings))), "x") == settings


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rat": 1}, "unknown config key 'x.rat': did you mean 'x.rate'?"),
        ({"callback": 1}, "unknown config key 'x.callback'"),
        ({"inner": {"sise": 1}}, "unknown config key 'x.inner.sise': did you mean 'x.inner.size'?"),
        ({"rate": "fast"}, 'x.rate: wanted a number, got "fast"'),
        ({"rate": float("nan")}, "x.rate: wanted a finite number, got nan"),
        ({"rate": True}, "x.rate: wanted a number, got true"),
        ({"inner": {"size": 1.5}}, "x.inner.size: wanted an integer, got 1.5"),
        ({"kind": "c"}, 'x.kind: wanted "a" or "b", got "c"'),
        ({"pairs": [[1, 2], [3]]}, "x.pairs[1][1] is missing: it has no default, give it a value"),
        ({"pairs": [[1, "b"]]}, 'x.pairs[0][1]: wanted an integer, got "b"'),
        ({"limit": "all"}, 'x.limit: wanted an integer or "none", got "all"'),
        ({"inner": 3}, "x.inner: wanted a table, got 3"),
    ],
)
def test_a_wrong_table_says_what_is_wrong_where(table: dict[str, object], message: str):
    with pytest.raises(ConfigError) as caught:
        build(Outer, table, "x")
    assert str(caught.value).startswith(message)


def test_overrides_are_toml_values_and_bare_words_are_text():
    assert [parse_value(text) for text in ("3", "0.1", "true", "[1, 2]", "mnist", '"3"', "1\nx = 2")] == [
        3, 0.1, True, [1, 2], "mnist", "3", "1\nx = 2",
    ]  # fmt: skip
    assert parse_value("[Weight, body mass]") == ["Weight", "body mass"]  # as a shell leaves ['Weight', 'body mass']
    assert [parse_value(text) for text in ("[a, 'b]", "[a[1]]", "[,]", "[a=1]")] == [
        "[a, 'b]",
        "[a[1]]",
        "[,]",
        "[a=1]",
    ]
    before = {"a": {"b": 1, "c": 2}}
    assert apply_overrides(before, ["a.b=5", "d.e=word"]) == {"a": {"b": 5, "c": 2}, "d": {"e": "word"}}
    assert before == {"a": {"b": 1, "c": 2}}


@pytest.mark.parametrize("text", ["rounds", "=3", "a..b=3"])
def test_an_override_without_key_or_value_is_refused(text: str):
    with pytest.raises(ConfigError, match="wanted key=value"):
        apply_overrides({}, [text])


def test_options_go_over_overrides_which_go_over_the_file(tmp_path: Path):
    file = tmp_path / "a.toml"
    file.write_text('method = "fedavg"\nrounds = 1\nseed = 1\n[training]\nlr = 1\nepochs = 2\n')
    config = load_config(file, ["rounds=2", "training.lr=0.5"], {"rounds": 3})
    assert load_config(str(file), ["rounds=2", "training.lr=0.5"], {"rounds": 3}) == config
    assert (config.rounds, config.seed, config.training.lr, config.training.epochs) == (3, 1, 0.5, 2)


def test_the_nearest_known_key_is_named():
    with pytest.raises(ConfigError, match=r"unknown config key 'roundz': did you mean 'rounds'\?"):
        read({"roundz": 3})
    with pytest.raises(ConfigError, match=r"unknown config key 'lr': did you mean 'training.lr'\?"):
        read({"lr": 0.1})
    with pytest.raises(
        ConfigError, match=r"unknown config key 'partition.clsters': did you mean 'partition.clusters'\?"
    ):
        read({"partition": {"clsters": 3}})
    with pytest.raises(ConfigError, match=r"unknown config key 'methods.fedavg.agregate_over': did you mean"):
        read({"methods": {"fedavg": {"agregate_over": "participants"}}})
    with pytest.raises(ConfigError, match=r"unknown method 'fedavgg': did you mean 'fedavg'\?"):
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
    with pytest.raises(ConfigError, match=f"^unknown config key '{key}': did you mean '{meant}'\\?; known in "):
        load_config(None, [f"{key}=1"])


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("alpha", "partition.beta"),
        ("partition.alpha", "partition.beta"),
        ("num_clients", "partition.clients"),
        ("data.n_clients", "partition.clients"),
        ("learning_rate", "training.lr"),
        ("methods.fedavg.learning_rate", "training.lr"),
        ("num_rounds", "rounds"),
        ("local_epochs", "training.epochs"),
        ("bs", "training.batch_size"),
        ("training.optimizer", "training.optimiser"),
        ("dataset", "data.name"),
        ("data.path", "data.name"),
    ],
)
def test_the_usual_name_of_a_setting_is_refused_with_ours(key, meant):
    with pytest.raises(ConfigError, match=f"^unknown config key '{key}': did you mean '{meant}'\\?; known"):
        load_config(None, [f"{key}=1"])


def test_a_methods_own_setting_comes_before_a_synonym():
    with pytest.raises(ConfigError, match=r"'alpha': did you mean 'methods.apfl.alpha'\?"):
        load_config(None, ["method=apfl", "alpha=0.5"])
    with pytest.raises(ConfigError, match=r"'partition.alpha': did you mean 'partition.beta'\?"):
        load_config(None, ["method=apfl", "partition.alpha=0.5"])


def test_every_synonym_is_unknown_and_stands_for_one_known_key():
    keys, others = set(all_keys("flt")), [name for names in SYNONYMS.values() for name in names]
    assert set(SYNONYMS) <= keys and len(set(others)) == len(others) and not set(others) & keys


@pytest.mark.parametrize(
    ("setting", "owner"),
    [
        ("methods.flt.signature.tuning=none", "encoder_centroids"),
        ("methods.flt.relatedness.threshold=1", "relatedness"),
        ("methods.flt_paper.relatedness.level=0.1", "calibrated"),
    ],
)
def test_a_setting_of_another_part_is_refused_with_the_name_of_its_part(setting, owner):
    with pytest.raises(ConfigError, match=rf"has no setting '\w+': it goes with name = '{owner}'"):
        load_config(None, [setting])


@pytest.mark.parametrize(
    ("key", "new"),
    [
        ("partition.groups", "partition.clusters"),
        ("data.train_rows", "data.train_samples"),
        ("methods.flt.signature.pretraining.rows", "methods.flt.signature.pretraining.samples"),
        ("algorithm", "method"),
        ("algorithms.flt.clusters", "methods"),
    ],
)
def test_a_key_from_before_its_renaming_is_refused_with_the_new_one(key, new):
    with pytest.raises(ConfigError, match=f"^config key '[a-z_.]+' was renamed to '{new}'; write that$"):
        load_config(None, [f"{key}=1"])


def test_every_renamed_key_is_unknown_and_its_new_name_known():
    known = {*all_keys("flt"), "methods"}
    assert not set(RENAMED) & known and set(RENAMED.values()) <= known


def test_an_impossible_value_names_its_section():
    with pytest.raises(ConfigError, match=r"^training: wanted lr > 0"):
        read({"training": {"lr": -1.0}})


@pytest.mark.parametrize(
    "names",
    [f"method={method}" for method in METHODS]
    + [f"partition.name={name}" for name in PARTITIONS]
    + [f"shift.name={name}" for name in SHIFTS],
)
def test_a_resolved_config_reads_back_as_the_same(names: str):
    config = load_config(None, [names, "change.round=3"])
    text = to_toml(config.resolve())
    assert read(tomllib.loads(text)) == config
    assert to_toml(read(tomllib.loads(text)).resolve()) == text


def test_a_file_that_begins_with_a_byte_order_mark_is_read(tmp_path: Path):
    (tmp_path / "c.toml").write_text("\ufeffrounds = 7\n", encoding="utf-8")
    assert read_toml(tmp_path / "c.toml") == {"rounds": 7}


def test_a_config_file_is_readable():
    text = to_toml(load_config(None, ["shift.name=label_swap", "method=local"]).resolve())
    assert 'compare = ["fedavg", "local", "flt", "auto"]\n' in text
    assert '\n[shift]\nname = "label_swap"\npairs = [[0, 1], [2, 3], [4, 5], [6, 7]]\n' in text
    assert text.endswith("\n[methods.local]\n")


EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.toml"))


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    return jsonschema.Draft202012Validator(json_schema())


@pytest.mark.parametrize("path", [DEMO, *EXAMPLES], ids=lambda path: path.stem)
def test_the_json_schema_takes_the_demo_and_every_example(path, schema):
    schema.validate(tomllib.loads(path.read_text()))
    schema.validate(tomllib.loads(to_toml(load_config(path).resolve())))


@pytest.mark.parametrize(
    "setting",
    [
        "training.lrr=0.1", "roundz=3", "partition.clents=3", "methods.flt.signature.latnt=3", "methods.fltt.case=1",
        "rounds=1.5", "training.lr=fast", "methods.flt.case=unrelated", "shift.name=blur", "partition.name=dirichlett",
    ],
)  # fmt: skip
def test_the_json_schema_refuses_what_a_config_refuses(setting, schema):
    with pytest.raises(ConfigError):
        load_config(DEMO, [setting])
    assert not schema.is_valid(apply_overrides(read_toml(DEMO), [setting]))


@pytest.mark.parametrize(
    "setting",
    ["partition.samples_per_class=none", "training.lr=1", 'methods."my:Own".size=3', "partition.name=my:Split"],
)
def test_the_json_schema_takes_none_whole_floats_and_parts_of_the_users_own(setting, schema):
    schema.validate(apply_overrides(read_toml(DEMO), [setting]))


def test_a_resolved_config_has_every_default():
    resolved = tiny().resolve()
    assert resolved["fraction"] == 0.2
    assert resolved["change"] == {"round": 0, "fraction": 1.0}
    assert resolved["partition"] == {
        "name": "disjoint_classes", "clients": 10, "clusters": 5, "labels_per_cluster": 2, "samples_per_class": "none",
    }  # fmt: skip
    assert resolved["methods"]["fedavg"]["aggregate_over"] == "participants"
    assert resolved["methods"]["fedavg"]["server"]["name"] == "sgd"


def test_methods_of_one_seed_meet_the_same_clients():
    one, other = (assemble(replace(tiny(), method=method)).fed.population for method in ("fedavg", "local"))
    assert torch.equal(one.x, other.x)
    assert all(torch.equal(a, b) for a, b in zip(one.train + one.test, other.train + other.test, strict=True))


def test_the_settings_that_clients_depend_on_are_those_that_make_them():
    tree = ast.parse(inspect.getsource(make_population))
    read = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "config"
    }
    assert read == {"seed", *POPULATION}


def test_settings_arrive_where_they_belong():
    experiment = assemble(
        tiny("training.lr=0.3", "methods.fedavg.aggregate_over=all_clients", "engine.block=3", "rounds=7")
    )
    assert experiment.method.local.lr == 0.3
    assert vars(experiment.method)["aggregate_over"] == "all_clients"
    assert (vars(experiment.fed)["block"], experiment.rounds, experiment.fed.fraction) == (3, 7, 0.2)


def test_an_empty_data_dir_inside_a_method_is_filled():
    assert fill_data_dir(Outer(), "/data") == Outer(inner=Inner(data_dir="/data"))
    assert fill_data_dir(Outer(inner=Inner(data_dir="mine")), "/data") == Outer(inner=Inner(data_dir="mine"))


def test_a_model_of_the_users_own_is_imported_and_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code = "from torch import nn\ndef net(shape, classes, out=None):\n    "
    code += "return nn.Sequential(nn.Flatten(), nn.Linear(64, out or classes))\ndef narrow(s, c): return net(s, c, 7)\n"
    (tmp_path / "own_networks.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert assemble(tiny("model=own_networks:net")).method.model.parameters() == 650
    with pytest.raises(ModelError, match=r"output for 2 samples has shape \(2, 7\), wanted \(2, 10\)"):
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
        samples, pixels = x.shape
"""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("refusing", r"called with \(1, 8, 8\) and 10 it failed: ValueError: wants images of 28x28"),
        ("missing", "it failed: KeyError: 'width'"),
        ("negative", "it failed: RuntimeError: .*negative dimension"),
        ("few", "it failed: TypeError: .*2 were given"),
        ("nothing", "it gave a NoneType"),
        ("Unpacking", r"failed on samples of shape \(1, 8, 8\): ValueError: too many values to unpack"),
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
    again = read(tomllib.loads(to_toml(config.resolve())))
    assert again == config and again.settings_of("my.methods:Mine")["strength"] == 0.7


@pytest.mark.usefixtures("own_methods")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method=my.methods:Mien"], "method 'my.methods:Mien' cannot be imported: .* wanted package.module:name"),
        (["method=my.method:Mine"], "cannot be imported: No module named 'my.method'"),
        (["method=my.methods:Model"], "must be a dataclass that inherits from kinfed.method.Method"),
        (["method=my.methods:LocalTraining"], "must be a dataclass that inherits from"),
        (["method=my.methods:Half"], "method 'my.methods:Half' lacks offer, round"),
        (["method=my.methods:Blind"], "lacks the field model and local"),
        (
            ["method=my.methods:Mine", 'methods."my.methods:Mine".strenght=1'],
            "unknown config key 'methods.my.methods:Mine.strenght': did you mean 'methods.my.methods:Mine.strength'",
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


@pytest.mark.parametrize("word", ["drift=rotation", "drift.name=rotation"])
def test_another_drift_by_name_drops_the_settings_of_the_one_before(word: str):
    example = Path(__file__).parents[1] / "examples" / "digits-drift.toml"
    assert load_config(example, [word]).drift == RotationDrift()
    kept = load_config(example, ["drift=label_swap"]).drift
    assert isinstance(kept, LabelSwapDrift) and kept.change_rounds == (5, 10)


def test_another_partition_by_name_drops_the_settings_of_the_one_before(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[partition]\nname = "disjoint_classes"\nclusters = 5\n')
    config = load_config(file, ["partition.name=iid", "partition.clients=7"])
    assert config.partition.clients == 7 and type(config.partition).__name__ == "IID"
    assert load_config(file, ["partition.name=disjoint_classes", "partition.clients=10"]).partition.clusters == 5


def test_the_demo_is_a_valid_config():
    assert load_config(DEMO).data.public == 0.15


def test_a_table_laid_over_another_keeps_what_it_does_not_say():
    under = {"rounds": 5, "training": {"lr": 0.1, "epochs": 2}, "partition": {"name": "iid", "clients": 4}}
    over = {"training": {"lr": 0.5}, "partition": {"clients": 7}}
    assert merge_tables(under, over)["training"] == {"lr": 0.5, "epochs": 2}
    assert merge_tables(under, over)["partition"] == {"name": "iid", "clients": 7}
    assert merge_tables(under, {"partition": {"name": "shards"}})["partition"] == {"name": "shards"}
    nameless = {"partition": {"clients": 20}}
    assert merge_tables(nameless, {"partition": {"name": "iid"}})["partition"] == {"clients": 20, "name": "iid"}
    assert under["training"] == {"lr": 0.1, "epochs": 2}


@pytest.mark.parametrize(
    "setting",
    [
        "methods.flt.recluster_share=-1",
        "methods.flt.recluster_share=2",
        "methods.flt.recluster_every=-1",
        "methods.flt.clusters=-1",
        "methods.flt.relatedness.kernel_width=inf",
        "methods.flt.relatedness.min_dist=-1",
        "methods.flt.signature.tuning_lr=-0.1",
        "engine.timeout=-inf",
        "engine.timeout=0",
        "engine.attempts=0",
        "engine.block=-1",
        "engine.workers=-1",
        "data.validation=-0.5",
        "data.train_samples=0",
        "training.adapt_epochs=-1",
        "methods.cfl.after=-1",
        "methods.cfl.rule.gap=-1",
        "methods.fesem.clusters=0",
        "methods.fedprox.mu=nan",
        "methods.per_fedavg.alpha=inf",
        "methods.scaffold.server_lr=-1",
        "methods.pca_km_hc.threshold=-1",
        "methods.flhc.hierarchy.threshold=-1",
        "methods.repa.clusters=0",
        f"rounds={10**30}",
        f"training.lr={10**400}",
    ],
)
def test_settings_without_a_meaning_are_refused_whichever_method_runs(setting: str):
    with pytest.raises(ConfigError):
        load_config(None, ["method=fedavg", setting])


def test_a_cosine_schedule_without_an_end_lasts_all_rounds():
    assert load_config(None, ["training.schedule=cosine", "rounds=7"]).training.schedule_rounds == 7
    assert load_config(None, ["training.schedule=cosine"]).training.schedule_rounds == Config.rounds
    assert load_config(None, ["training.schedule=cosine", "training.schedule_rounds=3"]).training.schedule_rounds == 3
    with pytest.raises(ConfigError, match="schedule_rounds must be at least 1"):
        load_config(None, ["training.schedule=step"])


@pytest.mark.parametrize(
    ("words", "partition"),
    [
        (["data=heart"], "natural"),
        (["data.name=clinics.csv", "rounds=3"], "natural"),
        (["data=heart", "partition=iid"], "iid"),
        (["partition.clients=7", "data=heart"], "disjoint_classes"),
        (["data=mnist"], "disjoint_classes"),
        ([], "disjoint_classes"),
    ],
)
def test_data_that_say_whose_each_sample_is_are_dealt_to_these_clients(words: list[str], partition: str):
    assert load_config(DEMO, words).resolve()["partition"]["name"] == partition


def test_a_file_or_a_table_that_names_no_partition_takes_the_clients_of_its_data(tmp_path: Path):
    (tmp_path / "own.toml").write_text('[data]\nname = "har"\n')
    named = read({"data": {"name": "har"}, "partition": {"name": "iid"}})
    assert load_config(tmp_path / "own.toml").partition == read({"data": {"name": "har"}}).partition == Natural()
    assert named.partition == IID()
    assert configure("fedavg", "heart", {}).partition == Natural()
    assert configure("fedavg", "heart", {"partition": {"name": "iid"}}).partition == IID()


def test_a_setting_whose_bytes_are_no_text_is_refused():
    with pytest.raises(ConfigError, match="must be text in UTF-8"):
        load_config(DEMO, ["task.name=\udced"])
