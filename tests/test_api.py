"""The front door: what `import kinfed` gives, and runs of names, objects and configs."""

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import kinfed
from kinfed.config.assembly import name_method
from kinfed.data import Role
from kinfed.errors import CheckpointError, ConfigError, DataError, KinfedError
from kinfed.training import LocalTraining
from tests.problems import small_net, tiny_population

ROOT = Path(__file__).parents[1]
SMALL = {"partition": {"clients": 10}, "rounds": 2, "quiet": True}


@pytest.fixture(autouse=True)
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_importing_kinfed_loads_nothing_heavy():
    code = "import sys, kinfed; print([n for n in ('torch', 'numpy', 'scipy', 'typer', 'rich') if n in sys.modules])"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert shown.stdout == "[]\n"


def test_every_exported_name_is_there_and_the_list_is_complete():
    assert all(getattr(kinfed, name) is not None for name in kinfed.__all__)
    assert dir(kinfed) == sorted(kinfed.__all__)
    assert {kind.__name__ for kind in kinfed_methods()} <= set(kinfed.__all__)
    placed = {name for names in kinfed.PLACES.values() for name in names}
    assert placed | {"__version__", "report"} == set(kinfed.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'runn'"):
        kinfed.runn  # noqa: B018


def kinfed_methods() -> list[type]:
    from kinfed.methods import METHODS

    return list(METHODS.values())


def test_a_method_and_data_by_name_start_from_the_demo():
    result = kinfed.run("fedavg", "digits", **SMALL)
    assert result.path == Path("runs/fedavg-digits-seed0")
    assert (result.config.fraction, result.config.training.lr, result.config.rounds) == (0.5, 0.05, 2)
    assert result.summary["accuracy"] == pytest.approx(np.mean(result.accuracy))
    assert result.clusters is None


def test_a_config_is_given_as_a_file_a_table_or_an_object():
    Path("mine.toml").write_text('method = "local"\nrounds = 1\n[partition]\nclients = 5\n')
    table = {"method": "local", "rounds": 1, "partition": {"clients": 5}}
    results = [
        kinfed.run(c, quiet=True) for c in ("mine.toml", Path("mine.toml"), table, kinfed.load_config("mine.toml"))
    ]
    assert len({result.path for result in results}) == 4
    assert len({(result.path / "config.toml").read_text() for result in results}) == 1


def test_settings_are_plain_values_sections_or_objects():
    local, evaluation = LocalTraining(epochs=2, lr=0.2), kinfed.Evaluation(every=2)
    result = kinfed.run(
        "fedavg", "digits", training=local, evaluation=evaluation, engine="sequential", device="cpu", seed=3, **SMALL
    )
    config = result.config
    assert (config.training, config.evaluation, config.engine.name, config.seed) == (local, evaluation, "sequential", 3)
    with pytest.raises(ConfigError, match="round_s"):
        kinfed.run("fedavg", "digits", round_s=3)


def test_the_folder_of_datasets_is_a_keyword_as_it_is_an_option():
    Path("there").mkdir()
    x, y = np.zeros((40, 3), dtype=np.float32), np.arange(40) % 2
    np.savez("there/mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    more = {"partition": {"name": "iid", "clients": 4}, "model": "linear", "rounds": 1, "quiet": True}
    for folder in ("there", Path("there")):
        result = kinfed.run("fedavg", "mine", data_dir=folder, **more)
        assert result.config.data.dir == str(Path("there").absolute())
    with pytest.raises(ConfigError, match=r"data\.dir"):
        kinfed.run("fedavg", "mine", data_dir=3, **more)
    with pytest.raises(ConfigError, match=r"unknown config key 'data_dir': did you mean 'data.dir'\?"):
        kinfed.load_config(None, ["data_dir=there"])


def test_data_may_be_a_path_or_a_section_of_settings():
    lines = [f"{i % 3},{i % 7},{i % 2}" for i in range(60)]
    Path("ill.csv").write_text("\n".join(["ward,age,ill", *lines]))
    section = {"name": "ill.csv", "options": {"client": "ward", "target": "ill"}}
    more = {"partition": {"name": "natural"}, "model": "linear", "rounds": 1, "quiet": True}
    result = kinfed.run("fedavg", section, **more)
    assert len(result.accuracy) == 3 and result.config.data.options == section["options"]
    with pytest.raises(DataError, match="has no column 'client'"):
        kinfed.run("fedavg", Path("ill.csv"), **more)
    with pytest.raises(ConfigError, match=r"data: wanted the name of a dataset, .* got a list: kinfed\.data"):
        kinfed.run("fedavg", [1, 2])


def test_own_data_and_a_method_object_write_a_folder_that_reports_and_resumes():
    method = kinfed.FedAvg(small_net(), LocalTraining(1, 5, 0.1))
    result = kinfed.run(method, tiny_population(), rounds=2, fraction=1.0, quiet=True)
    assert result.path == Path("runs/fedavg-own-seed0")
    assert result.config.data.name.startswith("own:") and result.config.training == method.local
    assert result.report().is_file()
    assert kinfed.report(str(result.path), out="page") == Path("page/index.html")
    longer = result.resume(rounds=4, quiet=True)
    again = kinfed.run(method, tiny_population(), rounds=4, fraction=1.0, out="whole", quiet=True)
    assert longer.summary == again.summary
    more = kinfed.run(method, tiny_population(), rounds=5, fraction=1.0, out="whole", resume=True, quiet=True)
    assert more.to_frame()["round"].tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"model": small_net()},
            r"model: wanted a name or 'module:function', got a \w+: give .*FedAvg\(kinfed\.Model",
        ),
        ({"model": int}, "model: wanted a name or 'module:function', got a type"),
        ({"evaluation": LocalTraining()}, "evaluation: wanted a table"),
        ({"task": LocalTraining()}, "task: wanted a table with a name"),
        ({"partition": Role()}, "partition: wanted a table with a name"),
        ({"rounds": LocalTraining()}, "rounds: wanted an integer, got .LocalTraining"),
        ({"training": LocalTraining}, "training: wanted a table"),
        ({"trainin": LocalTraining()}, "unknown config key 'trainin': did you mean 'training'"),
    ],
)
def test_an_object_that_a_setting_cannot_be_is_refused(settings, reason):
    with pytest.raises(ConfigError, match=reason):
        kinfed.run("fedavg", tiny_population(), quiet=True, **settings)


def test_a_run_of_own_data_resumes_with_the_same_data_only():
    method = kinfed.FedAvg(small_net())
    kinfed.run(method, tiny_population(), rounds=1, out="mine", quiet=True)
    with pytest.raises(ConfigError, match=r"data came from Python as an object: give it again there.+resume=True"):
        kinfed.resume("mine", rounds=2, quiet=True)
    with pytest.raises(CheckpointError, match=r"another config: data\.name was 'own:"):
        kinfed.run(method, tiny_population(clusters=1), rounds=2, out="mine", resume=True, quiet=True)
    with pytest.raises(CheckpointError, match=r"another config: model was 'own:"):
        other = kinfed.FedAvg(kinfed.make_model("mlp_200", (1, 8, 8), 3))
        kinfed.run(other, tiny_population(), rounds=2, out="mine", resume=True, quiet=True)


def test_load_run_gives_what_run_gave():
    result = kinfed.run("ifca", "digits", **SMALL)
    loaded = kinfed.load_run(str(result.path))
    assert (loaded.summary, loaded.clusters, repr(loaded)) == (result.summary, result.clusters, repr(result))
    assert repr(result).startswith("IFCA seed 0 at runs/ifca-digits-seed0\n") and "accuracy" in repr(result)
    assert result._repr_html_().startswith("<table><thead><tr><th></th><th>last round</th>")
    with pytest.raises(CheckpointError, match="no run at nowhere"):
        kinfed.load_run("nowhere")


def test_the_settings_of_methods_are_given_to_a_comparison_as_to_a_run():
    clusters = {"methods": {"ifca": {"clusters": 3}}}
    by_place = kinfed.compare(["ifca"], tiny_population(), rounds=1, quiet=True, out="place", **clusters)
    by_name = kinfed.compare(methods=["ifca"], data=tiny_population(), rounds=1, quiet=True, out="name")
    assert [each.runs[0].config.methods["ifca"]["clusters"] for each in (by_place, by_name)] == [3, 2]


def test_dotted_keys_are_settings_as_in_a_sweep():
    dotted = {"training.lr": 0.2, "methods.ifca.clusters": 3, "partition.clients": 5}
    config = kinfed.run("ifca", **SMALL | dotted).config
    assert (config.training.lr, config.training.batch_size, config.methods["ifca"]["clusters"]) == (0.2, 10, 3)
    assert config.partition.clients == 5, "a dotted key goes over the section"
    with pytest.raises(ConfigError, match=r"unknown config key 'training.lrr': did you mean 'training.lr'\?"):
        kinfed.run("ifca", **SMALL | {"training.lrr": 0.2})


@pytest.mark.parametrize("settings", [{"data.public": 0.1}, {"partition": {"clients": 5}}, {"roles.late": 0.5}])
def test_settings_that_deal_samples_are_refused_beside_a_population(settings):
    with pytest.raises(ConfigError, match="is for data by name, and a population is as it is: leave it out, and give"):
        kinfed.run("fedavg", tiny_population(), rounds=1, quiet=True, **settings)


def test_a_comparison_doubts_its_data_once(caplog):
    far = replace(tiny_population(), x=1000 * torch.ones(len(tiny_population().y), 1, 8, 8))
    kinfed.compare(["fedavg", "local"], far, seeds=[0, 1], rounds=1, quiet=True)
    assert [record.getMessage()[:26] for record in caplog.records] == ["samples are 1e+03 in size,"]


def test_methods_are_compared_by_name_or_as_objects():
    people = tiny_population()
    methods = [kinfed.FedAvg(small_net()), kinfed.Local(small_net())]
    comparison = kinfed.compare(methods, people, seeds=[0, 1], rounds=1, out="both", quiet=True)
    assert [line.split()[0] for line in repr(comparison).splitlines()[1:]] == ["method", "FedAvg", "Local"]
    frame = comparison.to_frame()
    assert frame["method"].tolist() == ["fedavg", "local"] * 2 and frame["seed"].tolist() == [0, 0, 1, 1]
    mean = comparison.summary["local"]["accuracy_percent"]
    assert mean == pytest.approx(100 * frame[frame["method"] == "local"]["accuracy"].mean())
    assert kinfed.load_comparison("both").table == comparison.table
    assert comparison.report().is_file()
    with pytest.raises(ConfigError, match="already holds a comparison"):
        kinfed.compare(methods, people, seeds=[0, 1], rounds=1, out="both", quiet=True)
    longer = kinfed.compare(methods, people, seeds=[0, 1], rounds=2, out="both", resume=True, quiet=True)
    assert longer.runs[0].to_frame()["round"].tolist() == [1, 2]
    with pytest.raises(CheckpointError, match=r"is a comparison: use kinfed\.load_comparison"):
        kinfed.load_run("both")


@dataclass(frozen=True)
class Failing(kinfed.FedAvg):
    """FedAvg that fails with odd seeds."""

    def round(self, state, t, fed):
        if fed.seed % 2:
            raise RuntimeError("no such thing")
        return super().round(state, t, fed)


def test_a_run_that_failed_is_named_and_the_others_have_their_tables():
    methods, few = [Failing(small_net()), kinfed.Local(small_net())], {"seeds": [1, 0], "rounds": 1, "quiet": True}
    with pytest.raises(KinfedError, match=r"^1 of 4 runs failed, .*-seed1: RuntimeError: no such thing \(test_api.py"):
        kinfed.compare(methods, tiny_population(), out="both", **few)
    rows = [line.split(",")[:2] for line in Path("both/runs.csv").read_text().splitlines()[1:]]
    assert rows == [["local", "1"], [name_method(methods[0]), "0"], ["local", "0"]]
    assert {"compare.csv", "compare.md", "pairs.csv"} <= {path.name for path in Path("both").iterdir()}


def test_where_all_runs_failed_there_are_no_tables():
    with pytest.raises(KinfedError, match=r"^1 of 1 runs failed"):
        kinfed.compare([Failing(small_net())], tiny_population(), seeds=[1], rounds=1, out="none", quiet=True)
    assert not Path("none/compare.md").exists()


def test_a_missing_pandas_is_one_line(monkeypatch: pytest.MonkeyPatch):
    result = kinfed.run("local", "digits", **SMALL)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"^to_frame\(\) needs pandas: install it with pip install pandas$"):
        result.to_frame()


def test_a_local_class_has_no_name_for_a_config():
    class Mine(kinfed.FedAvg):
        pass

    with pytest.raises(ConfigError, match="define the class at the top level of a module"):
        kinfed.run(Mine(small_net()), tiny_population())


def test_digests_tell_populations_apart():
    from kinfed.config.assembly import name_data

    assert name_data(tiny_population()) == name_data(tiny_population())
    names = {name_data(p) for p in (tiny_population(), tiny_population(clusters=1), tiny_population(sizes=(7, 23)))}
    assert len(names) == 3


def test_a_run_of_own_data_is_exported_and_assigns_an_unseen_client():
    from kinfed import serving

    people = tiny_population()
    result = kinfed.run("ifca", people, rounds=2, methods={"ifca": {"clusters": 2}}, quiet=True)
    bundle = serving.load(result.export("bundle"))
    mine = people.train[0]
    assert bundle.assign(people.x[mine], people.y[mine]).cluster in (0, 1)
    with pytest.raises(ConfigError, match="to export a run, name its model"):
        kinfed.run(kinfed.FedAvg(small_net()), people, rounds=1, quiet=True).export("other")
