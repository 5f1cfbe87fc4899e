import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

from kinfed.config import load_config
from kinfed.config.assembly import assemble, make_population
from kinfed.data import load
from kinfed.data.arrays import SampleKind
from kinfed.data.readers import parse_targets
from kinfed.deployment import Plan, load_folder, load_node_data
from kinfed.deployment.node_data import FileForm, load_samples
from kinfed.engines.flower.node import ClientData
from kinfed.errors import ConfigError, DataError

HEADER = "hospital,age,chol,ill\n"
ROWS = [f"{'AB'[i % 2]},{40 + i},{200 + 3 * i},{'yes' if i % 3 else 'no'}\n" for i in range(20)]
OPTIONS = {"client": "hospital", "target": "ill"}


def write(folder, text: str):
    path = folder / "patients.csv"
    path.write_text(text)
    return str(path)


def test_a_table_becomes_natural_clients_with_named_classes(tmp_path):
    path = write(tmp_path, HEADER + "".join(ROWS))
    found = load(path, options=OPTIONS)
    assert found.class_names == ("no", "yes") and found.client_names == ("A", "B") and found.x_train.shape == (16, 2)
    own = found.x_train[found.writer_train == 0]
    assert own.mean(0) == pytest.approx([0, 0], abs=1e-5) and own.std(0, ddof=1) == pytest.approx([1, 1], abs=1e-4)
    config = load_config(None, [f"data.name={path}", "data.options={client='hospital', target='ill'}",
                                "partition.name=natural"])  # fmt: skip
    assert make_population(config).class_names == ("no", "yes")


def test_a_column_of_numbers_is_a_regression_and_integers_are_classes(tmp_path):
    path = write(tmp_path, HEADER + "".join(ROWS))
    ages = load(path, options={"client": "hospital", "target": "age", "features": ["chol"], "scale": False})
    assert ages.class_names[0] == "40" and ages.classes == 20
    assert parse_targets(["1.5", "2"], "y")[0].dtype == np.float32
    assert parse_targets(["10", "9", "9"], "y")[0].tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (HEADER + "".join(ROWS), {"target": "ill"}, "has no column 'client'"),
        (HEADER + "".join(ROWS), OPTIONS | {"client": "hospitl"}, "did you mean 'hospital'.*data.options.client"),
        (HEADER + "A,x,1,no\n" + "".join(ROWS), OPTIONS, "column 'age' has text, 'x' in row 2"),
        (HEADER + "".join(ROWS) + "A,,1,no\n", OPTIONS, "missing values in age .1.*gaps = 'fill'"),
        (HEADER + "".join(ROWS) + "A,1,1,\n", OPTIONS, "column 'ill' has no value in row 22"),
        (HEADER + "A,1\n" + "".join(ROWS), OPTIONS, "row 2 has 2 fields, the header 4"),
        (HEADER + "A,1,1,\n" + "".join(ROWS), OPTIONS, "column 'ill' has no value in row 2"),
        (HEADER + "".join(ROWS) + "A,1\n", OPTIONS, "row 22 has 2 fields, the header 4"),
        (HEADER, OPTIONS, "has nothing below its header"),
    ],
)
def test_a_bad_table_says_where_and_what_to_do(tmp_path, text, options, expected):
    with pytest.raises(DataError, match=expected):
        load(write(tmp_path, text), options=options)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([[1.0, 2.0], [1.0]], r"lists of column 'series' must have one shape, got \[1\] and \[2\]"),
        ([[[1.0, 2.0], [1.0]]] * 2, "lists of column 'series': wanted an array, every sample of the same shape"),
        (
            [[1.0, 2.0], [1.0, float("nan")]],
            "missing values .NaN. in column 'series', in 1 of 2 rows, the first is row 3",
        ),
        ([[["a", "b"]], [["a", "c"]]], "column 'series' holds lists of <U1, wanted lists of numbers"),
        ([[1, 2], [1, -2]], "token ids of x_.* must be 0, 1, 2, …, got -2"),
    ],
)
def test_bad_series_and_tokens_of_a_table_are_refused(tmp_path, cells, expected):
    path = tmp_path / "series.parquet"
    parquet.write_table(pyarrow.table({"client": [0, 0], "target": ["a", "b"], "series": cells}), path)
    with pytest.raises(DataError, match=expected):
        load(str(path))


def test_a_network_for_tokens_knows_all_of_them(tmp_path):
    path = tmp_path / "tokens.parquet"
    parquet.write_table(pyarrow.table({"client": [0, 0], "target": ["a", "b"], "words": [[0, 1], [1, 7]]}), path)
    with pytest.raises(ConfigError, match=r"'char_cnn' knows as many tokens as there are classes, 2, .* token 7"):
        assemble(load_config(None, [f"data.name={path}", "partition.name=natural", "model=char_cnn"]))


def test_a_node_with_a_class_that_the_server_does_not_know_is_refused_when_it_starts(tmp_path):
    table = tmp_path / "samples.csv"
    table.write_text("age,target\n40,no\n50,mabe\n")
    with pytest.raises(DataError, match="the class 'mabe', which the server does not know: did you mean 'maybe'"):
        load_node_data({"name": "north", "data": str(table)}, SampleKind((1,), "float32", 3), ("no", "yes", "maybe"))
    data = load_node_data({"name": "north", "data": str(table)}, SampleKind((1,), "float32", 3), ("no", "mabe", "yes"))
    with pytest.raises(DataError, match=r"wanted labels 0\.\.0"):  # of arrays, which have numbers alone
        Plan(clients=1, shape=(1,), classes=1, dtype="float32").check(data)


def test_gaps_can_be_filled(tmp_path):
    found = load(write(tmp_path, HEADER + "".join(ROWS) + "A,,1,no\n" * 3), options=OPTIONS | {"gaps": "fill"})
    assert found.x_train.shape[1] == 3 and np.isfinite(found.x_train).all()


def test_a_class_that_the_server_does_not_know_is_refused():
    with pytest.raises(DataError, match="the class 'mabe', which the server does not know: did you mean 'maybe'"):
        parse_targets(["yes", "mabe"], "ill", known=("no", "yes", "maybe"))


def test_an_unknown_option_names_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match="unknown option 'clients': did you mean 'client'"):
        load(write(tmp_path, HEADER), options={"clients": "hospital"})


def test_a_folder_of_images_has_clients_and_classes(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for client in ("anna", "ben"):
        for name in ("cat", "dog"):
            folder = tmp_path / "pets" / client / name
            folder.mkdir(parents=True)
            for i in range(5):
                image.new("RGB", (8, 8), (40 * i, 0, 255 * (name == "dog"))).save(folder / f"{i}.png")
    found = load(str(tmp_path / "pets"))
    assert found.class_names == ("cat", "dog") and found.client_names == ("anna", "ben")
    assert found.x_train.shape == (16, 3, 8, 8) and sorted(found.y_test.tolist()) == [0, 0, 1, 1]
    image.new("RGB", (9, 8)).save(tmp_path / "pets" / "ben" / "dog" / "wide.png")
    with pytest.raises(DataError, match=r"8x9 pixels.*data\.options\.size"):
        load(str(tmp_path / "pets"))
    assert load(str(tmp_path / "pets"), options={"size": 4, "grey": True}).x_train.shape[1:] == (1, 4, 4)


def test_a_clients_own_table_is_read_as_a_node_and_an_unseen_client_read_it(tmp_path):
    rows = [f"{40 + i},{200 + 3 * i},{'yes' if i % 3 else 'no'}\n" for i in range(20)]
    (tmp_path / "samples.csv").write_text("age,chol,target\n" + "".join(rows))
    data = load_folder(tmp_path, ("no", "yes"))
    assert len(data.y) == 16 and len(data.test_y) == 4 and sorted(data.y.unique().tolist()) == [0, 1]
    kind = SampleKind((2,), "float32", 2)
    assert load_samples(tmp_path, FileForm(kind, ("no", "yes"))).x.shape == (16, 2)
    with pytest.raises(DataError, match="the class 'no', which the server does not know"):
        load_folder(tmp_path, ("maybe", "yes"))
    plan = Plan(clients=1, shape=(2,), classes=2, dtype="float32", class_names=("no", "yes"))
    assert make_node_data(plan, tmp_path).x.shape == (16, 2)


def make_node_data(plan, folder):
    return plan.check(load_node_data({"name": "a", "data": str(folder)}, plan.kind, plan.class_names))


def test_token_ids_of_a_node_are_whole_and_not_negative():
    plan = Plan(clients=1, shape=(3,), classes=2, dtype="int64")
    y = torch.tensor([0, 1])
    data = ClientData(torch.tensor([[0.0, 1, 2], [2, 1, 0]]), y, torch.zeros(0, 3), y[:0])
    assert plan.check(data).x.dtype == torch.int64
    with pytest.raises(DataError, match="token ids must be whole numbers from 0 on"):
        plan.check(data._replace(x=data.x - 1))


def test_several_columns_are_labels_or_numbers(tmp_path):
    lines = ["ward,age,fever,cough", *(f"{ward},{30 + i},{i % 2},{i // 2 % 2}" for ward in "ab" for i in range(8))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    options = [f"data.name={tmp_path / 't.csv'}", "data.options={client='ward', target=['fever', 'cough']}"]
    made = make_population(load_config(None, [*options, "partition.name=natural", "task.name=multi_label"]))
    assert made.x.shape == (16, 1) and made.y.shape == (16, 2) and made.classes == 2 and made.feature_names == ("age",)
    numbers = make_population(load_config(None, [*options, "partition.name=natural", "task.name=regression"]))
    assert numbers.y.dtype == torch.float32 and numbers.classes == 2
    (tmp_path / "t.csv").write_text("\n".join([*lines, "a,20,,1"]))
    with pytest.raises(DataError, match="column 'fever' has no value in row 18"):
        make_population(load_config(None, [*options, "partition.name=natural", "task.name=multi_label"]))
    one = [options[0], "data.options={client='ward', target='cough', gaps='fill'}", "partition.name=natural"]
    with pytest.raises(
        DataError, match=r"wanted 0 or 1 for each label: \[n, labels\]; of a table, target names several"
    ):
        make_population(load_config(None, [*one, "task.name=multi_label"]))
