"""`kinfed export` and `kinfed assign` as their users meet them."""

import csv
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from kinfed import registry
from kinfed.cli import app
from kinfed.config import load_config, make_population
from kinfed.data.arrays import SampleKind
from kinfed.data.image_files import ImageForm, list_images, read_images
from kinfed.errors import DataError
from kinfed.files import BLANK, seal_text
from kinfed.serving import export, load
from kinfed.serving.client_files import summarise

pytestmark = pytest.mark.xdist_group("serving")  # one process makes the runs


def kinfed(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def assert_refused(result: Result, *parts: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ") and len(result.stderr.splitlines()) == 1
    for part in parts:
        assert part in result.stderr


@pytest.fixture
def repa(runs, folder_of, tmp_path):
    """A bundle, and a folder with a client's samples without labels."""
    run = runs("repa")
    export(run).save(tmp_path / "bundle")
    return tmp_path / "bundle", folder_of(make_population(load_config(run / "config.toml")), 0, labelled=False)


def test_export_counts_one_cluster_as_one(runs, tmp_path):
    assert " clients in 1 cluster, " in kinfed("export", runs("fedavg"), tmp_path / "bundle").output


def test_a_run_is_exported_and_a_client_gets_its_model(runs, repa, tmp_path):
    bundle, data = repa
    shown = kinfed("export", runs("repa"), tmp_path / "other").output.splitlines()
    assert shown[0].startswith("repa of 11 clients in ") and "nearest to the statistics" in shown[1]
    out = tmp_path / "model"
    shown = kinfed("assign", bundle, "--data", data, "--out", out, "--predict", data / "samples.npz").output
    written = json.loads((out / "assignment.json").read_text())
    assert f"to cluster {written['cluster']} (distance " in shown and written["bundle"]["method"] == "repa"
    x = torch.from_numpy(np.load(data / "samples.npz")["x"])
    with open(out / "predictions.csv", newline="") as file:
        predicted = list(csv.DictReader(file))
    mine = load(bundle).assign(x)
    assert [int(row["class"]) for row in predicted] == mine.predict(x).argmax(1).tolist()
    assert all(0.1 <= float(row["probability"]) <= 1 for row in predicted)
    assert mine.predict(x.numpy()[:, 0]).equal(mine.predict(x))
    with pytest.raises(DataError, match=r"the samples to predict are uint8 \[1, 4, 8\]"):
        mine.predict(x[:, :, :4])
    weights = load_file(out / "model.safetensors")
    assert all(weights[name].equal(w) for name, w in mine.params.items())
    torch.testing.assert_close(mine.module()(x / 255).softmax(1), mine.predict(x))
    assert_refused(kinfed("assign", bundle, "--data", data, "--out", out), "is there already", "--force")
    assert kinfed("assign", bundle, "--data", data / "samples.npz", "--out", out, "--force").exit_code == 0
    assert_refused(kinfed("export", runs("repa"), tmp_path / "other"), "is there already", "--force")


ALONE = """
import socket, sys
sys.modules.update(flwr=None, ray=None)  # importing one fails
def closed(*_): raise OSError("no network")
socket.socket.connect = closed
from kinfed.cli import app
app(sys.argv[1:], standalone_mode=False)
print(sorted(n for n in sys.modules if n.split(".")[0] in ("flwr", "ray", "grpc")))
"""


def test_a_client_is_assigned_in_one_process_without_flower_or_network(repa, tmp_path):
    bundle, data = repa
    command = [sys.executable, "-c", ALONE, "assign", str(bundle), "--data", str(data), "--out", str(tmp_path / "m")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert shown.splitlines()[-1] == "['flwr', 'ray']" and (tmp_path / "m" / "model.safetensors").exists()


def change(path: Path, **settings: object) -> None:
    """Forges a bundle's table: its digest is right."""
    path.write_text(
        seal_text(json.dumps({"digest": BLANK} | json.loads(path.read_text()) | {"digest": BLANK} | settings))
    )


@pytest.mark.parametrize(
    ("harm", "parts"),
    [
        (lambda b: (b / "bundle.json").unlink(), ["no bundle at", "kinfed export"]),
        (lambda b: (shutil.rmtree(b), b.write_text("a file")), ["no bundle at", "wanted a folder"]),
        (lambda b: (b / "bundle.json").write_text("{"), ["bundle.json cannot be read", "damaged"]),
        (
            lambda b: change(b / "bundle.json", format=4),
            ["has format 4, this kinfed reads 3: use the kinfed that wrote it"],
        ),
        (lambda b: change(b / "bundle.json", format=2), ["has format 2, this kinfed reads 3: run and export it again"]),
        (lambda b: change(b / "bundle.json", rounds=4, digest=None), ["bundle.json", "has no digest"]),
        (lambda b: change(b / "bundle.json", tensors="0" * 64), ["is not the one that bundle.json was written with"]),
        (lambda b: change(b / "bundle.json", samples={"shape": [1, 8, 8]}), ["incomplete", "dtype"]),
        (lambda b: change(b / "bundle.json", config={"method": "repaa"}), ["did you mean 'repa'?"]),
        (
            lambda b: change(
                b / "bundle.json", state={"served": {"models": {"w": {"$tensor": "gone"}}}, "root": {}, "centres": {}}
            ),
            ["incomplete", "gone"],
        ),
        (
            lambda b: change(b / "bundle.json", state={"served": {}}),
            ["a state with served was saved, and KMeansState has served, root, centres"],
        ),
        (lambda b: change(b / "bundle.json", config={"method": "repa", "model": "os:system"}), ["--trust"]),
        (lambda b: (b / "bundle.safetensors").unlink(), ["bundle.safetensors is not what was exported"]),
        (lambda b: os.truncate(b / "bundle.safetensors", 5000), ["bundle.safetensors is not what was exported"]),
    ],
)
def test_a_damaged_or_foreign_bundle_is_a_clear_error(repa, tmp_path, harm, parts):
    bundle, data = repa
    harm(bundle)
    assert_refused(kinfed("assign", bundle, "--data", data, "--out", tmp_path / "m"), *parts)
    assert not (tmp_path / "m").exists()


X = np.zeros((3, 8, 8), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "parts"),
    [
        ({"y": np.zeros(3, int)}, ["has no array x"]),
        ({"x": np.zeros((3, 9, 8), np.uint8)}, ["are uint8 [1, 9, 8], wanted samples as in training: uint8 [1, 8, 8]"]),
        ({"x": X / 255}, ["are float32 [8, 8], wanted"]),
        ({"x": X[:0]}, ["there are none"]),
        ({"x": X, "y": np.array([0, 1, 10])}, ["wanted a label 0..9 for each of 3, got 3 labels 0..10"]),
        ({"x": X, "y": np.zeros(2, int)}, ["got 2 labels 0..0"]),
        ({"x": X, "test_x": X}, ["has test_x alone; wanted test_x and test_y"]),
        ({"x": X, "test_x": X[:, :4], "test_y": np.zeros(3, int)}, ["its test samples are uint8 [1, 4, 8]"]),
    ],
)
def test_samples_that_do_not_fit_are_a_clear_error(repa, tmp_path, arrays, parts):
    np.savez(tmp_path / "samples.npz", **arrays)
    assert_refused(kinfed("assign", repa[0], "--data", tmp_path, "--out", tmp_path / "m"), *parts)


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04 cut off"])
def test_a_file_without_samples_is_a_clear_error(repa, tmp_path, content):
    (tmp_path / "samples.npz").write_bytes(content)
    assert_refused(kinfed("assign", repa[0], "--data", tmp_path, "--out", tmp_path / "m"), "samples.npz cannot be read")


def test_a_folder_that_is_empty_or_missing_is_a_clear_error(repa, tmp_path):
    (tmp_path / "empty").mkdir()
    for name, message in (("empty", "neither samples.npz nor images in"), ("missing", "no such file or folder")):
        assert_refused(kinfed("assign", repa[0], "--data", tmp_path / name, "--out", tmp_path / "m"), message)


def test_a_folder_of_images_is_samples_too(repa, tmp_path):
    image = pytest.importorskip("PIL.Image")
    bundle, data = repa
    x = np.load(data / "samples.npz")["x"]
    (tmp_path / "images").mkdir()
    for i, pixels in enumerate(x[:12]):
        image.fromarray(pixels[0]).save(tmp_path / "images" / f"{i:03}.png")
    out = tmp_path / "m"
    result = kinfed("assign", bundle, "--data", tmp_path / "images", "--predict", tmp_path / "images", "--out", out)
    assert result.exit_code == 0, result.output
    written, mine = json.loads((out / "assignment.json").read_text()), load(bundle).assign(x[:12])
    assert (
        written["samples"] == 12
        and written["cluster"] == mine.cluster
        and written["distance"] == mine.distances[mine.cluster]
    )
    assert len((out / "predictions.csv").read_text().splitlines()) == 13
    image.fromarray(x[0, 0, :4]).save(tmp_path / "images" / "zzz.png")
    assert_refused(kinfed("assign", bundle, "--data", tmp_path / "images", "--out", out, "--force"), "4x8 pixels")
    (tmp_path / "images" / "zzz.png").write_bytes(b"no image")
    assert_refused(kinfed("assign", bundle, "--data", tmp_path / "images", "--out", out, "--force"), "zzz.png cannot")


def test_images_are_read_by_name_with_channels_first(tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    for name, brighter in (("b.png", 100), ("a.png", 0)):
        image.fromarray(pixels + np.uint8(brighter)).save(tmp_path / name)
    found = read_images(list_images(tmp_path), ImageForm.of_shape((3, 2, 2)))
    assert found[0].tolist() == [[[0, 3], [6, 9]], [[1, 4], [7, 10]], [[2, 5], [8, 11]]]
    assert (found[1] == found[0] + 100).all()


def test_samples_that_are_not_finite_are_refused():
    kind = SampleKind((2,), "float32", 3)
    with pytest.raises(DataError, match="NaN"):
        kind.check(np.array([[0.0, np.nan]]), None, "rows")


def test_a_method_that_assigns_by_labels_asks_for_them(runs):
    with pytest.raises(DataError, match="IFCA's clients select their model by its loss; give y"):
        export(runs("ifca")).assign(X)


def test_a_run_that_cannot_be_exported_says_why(runs, tmp_path):
    assert_refused(kinfed("export", tmp_path / "nowhere", tmp_path / "b"), "no run at")
    assert_refused(
        kinfed("export", runs("local"), tmp_path / "b"),
        "local cannot be exported: its server has no model for unseen clients",
    )
    (tmp_path / "compare.toml").touch()
    assert_refused(kinfed("export", tmp_path, tmp_path / "b"), "is a comparison")
    shutil.copytree(runs("fedavg"), tmp_path / "run")
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    assert_refused(kinfed("export", tmp_path / "run", tmp_path / "b"), "no checkpoint at")
    (tmp_path / "run" / "summary.json").unlink()
    assert_refused(kinfed("export", tmp_path / "run", tmp_path / "b"), "has not ended", "kinfed resume")
    assert not (tmp_path / "b").exists()


def test_a_model_of_ones_own_is_imported_only_on_trust(runs, tmp_path, monkeypatch):
    code = "from torch import nn\ndef net(s, c): return nn.Sequential(nn.Flatten(), nn.Linear(64, c))\n"
    (tmp_path / "mine_served.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    export(runs("fedavg", "model=mine_served:net")).save(tmp_path / "bundle")
    np.savez(tmp_path / "samples.npz", x=X)
    monkeypatch.setattr(registry, "INVITED", set())  # another process
    assert_refused(kinfed("assign", "bundle", "--data", "."), "'mine_served:net'", "--trust")
    assert kinfed("assign", "bundle", "--data", ".", "--trust").exit_code == 0
    assert load_file(tmp_path / "model" / "model.safetensors")["1.weight"].shape == (10, 64)


def test_a_run_whose_config_was_changed_afterwards_is_not_exported(runs, tmp_path):
    copy = shutil.copytree(runs("repa"), tmp_path / "run")
    config = copy / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.1", "lr = 0.02"))
    assert_refused(kinfed("export", copy, tmp_path / "bundle"), "another config", "training.lr was 0.1, is 0.02")
    header = config.read_text().splitlines()[0]  # with the format
    config.write_text(f"{header}\nseed = 0\n")
    assert_refused(kinfed("export", copy, tmp_path / "bundle"), "another config", "method was 'repa'")


def test_a_client_that_fits_no_cluster_is_served_the_likeliest_unless_strict(runs, folder_of, tmp_path):
    run = runs("flt", "partition.clients=20")
    export(run).save(tmp_path / "bundle")
    population = make_population(load_config(run / "config.toml"))
    genuine, noise = folder_of(population, 0, labelled=False), tmp_path / "noise"
    noise.mkdir()
    drawn = torch.randint(0, 256, (60, *population.x.shape[1:]), generator=torch.Generator().manual_seed(0))
    np.savez(noise / "samples.npz", x=drawn.to(torch.uint8).numpy())
    shown = kinfed("assign", tmp_path / "bundle", "--data", noise, "--out", tmp_path / "odd").output
    said = json.loads((tmp_path / "odd" / "assignment.json").read_text())
    assert said["fits"] is False and said["p_value"] < 0.025 and said["cluster"] is not None
    assert f": fits none of the {len(said['distances'])} clusters (p = " in shown
    assert f"the likeliest, cluster {said['cluster']}, is served" in shown
    bundle, odd = load(tmp_path / "bundle"), np.load(noise / "samples.npz")["x"]
    assignment = replace(bundle.assign(torch.from_numpy(odd)), distances={0: 3.0})  # as if there were one cluster
    assert ": does not fit the only cluster (p = " in summarise(assignment, bundle)
    assert summarise(replace(assignment, samples=1), bundle).startswith("assigned by 1 sample: does not fit")
    strict = kinfed("assign", tmp_path / "bundle", "--data", noise, "--out", tmp_path / "none", "--strict")
    assert_refused(strict, "fits none of the")
    assert not (tmp_path / "none").exists()
    shown = kinfed("assign", tmp_path / "bundle", "--data", genuine, "--out", tmp_path / "usual").output
    said = json.loads((tmp_path / "usual" / "assignment.json").read_text())
    assert said["fits"] is True and f"to cluster {said['cluster']} (distance " in shown


def test_a_table_is_read_by_the_columns_that_were_trained_on(tmp_path):
    draw = np.random.default_rng(0)
    lines = [f"{ward},{draw.normal(50, 9):.1f},{draw.normal(70, 5):.1f},{'ill' if i % 3 else 'well'}"
             for ward in "abc" for i in range(20)]  # fmt: skip
    (tmp_path / "wards.csv").write_text("\n".join(["ward,age,pulse,state", *lines]))
    names = ["data.options.client=ward", "data.options.target=state", "partition.name=natural"]
    run = kinfed("run", f"data.name={tmp_path / 'wards.csv'}", *names, "method=fedavg", "model=linear", "rounds=1",
                 "--out", tmp_path / "run", "-q")  # fmt: skip
    assert run.exit_code == 0, run.output
    bundle, out = tmp_path / "bundle", tmp_path / "m"
    export(tmp_path / "run").save(bundle)

    def predict(table: list[str], data: str = "wards.csv") -> list[str]:
        (tmp_path / "new.csv").write_text("\n".join(table))
        words = ("--data", tmp_path / data, "--predict", tmp_path / "new.csv", "--out", out, "--force")
        result = kinfed("assign", bundle, *words)
        assert result.exit_code == 0, result.output
        return (out / "predictions.csv").read_text().splitlines()[1:]

    every = predict(["ward,age,pulse,state", *lines])
    assert len(every) == 60  # none is held out
    turned = [",".join(reversed(line.split(","))) for line in lines]
    assert predict(["state,pulse,age,ward", *turned]) == every
    assert predict(["age,pulse", ",".join(lines[0].split(",")[1:3])]) == every[:1]  # not scaled by itself
    (tmp_path / "old.csv").write_text("alter,pulse\n50,70")
    wrong = kinfed("assign", bundle, "--data", tmp_path / "old.csv", "--out", out, "--force")
    assert_refused(wrong, "old.csv has no column 'age' (it has: alter, pulse)", "rename it")


def test_numbers_are_predicted_under_the_names_of_their_columns_and_gaps_need_no_gaps_of_ones_own(tmp_path):
    lines = [f"{ward},{'' if i == 3 else 40 + i},{60 + i % 7},{5 + i // 3}" for ward in "abc" for i in range(20)]
    (tmp_path / "wards.csv").write_text("\n".join(["ward,age,pulse,days", *lines]))
    options = "data.options={client='ward', target='days', gaps='fill'}"
    run = kinfed("run", f"data.name={tmp_path / 'wards.csv'}", options, "partition.name=natural", "method=ifca",
                 "methods.ifca.clusters=2", "task.name=regression", "model=linear", "rounds=1", "--out",
                 tmp_path / "run", "-q")  # fmt: skip
    assert run.exit_code == 0, run.output
    export(tmp_path / "run").save(tmp_path / "bundle")
    (tmp_path / "new.csv").write_text("\n".join(["pulse,age,days", "60,40,5", "64,50,9", "62,45,7"]))
    words = ("--data", tmp_path / "new.csv", "--predict", tmp_path / "new.csv", "--out", tmp_path / "mine")
    result = kinfed("assign", tmp_path / "bundle", *words)
    assert result.exit_code == 0, result.output
    said = (tmp_path / "mine" / "predictions.csv").read_text().splitlines()
    assert said[0] == "sample,days" and len(said) == 4
    assert json.loads((tmp_path / "mine" / "assignment.json").read_text())["test_mae"] > 0


def test_a_report_names_clients_of_a_table(tmp_path):
    lines = [f"{ward},{40 + i},{i % 2}" for ward in ("Nørd", "<süd>") for i in range(10)]
    (tmp_path / "wards.csv").write_text("\n".join(["client,age,target", *lines]), encoding="utf-8")
    words = (f"data.name={tmp_path / 'wards.csv'}", "partition.name=natural", "method=flt", "model=linear", "rounds=1")
    run = kinfed("run", *words, "--out", tmp_path / "run", "-q")
    assert run.exit_code == 0, run.output
    assert kinfed("report", tmp_path / "run").exit_code == 0
    page = (tmp_path / "run" / "report" / "index.html").read_text(encoding="utf-8")
    assert "1 (Nørd)" in page and "0 (&lt;süd&gt;)" in page and "(<süd>)</th>" not in page


def test_a_client_that_fits_two_clusters_is_said_to(tmp_path, monkeypatch):
    """Two clusters with opposite numbers: samples without them fit both."""
    monkeypatch.chdir(tmp_path)
    draw = torch.Generator().manual_seed(0)
    rows = ["site,a,b,y"]
    for i in range(2400):
        a, b = torch.randn(2, generator=draw).tolist()
        rows.append(f"{i % 16},{a:.4f},{b:.4f},{(1 if i % 2 else -1) * (a - b):.4f}")
    (tmp_path / "sites.csv").write_text("\n".join(rows) + "\n")
    new = [row for row in rows if row.startswith(("site,", "3,"))]
    (tmp_path / "new.csv").write_text("\n".join(new) + "\n")
    (tmp_path / "unlabelled.csv").write_text("\n".join(",".join(row.split(",")[1:3]) for row in new) + "\n")
    table = ("data=sites.csv", "data.options.client=site", "data.options.target=y", "task=regression", "model=linear")
    kinfed("run", *table, "method=auto", "rounds=4", "--out", "run")
    kinfed("export", "run", "bundle")
    labelled = kinfed("assign", "bundle", "--data", "new.csv", "--out", "with").output
    unlabelled = kinfed("assign", "bundle", "--data", "unlabelled.csv", "--out", "without").output
    sure, doubtful = (json.loads((tmp_path / out / "assignment.json").read_text()) for out in ("with", "without"))
    assert sure["probability"] > 0.999 and "another one" not in labelled
    assert doubtful["probability"] < 0.9 and "it may belong to another one" in " ".join(unlabelled.split())
