import io
import os
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

from kinfed.config import DEMO, load_config
from kinfed.config.assembly import assemble, make_population
from kinfed.data import load
from kinfed.data.arrays import SampleKind
from kinfed.data.columns import parse_targets
from kinfed.data.image_files import ImageForm, read_images
from kinfed.data.readers import Table, read_own_table
from kinfed.deployment import Plan, load_folder, load_node_data
from kinfed.deployment.node_data import FileForm, load_alike, load_samples
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
    made = make_population(config)
    assert made.class_names == ("no", "yes") and made.client_names == ("A", "B")


def test_a_column_of_numbers_is_a_regression_and_integers_are_classes(tmp_path):
    path = write(tmp_path, HEADER + "".join(ROWS))
    ages = load(path, options={"client": "hospital", "target": "age", "features": ["chol"], "scale": False})
    assert ages.class_names[0] == "40" and ages.classes == 20
    assert parse_targets(["1.5", "2"], "y")[0].dtype == np.float32
    assert parse_targets(["10", "9", "9"], "y")[0].tolist() == [1, 0, 0]
    assert parse_targets(["0.004", "-1.002"], "y")[0].tolist() == pytest.approx([0.004, -1.002])
    assert parse_targets(["1.0", "2", "2.00"], "y") == (pytest.approx([0, 1, 1]), ("1", "2"))  # whole numbers in floats


def test_a_regression_learns_the_numbers_of_a_column_of_integers_and_no_words(tmp_path):
    path = write(tmp_path, HEADER + "".join(ROWS))
    options = [f"data.name={path}", "partition.name=natural", "task.name=regression"]
    made = make_population(
        load_config(None, [*options, "data.options={client='hospital', target='age', features='chol'}"])
    )
    assert made.y.dtype == torch.float32 and sorted(made.y.tolist()) == list(range(40, 60)) and made.class_names == ()
    with pytest.raises(DataError, match="the targets are the classes no, yes, and the task wants numbers"):
        make_population(load_config(None, [*options, "data.options={client='hospital', target='ill'}"]))


@pytest.mark.parametrize(
    ("values", "gaps"),
    [(range(100), {5}), ([10 * i for i in range(100)], {50}), ([i // 10 for i in range(100)], {0, 1})],
)
def test_low_and_high_whole_numbers_are_tested_alike_whether_they_are_classes_or_not(tmp_path, values, gaps):
    rows = [f"{'ab'[i % 2]},{i % 7},{values[i // 2]}" for i in range(200)]
    (tmp_path / "t.csv").write_text("\n".join(["client,age,target", *rows]))
    options = [f"data.name={tmp_path / 't.csv'}", "task.name=regression"]
    made = make_population(load_config(None, options))
    for own in made.test:  # every fifth in the order of values
        assert len(own) == 20 and set(np.diff(made.y[own].sort().values).tolist()) == gaps
    (tmp_path / "samples.csv").write_text("\n".join(["age,target", *(f"{i % 7},{values[i]}" for i in range(100))]))
    of_node = load_folder(tmp_path)
    assert sorted(of_node.test_y.tolist()) == sorted(made.y[made.test[0]].tolist())  # drawn as the first client's


def test_dates_within_a_minute_stay_apart(tmp_path):
    rows = [f"a,{1_700_000_000 + i},{'no' if i < 30 else 'yes'}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["client,time,target", *rows]))
    found = load(str(tmp_path / "t.csv"))
    times = np.sort(np.concatenate([found.x_train, found.x_test])[:, 0])
    assert found.x_train.dtype == np.float32 and np.diff(times) == pytest.approx([np.diff(times).mean()] * 59, rel=1e-3)
    (tmp_path / "samples.csv").write_text("time\n" + "\n".join(row.split(",")[1] for row in rows))
    alike = load_alike(tmp_path / "samples.csv", tmp_path / "t.csv", FileForm(table=Table(features=("time",))))
    assert np.sort(alike[:, 0].numpy()) == pytest.approx(times)


def test_the_next_token_is_learnt_from_token_ids_alone(tmp_path):
    path = write(tmp_path, HEADER + "".join(ROWS))
    options = [f"data.name={path}", "partition.name=natural", "task.name=next_token"]
    with pytest.raises(DataError, match=r"learnt from token ids, 0, 1, 2, …; of a table, set data.options.scale = fa"):
        make_population(load_config(None, [*options, "data.options={client='hospital', target='ill'}"]))
    chosen = "data.options={client='hospital', target='chol', features='age', scale=false}"
    made = make_population(load_config(None, [*options, chosen]))
    assert made.x.dtype == torch.int64 and made.classes == 258 and made.class_names == ()  # the largest token is 257
    assert int(made.y.max()) == 257
    words = "data.options={client='hospital', target='ill', features='age', scale=false}"
    with pytest.raises(DataError, match="targets are 2 words, and token ids go up to 59: wanted token ids"):
        make_population(load_config(None, [*options, words]))


def test_a_client_that_cannot_be_tested_is_left_out_and_said_so(tmp_path, caplog):
    path = write(tmp_path, HEADER + "".join(ROWS) + "alone,40,200,no\n")
    made = make_population(load_config(None, [f"data.name={path}", "partition.name=natural",
                                              "data.options={client='hospital', target='ill'}"]))  # fmt: skip
    assert made.client_names == ("A", "B")
    assert "clients that are left out, for want of samples to train or to test on: 1" in caplog.text


def test_a_target_that_is_not_there_is_named_before_its_text_is_taken_for_a_feature(tmp_path):
    with pytest.raises(DataError, match="has no column 'il': did you mean 'ill'"):
        load(write(tmp_path, HEADER + "".join(ROWS)), options=OPTIONS | {"target": "il"})


def test_what_is_learnt_is_no_feature_and_features_are_split_at_commas(tmp_path):
    path = write(tmp_path, HEADER + "".join(ROWS))
    with pytest.raises(DataError, match="'ill' is both a feature and what is learnt"):
        load(path, options=OPTIONS | {"features": ["age", "ill"]})
    assert load(path, options=OPTIONS | {"features": "chol, age"}).feature_names == ("chol", "age")


def test_a_table_of_tabs_is_read_and_other_files_are_no_tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "patients.tsv").write_text((HEADER + "".join(ROWS)).replace(",", "\t"))
    assert load("patients.tsv", options=OPTIONS).client_names == ("A", "B")
    (tmp_path / "patients.xlsx").write_text("")
    with pytest.raises(DataError, match=r"a table is a file \.csv, \.tsv or \.parquet"):
        load("patients.xlsx")


def test_a_partition_that_deals_a_tables_samples_anew_is_said_so(tmp_path, caplog):
    path = write(tmp_path, HEADER + "".join(ROWS))
    options = [f"data.name={path}", "data.options={client='hospital', target='ill'}"]
    make_population(load_config(None, [*options, "partition.name=natural"]))
    assert not caplog.records
    make_population(load_config(None, [*options, "partition.name=iid", "partition.clients=3"]))
    assert "says whose each sample is, which partition.name = natural takes" in caplog.text


def test_an_unseen_client_is_not_told_of_settings_of_training(tmp_path):
    path = write(tmp_path, "age,chol,ill\n40,200,no\n,180,ja\n")
    with pytest.raises(DataError, match=r"in age \(1\): fill them; only a model that was trained"):
        read_own_table(Path(path), settings=Table(target="ill"))


def test_what_a_table_may_look_like(tmp_path):
    rows = ["Zürich;True;1.5;ja", "Zürich;false;2;nein", "東京;TRUE;3;ja", "東京;False;4;nein"]
    path = write(tmp_path, "\ufeffhospital;smokes;chol;ill\n\n" + "\n".join(rows))
    found = load(path, options=OPTIONS | {"scale": False, "test": 0.5})
    assert found.client_names == ("Zürich", "東京") and found.class_names == ("ja", "nein")
    assert sorted(np.concatenate([found.x_train, found.x_test]).tolist()) == [[0, 2], [0, 4], [1, 1.5], [1, 3]]
    assert load(path, options=OPTIONS | {"features": "chol"}).feature_names == ("chol",)


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
        ("", OPTIONS, "is empty, wanted a header"),
        ("hospital,age,age,ill\n" + "".join(ROWS), OPTIONS, "has two columns named 'age': rename one"),
        (HEADER + " ,40,200,no\n" + "".join(ROWS), OPTIONS, "'hospital' has no value in row 2: every sample is some"),
        (HEADER + "A,1e39,200,no\n" + "".join(ROWS), OPTIONS, "'age' has 1e39 in row 2, wanted numbers that float32"),
        (HEADER.replace(",", ";") + "A;4,5;2;no\n", OPTIONS, "has text, '4,5' in row 2: write fractions with a point"),
        (HEADER + "A,1,2,no\nB,1,2,yes\n", OPTIONS, "every client has a single sample, so that none can be tested"),
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
            "missing values .NaN. in column 'series', in 1 of 2 samples, the first is in row 3",
        ),
        ([[["a", "b"]], [["a", "c"]]], "column 'series' holds lists of <U1, wanted lists of numbers"),
        ([None, [1.0, 2.0]], "column 'series' has nothing in row 2"),
        ([{"low": 1, "high": 2}] * 2, "column 'series' holds records of low, high: make a column of each"),
        ([[1, 2], [1, -2]], "are token ids, 0, 1, 2, …, got -2: for numbers of any kind set data.options.tokens = fal"),
    ],
)
def test_bad_series_and_tokens_of_a_table_are_refused(tmp_path, cells, expected):
    path = tmp_path / "series.parquet"
    parquet.write_table(pyarrow.table({"client": [0, 0], "target": ["a", "b"], "series": cells}), path)
    with pytest.raises(DataError, match=expected):
        load(str(path))


def test_lists_of_whole_numbers_are_token_ids_or_numbers(tmp_path):
    path = tmp_path / "counts.parquet"
    cells = pyarrow.array([[0, 1], [1, 7], [2, 2], [3, 1]], pyarrow.list_(pyarrow.int8()))
    after = [[1, 0], [7, 0], [2, 1], [1, 1]]
    parquet.write_table(pyarrow.table({"client": [0, 0, 1, 1], "target": after, "counts": cells}), path)
    options = [f"data.name={path}", "partition.name=natural"]
    tokens = make_population(load_config(None, [*options, "task.name=next_token"]))
    assert tokens.x.dtype == tokens.y.dtype == torch.int64 and tokens.y.shape == (4, 2) and tokens.classes == 8
    shown = [*options, "data.options.tokens=false", "task.name=regression"]
    numbers = make_population(load_config(None, shown))
    assert numbers.x.dtype == torch.float32 and numbers.y.dtype == torch.float32 and numbers.classes == 2
    with pytest.raises(ConfigError, match=r"token ids: take char_cnn.*data.options.tokens = false"):
        assemble(load_config(None, [*options, "task.name=next_token", "model=linear"]))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"test": "lots"}, "data.options.test: wanted a number, got 'lots'"),
        ({"scale": "no"}, "data.options.scale: wanted true or false, got 'no'"),
        ({"seed": True}, "data.options.seed: wanted a whole number, got true"),
        ({"client": 3}, "data.options.client: wanted text, got 3"),
        ({"test": 0}, "data.options.test = 0 leaves no samples to test clients on"),
    ],
)
def test_an_option_of_another_kind_is_refused(tmp_path, option, message):
    with pytest.raises(ConfigError, match=message):
        load(write(tmp_path, HEADER + "".join(ROWS)), options=OPTIONS | option)


def test_clients_of_another_number_than_a_table_has_are_told_of_natural(tmp_path):
    words = [f"data.name={write(tmp_path, HEADER + ''.join(ROWS))}", "data.options={client='hospital', target='ill'}"]
    with pytest.raises((ConfigError, DataError)) as caught:
        make_population(load_config(DEMO, [*words, "partition.clients=3"]))
    assert "the data say whose each sample is: partition = natural takes these clients" in str(caught.value)
    assert "partition.max_clients" in str(caught.value) and "'disjoint_classes'" in str(caught.value)


def test_a_folder_is_named_with_a_slash(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pets").mkdir()
    with pytest.raises(DataError, match="a folder of images is named with a slash, 'pets/'"):
        load("pets")
    with pytest.raises(DataError, match="no such folder"):
        load("cats/")


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


def test_a_node_has_the_columns_of_gaps_that_training_had_and_its_own_gaps_add_none(tmp_path):
    path = write(tmp_path, HEADER + "".join(ROWS) + "A,,1,no\n" * 3)
    names = load(path, options=OPTIONS | {"gaps": "fill"}).feature_names
    assert names == ("age", "chol", "age is missing")
    table = tmp_path / "samples.csv"
    table.write_text("chol,age,target\n200,40,no\n,50,yes\n210,60,no\n220,,no\n")
    form = FileForm(class_names=("no", "yes"), table=Table(features=names, scale=False, test=0.25))
    data = load_samples(table, form)
    found = torch.cat([data.x, data.test_x])
    assert sorted(found.tolist()) == [[0, 220, 1], [40, 200, 0], [50, 0, 0], [60, 210, 0]]
    whole = tmp_path / "whole.csv"
    whole.write_text("chol,age,target\n200,40,no\n230,50,yes\n")
    assert load_samples(whole, form).x.shape == (1, 3)  # no gaps of its own, and as many columns
    assert load_alike(whole, table, form).tolist() == [[40, 200, 0], [50, 230, 0]]


def test_columns_that_are_not_scaled_keep_their_numbers_where_gaps_are_filled(tmp_path):
    path = write(tmp_path, HEADER + "".join(ROWS) + "A,,1,no\n" * 3)
    found = load(path, options=OPTIONS | {"gaps": "fill", "scale": False})
    assert found.x_train[:, 1].max() > 200 and sorted(set(found.x_train[:, 2].tolist())) == [0, 1]


def test_a_client_without_names_of_classes_has_numbers_as_they_are(tmp_path):
    table = tmp_path / "samples.csv"
    table.write_text("age,target\n40,3\n50,1\n60,3\n")
    data = load_node_data({"name": "north", "data": str(table)}, SampleKind((1,), "float32", 5))
    assert sorted(torch.cat([data.y, data.test_y]).tolist()) == [1, 3, 3]
    table.write_text("age,target\n40,no\n50,yes\n")
    with pytest.raises(DataError, match="the class 'no', which the server does not know: it knows no names of classes"):
        load_node_data({"name": "north", "data": str(table)}, SampleKind((1,), "float32", 5))


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


@pytest.mark.parametrize(
    ("pixels", "says"),
    [
        (np.full((8, 8), 60_000, np.uint16), "its pixels are 'I;16', wanted bytes: scale them to 0..255"),
        (np.full((8, 8), 0.5, np.float32), "its pixels are 'F', wanted bytes"),
        (np.zeros((13_400, 13_400), bool), "decompression bomb"),
    ],
)
def test_an_image_that_would_lose_its_values_or_fill_the_memory_is_refused(tmp_path, pixels, says):
    image = pytest.importorskip("PIL.Image")
    image.fromarray(pixels).save(tmp_path / "0.tif", compression="packbits" if pixels.dtype == bool else None)
    with pytest.raises(DataError, match=says):
        read_images([tmp_path / "0.tif"], ImageForm())


def test_a_pipe_and_a_png_with_a_broken_chunk_are_no_images(tmp_path):
    image = pytest.importorskip("PIL.Image")
    os.mkfifo(tmp_path / "0.png")
    with pytest.raises(DataError, match=r"0\.png cannot be read as an image: it is no file"):
        read_images([tmp_path / "0.png"], ImageForm())
    image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(whole := io.BytesIO(), "PNG")
    before, after = whole.getvalue().split(b"IDAT")
    broken = before[:-1] + bytes([before[-1] // 2]) + b"IDAT" + after  # pixels stand where the next chunk is looked for
    with pytest.raises(DataError, match=r"the image of sample 0 cannot be read"):
        read_images([broken], ImageForm())


def test_images_have_three_channels_where_any_has_colours_whichever_is_first():
    image = pytest.importorskip("PIL.Image")
    files = []
    for mode, colour in (("L", 7), ("RGB", (1, 2, 3))):
        image.new(mode, (2, 2), colour).save(file := io.BytesIO(), "PNG")
        files.append(file.getvalue())
    assert read_images(files, ImageForm())[:, :, 0, 0].tolist() == [[7, 7, 7], [1, 2, 3]]
    assert read_images(files[:1], ImageForm()).shape == (1, 1, 2, 2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"target": "hospital"}, "column 'hospital' is named twice by client and target"),
        ({"target": ["ill", "ill"]}, "column 'ill' is named twice by client and target"),
        ({"features": ["age", "chol", "age"]}, "column 'age' is named twice by features"),
    ],
)
def test_a_column_that_is_named_twice_is_refused(tmp_path, options, says):
    with pytest.raises(ConfigError, match=says):
        load(write(tmp_path, HEADER), options={"client": "hospital", "target": "ill"} | options)


def test_a_parquet_file_without_rows_or_numbers_says_so(tmp_path):
    x = pyarrow.list_(pyarrow.float32())
    kinds = pyarrow.schema([("client", pyarrow.string()), ("x", x), ("target", pyarrow.int64())])
    for number, says in ((0, "has no sample"), (8, "column 'x' holds lists without numbers")):
        rows = {"client": ["a", "b"] * (number // 2), "x": [[]] * number, "target": [0] * number}
        parquet.write_table(pyarrow.table(rows, kinds), tmp_path / "t.parquet")
        with pytest.raises(DataError, match=says):
            load(str(tmp_path / "t.parquet"))


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
