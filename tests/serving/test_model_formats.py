"""Models for other programs: a file takes samples as they are, and gives the model's predictions."""

import json
from zipfile import ZipFile

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from kinfed.cli import app
from kinfed.config import load_config, make_population
from kinfed.data.arrays import SampleKind
from kinfed.errors import ConfigError, ModelError
from kinfed.learning_tasks import Regression
from kinfed.models import Model, make_model
from kinfed.registry import is_installed
from kinfed.serving import load, model_formats
from kinfed.serving.assignment import OutputFolder
from kinfed.serving.model_formats import draw_samples, require_format, write_model
from kinfed.serving.run_export import export_run

pytestmark = [
    pytest.mark.xdist_group("serving"),  # one process makes the runs
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]
FORMATS = [
    "torchscript",
    pytest.param("onnx", marks=pytest.mark.skipif(not is_installed("onnxruntime"), reason="onnx")),
]


def read_model(path):
    """What another program computes of a file."""
    if path.suffix == ".pt":
        return torch.jit.load(str(path))
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(["predictions"], {"samples": x.numpy()})[0])


@pytest.mark.parametrize("form", FORMATS)
def test_a_bundle_has_a_file_for_each_cluster_that_reproduces_its_model(form, runs, tmp_path):
    run = runs("repa", "inputs.mean=[0.3]", "inputs.std=[0.4]", "methods.repa.clusters=2")
    result = CliRunner().invoke(app, ["export", str(run), str(tmp_path / "bundle"), "--format", form])
    assert result.exit_code == 0, result.output
    card = json.loads((tmp_path / "bundle" / "models" / "models.json").read_text())
    assert card["preprocessing_inside"] == {"divide_by": 255, "mean": [0.3], "std": [0.4]}
    assert card["input"] == {"name": "samples", "dtype": "uint8", "shape": ["n", 1, 8, 8]}
    bundle, population = load(tmp_path / "bundle"), make_population(load_config(run / "config.toml"))
    assert bundle.about["preprocessing"] == card["preprocessing_inside"]
    files = {one["cluster"]: one["file"] for one in card["models"]}
    assert set(files) == {cluster["cluster"] for cluster in bundle.about["clusters"]} and len(files) > 1
    x = population.x[population.train[0]]
    mine = bundle.assign(x)
    found = read_model(tmp_path / "bundle" / "models" / files[mine.cluster])(x[:7])
    torch.testing.assert_close(found, mine.predict(x[:7]), rtol=1e-4, atol=1e-5)


def test_models_that_were_half_written_are_gone_and_none_names_its_temporary_file(runs, tmp_path):
    models = tmp_path / "bundle" / "models"
    models.mkdir(parents=True)
    (models / ".cluster-0.pt.123.new").write_bytes(b"half")
    run = runs("repa", "inputs.mean=[0.3]", "inputs.std=[0.4]", "methods.repa.clusters=2")
    list(export_run(run, OutputFolder(tmp_path / "bundle"), form="torchscript"))
    names = sorted(path.name for path in models.iterdir())
    assert names[:2] == ["cluster-0.pt", "cluster-1.pt"]
    assert {name.split("/")[0] for name in ZipFile(models / names[0]).namelist()} == {"archive"}


@pytest.mark.parametrize("form", FORMATS)
def test_an_assigned_clients_model_is_written_too(form, runs, folder_of, tmp_path):
    run = runs("fedavg")
    assert CliRunner().invoke(app, ["export", str(run), str(tmp_path / "bundle")]).exit_code == 0
    population = make_population(load_config(run / "config.toml"))
    data = folder_of(population, 0, labelled=False)
    words = [
        "assign",
        str(tmp_path / "bundle"),
        "--data",
        str(data),
        "--out",
        str(tmp_path / "model"),
        "--format",
        form,
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    x = population.x[:3]
    wanted = load(tmp_path / "bundle").assign(population.x[population.train[0]]).predict(x)
    path = next(path for path in (tmp_path / "model").iterdir() if path.suffix in (".pt", ".onnx"))
    torch.testing.assert_close(read_model(path)(x), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "name", ["lenet5", "lstm", *(pytest.param(name, marks=pytest.mark.on_demand) for name in ("resnet18", "har_cnn"))]
)
def test_networks_with_convolutions_statistics_and_recurrence_are_written(name, form, tmp_path):
    kind = SampleKind((9, 128), "float32", 6) if name == "har_cnn" else SampleKind((3, 32, 32), "uint8", 10)
    model = make_model(name, kind.shape, kind.classes)
    params = model.init(3)
    write_model(tmp_path / f"m{model_formats.SUFFIXES[form]}", model, params, kind, form)
    x = draw_samples(kind, 4)
    wanted = model.task.predict(model.logits(params, x))
    torch.testing.assert_close(
        read_model(tmp_path / f"m{model_formats.SUFFIXES[form]}")(x), wanted, rtol=1e-3, atol=1e-4
    )


def test_a_regression_gives_numbers_in_its_own_unit(tmp_path):
    kind = SampleKind((4,), "float32", 1)
    model = Model(lambda: nn.Linear(4, 1), classes=1, task=Regression(mean=50.0, std=10.0))
    write_model(tmp_path / "m.pt", model, model.init(), kind, "torchscript")
    x = draw_samples(kind, 9)
    assert read_model(tmp_path / "m.pt")(x).equal(model.logits(model.init(), x) * 10 + 50)


def test_a_model_that_the_file_does_not_reproduce_is_refused_and_not_left(tmp_path):
    class Odd(nn.Linear):
        def forward(self, x):
            return super().forward(x) * (1 if len(x) < 3 else 2)  # what a trace cannot see

    kind = SampleKind((4,), "float32", 2)
    model = Model(lambda: Odd(4, 2), classes=2)
    with pytest.raises(ModelError, match="cannot be written as torchscript: its predictions differ"):
        write_model(tmp_path / "m.pt", model, model.init(), kind, "torchscript")
    assert not (tmp_path / "m.pt").exists()


def test_an_unknown_format_and_a_missing_package_are_errors_before_anything_is_written(runs, tmp_path, monkeypatch):
    result = CliRunner().invoke(app, ["export", str(runs("fedavg")), str(tmp_path / "b"), "--format", "pickle"])
    assert result.exit_code == 2 and "--format must be one of torchscript, onnx" in result.stderr
    monkeypatch.setattr(model_formats, "is_installed", lambda name: False)
    with pytest.raises(
        ConfigError, match=r"ONNX files need onnx, onnxscript, onnxruntime: pip install 'kinfed\[onnx\]'"
    ):
        require_format("onnx")
    result = CliRunner().invoke(app, ["export", str(runs("fedper")), str(tmp_path / "b"), "--format", "torchscript"])
    assert result.exit_code == 2 and "serves no whole model" in result.stderr and not (tmp_path / "b").exists()
