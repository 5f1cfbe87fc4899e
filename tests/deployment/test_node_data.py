"""What nodes read: files, tables, images and own code, alone and in one federation."""

import io
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from kinfed.config import load_config
from kinfed.deployment import ClientData, Plan, load_node_data, make_client_app
from kinfed.errors import ConfigError, DataError
from kinfed.learning_tasks import Classification, Regression
from kinfed.serving import export
from tests.deployment.test_apps import serve
from tests.engines.flower.loopback import Loopback
from tests.problems import tiny_population

image = pytest.importorskip("PIL.Image")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

NAMES = ("benign", "malignant", "unclear")
PLAN = Plan(clients=4, shape=(1, 8, 8), classes=3, wait_for=4, wait_seconds=5.0, class_names=NAMES)
CONFIG = load_config(None, ["method=fedavg", "rounds=1", "fraction=1.0", "engine.timeout=5"])
POPULATION = tiny_population()
LOADER = """
import numpy as np

def load(node):
    with np.load(node["data"]) as file:
        return file["x"], file["y"], file["test_x"], file["test_y"]
"""


def samples_of(client: int) -> tuple[np.ndarray, np.ndarray]:
    own = POPULATION.train[client]
    return POPULATION.x[own].numpy(), POPULATION.y[own].numpy()


def as_png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    image.fromarray(pixels[0]).save(file, "PNG")
    return file.getvalue()


def write_images(folder, client: int):
    for i, (pixels, label) in enumerate(zip(*samples_of(client), strict=True)):
        place = folder / NAMES[label]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i:03}.png").write_bytes(as_png(pixels))
    return folder


def write_parquet(path, client: int):
    x, y = samples_of(client)
    cells = [{"bytes": as_png(pixels), "path": f"{i}.png"} for i, pixels in enumerate(x)]
    table = pyarrow.table({"image": cells, "patient": list(range(len(x))), "diagnosis": [NAMES[label] for label in y]})
    parquet.write_table(table, path)
    return path


def write_pixels(path, client: int):
    x, y = samples_of(client)
    lines = [",".join([*(f"p{i}" for i in range(64)), "target"])]
    lines += [",".join([*map(str, pixels.flatten()), NAMES[label]]) for pixels, label in zip(x, y, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def read(node, plan=PLAN) -> ClientData:
    return plan.check(load_node_data({"name": "a", **node}, plan.kind, plan.class_names))


PARQUET = {"features": "image", "target": "diagnosis"}


def test_images_a_parquet_file_a_csv_file_and_own_code_are_nodes_of_one_federation(tmp_path, monkeypatch):
    (tmp_path / "clinic_loader.py").write_text(LOADER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    nodes = {
        "a": {"data": str(write_images(tmp_path / "scans", 1))},
        "b": {"data": str(write_parquet(tmp_path / "b.parquet", 2))} | PARQUET,
        "c": {"data": str(write_pixels(tmp_path / "c.csv", 3))},
    }
    x, y = samples_of(5)
    np.savez(tmp_path / "d.npz", x=x[:12], y=y[:12], test_x=x[12:], test_y=y[12:])
    nodes["d"] = {"data": str(tmp_path / "d.npz"), "loader": "clinic_loader:load"}

    def run(nodes, out):
        grid = Loopback(0)
        grid.app = make_client_app(CONFIG, PLAN)
        grid.online = {100 + i: {"name": name, **node} for i, (name, node) in enumerate(nodes.items())}
        return serve(grid, tmp_path / out, CONFIG, PLAN)

    summary = run(nodes, "mixed")
    assert summary["rejected_replies"] == 0
    (tmp_path / "plain").mkdir()
    for name, node in nodes.items():  # the same samples, as arrays
        data = read(node)._asdict()
        np.savez(tmp_path / "plain" / f"{name}.npz", **{part: t.numpy() for part, t in data.items()})
    plain = run({name: {"data": str(tmp_path / "plain" / f"{name}.npz")} for name in nodes}, "same")
    assert summary["accuracy"] == plain["accuracy"]
    assert json.loads((tmp_path / "mixed" / "task.json").read_text())["class_names"] == list(NAMES)


def test_planned_columns_are_taken_by_name(tmp_path):
    (tmp_path / "a.csv").write_text("pulse,target,ward,age\n70,0,w,30\n80,1,w,50\n90,1,w,40\n")
    (tmp_path / "b.csv").write_text("puls,age,target\n70,30,0\n")
    plan = Plan(clients=2, shape=(2,), classes=2, dtype="float32", feature_names=("age", "pulse"))
    planned = plan.kind, plan.class_names, plan.feature_names
    node = {"name": "a", "data": str(tmp_path / "a.csv"), "scale": False, "test": 0.0}
    assert load_node_data(node, *planned).x.tolist() == [[30, 70], [50, 80], [40, 90]]
    assert load_node_data(node | {"features": "pulse,age"}, *planned).x[0].tolist() == [70, 30]
    assert load_node_data(node | {"target": "target, pulse", "features": "age"}).y.tolist() == [
        [0, 70],
        [1, 80],
        [1, 90],
    ]
    with pytest.raises(DataError, match="has no column 'pulse': did you mean 'puls'"):
        load_node_data(node | {"data": str(tmp_path / "b.csv")}, *planned)


@pytest.mark.parametrize(("task", "target", "classes"), [("regression", "days", 1), ("multi_label", "fever,cough", 2)])
def test_tables_of_whole_numbers_are_nodes_of_a_federation_that_learns_numbers_or_labels(
    task, target, classes, tmp_path
):
    grid = Loopback(0)
    plan = Plan(clients=2, shape=(2,), classes=classes, dtype="float32", wait_for=2, wait_seconds=5.0,
                feature_names=("age", "pulse"))  # fmt: skip
    config = load_config(None, ["method=fedavg", "rounds=1", "model=linear", f"task.name={task}", "engine.timeout=5"])
    grid.app = make_client_app(config, plan)
    for number, name in enumerate(("a", "b")):
        rows = [f"{30 + i},{70 + i},{5 + (i + number) % 4},{i % 2},{i // 2 % 2}" for i in range(8)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,pulse,days,fever,cough", *rows]))
        grid.online[100 + number] = {"name": name, "data": str(tmp_path / f"{name}.csv"), "target": target}
    summary = serve(grid, tmp_path / "out", config, plan)
    assert summary["rejected_replies"] == 0
    assert summary["mae"] > 3 if task == "regression" else 0 <= summary["label_accuracy"] <= 1
    assert export(tmp_path / "out").about["table"] == {"features": ["age", "pulse"]}  # which a new client's table has


def test_targets_of_a_node_are_those_of_the_task(tmp_path):
    (tmp_path / "a.csv").write_text("age,target\n30,7\n50,9\n")
    plan = Plan(clients=1, shape=(1,), classes=1, dtype="float32")
    own = load_node_data({"name": "a", "data": str(tmp_path / "a.csv"), "test": 0.0}, plan.kind)
    assert plan.check(own, Regression()).y.tolist() == [7.0, 9.0]
    (tmp_path / "b.csv").write_text("age\n30\n50\n")
    unlabelled = load_node_data({"name": "b", "data": str(tmp_path / "b.csv")}, plan.kind)
    assert plan.check(unlabelled, Regression()).y.isnan().all()
    numbers = own._replace(y=own.y + 0.5)
    with pytest.raises(DataError, match="for numbers, set task"):
        plan.check(numbers, Classification())


NUMBERS = Plan(clients=1, shape=(2,), classes=2, dtype="float32")


@pytest.mark.parametrize("part", ["", "test_"])
@pytest.mark.parametrize("sick", [np.nan, np.inf, 1e300])
def test_samples_that_are_not_finite_are_refused(part, sick, tmp_path):
    arrays = {"x": np.zeros((4, 2)), "y": np.zeros(4, int), "test_x": np.zeros((4, 2)), "test_y": np.zeros(4, int)}
    arrays[f"{part}x"][1, 0] = sick
    np.savez(tmp_path / "samples.npz", **arrays)
    with pytest.raises(DataError, match="1 of 4 samples of x have a NaN or an infinity, the first is sample 1"):
        read({"data": str(tmp_path)}, NUMBERS)


def test_a_client_has_labels_for_all_training_samples_or_for_none_and_for_all_test_samples():
    x, y = torch.zeros(4, 2), torch.tensor([0, -1, 1, 0])
    known, none = y.clamp(min=0), torch.full((4,), -1)
    assert NUMBERS.check(ClientData(x, none, x, known), Classification()).y.tolist() == [-1] * 4
    with pytest.raises(
        DataError, match=r"training samples: 1 of 4 have no label .*, the first is sample 1; leave them"
    ):
        NUMBERS.check(ClientData(x, y, x, known), Classification())
    for labels in (y, none):
        with pytest.raises(DataError, match=r"test samples: . of 4 have no label"):
            NUMBERS.check(ClientData(x, known, x, labels), Classification())


def test_targets_are_as_many_numbers_as_the_plan_says():
    x, y = torch.zeros(4, 2), torch.zeros(4, 3)
    with pytest.raises(DataError, match="y has 3 numbers a sample, wanted 2"):
        NUMBERS.check(ClientData(x, y, x[:0], y[:0]), Regression())


@pytest.mark.parametrize("form", ["images", "parquet", "csv"])
def test_every_form_gives_the_same_samples(form, tmp_path):
    x, y = samples_of(3)
    data = {
        "images": lambda: read({"data": str(write_images(tmp_path / "scans", 3))}),
        "parquet": lambda: read({"data": str(write_parquet(tmp_path / "b.parquet", 3))} | PARQUET),
        "csv": lambda: read({"data": str(write_pixels(tmp_path / "c.csv", 3))}),
    }[form]()
    assert len(data.test_y) == round(0.2 * len(y))
    found = {(pixels.numpy().tobytes(), int(label)) for part in (data[:2], data[2:]) for pixels, label in zip(*part)}  # noqa: B905
    assert found == {(pixels.tobytes(), int(label)) for pixels, label in zip(x, y, strict=True)}


def test_a_client_without_a_class_keeps_the_labels_of_the_others(tmp_path):
    write_images(tmp_path, 3)
    for file in (tmp_path / "benign").iterdir():
        file.unlink()
    assert set(read({"data": str(tmp_path)}).y.tolist()) == {1, 2}
    unnamed = replace(PLAN, class_names=())
    with pytest.raises(DataError, match="malignant has images of a class that the server does not know; wanted 0 to 2"):
        read({"data": str(tmp_path)}, unnamed)
    for label, name in enumerate(NAMES):
        (tmp_path / name).rename(tmp_path / str(label))
    assert set(read({"data": str(tmp_path)}, unnamed).y.tolist()) == {1, 2}


def test_folders_train_and_test_and_images_of_another_size(tmp_path):
    write_images(tmp_path / "train", 3)
    write_images(tmp_path / "test", 4)
    data = read({"data": str(tmp_path)})
    assert (len(data.y), len(data.test_y)) == (31, 9)
    image.new("L", (16, 12)).save(tmp_path / "test" / "benign" / "zzz.png")
    with pytest.raises(DataError, match=r"zzz.png has 12x16 pixels, wanted 8x8: set resize = true"):
        read({"data": str(tmp_path)})
    assert len(read({"data": str(tmp_path), "resize": True}).test_y) == 10


def test_images_without_classes_are_a_client_that_wants_a_model(tmp_path):
    for i, pixels in enumerate(samples_of(3)[0]):
        (tmp_path / f"{i:02}.png").write_bytes(as_png(pixels))
    data = read({"data": str(tmp_path)})
    assert len(data.x) == 31 and set(data.y.tolist()) == {-1}


def test_a_parquet_column_of_lists_is_a_series_or_tokens(tmp_path):
    path = tmp_path / "samples.parquet"
    x = np.arange(40.0).reshape(5, 2, 4)
    parquet.write_table(pyarrow.table({"x": x.tolist(), "target": [0, 1, 0, 1, 0]}), path)
    data = read({"data": str(tmp_path)}, Plan(clients=1, shape=(2, 4), classes=2, dtype="float32"))
    assert len(data.y) == 4 and data.x.shape[1:] == (2, 4) and data.x.max() <= 39
    tokens = np.arange(15).reshape(5, 3)
    parquet.write_table(pyarrow.table({"x": tokens.tolist(), "target": [0, 1, 0, 1, 0]}), path)
    assert read({"data": str(path)}, Plan(clients=1, shape=(3,), classes=2, dtype="int64")).x.shape == (4, 3)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({}, "no data: start it with"),
        ({"data": "nowhere"}, "no such file or folder"),
        ({"data": ".", "taget": "y"}, "unknown key 'taget': did you mean 'target'"),
        ({"loader": "json:nothing"}, "loader 'json:nothing' cannot be imported"),
        ({"loader": "json:dumps"}, "loader 'json:dumps' must give"),
    ],
)
def test_a_config_of_a_node_that_is_not_valid_says_what_to_do(node, message):
    with pytest.raises((ConfigError, DataError), match=message):
        read(node)


def test_a_table_with_more_than_its_images_says_how_to_choose(tmp_path):
    with pytest.raises(DataError, match=r"column 'image' holds images or lists.*data.options.features"):
        read({"data": str(write_parquet(tmp_path / "b.parquet", 3)), "target": "diagnosis"})
    with pytest.raises(DataError, match="whole numbers 0 to 255"):
        path = write_pixels(tmp_path / "c.csv", 3)
        path.write_text(path.read_text().replace(",benign", "0.5,benign"))
        read({"data": str(path)})
