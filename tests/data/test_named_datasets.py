import sys
from dataclasses import replace
from zlib import crc32

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from kinfed.config import load_config
from kinfed.config.assembly import model_for
from kinfed.data import DATASETS, Dataset, OwnSettings, build_population, data_root, from_arrays, load
from kinfed.data import hub as hub_module
from kinfed.data.arrays import store
from kinfed.data.datasets import read_digits
from kinfed.data.natural import NATURAL
from kinfed.data.partitions import IID, PARTITIONS, Dirichlet
from kinfed.data.partitions.split import IgnoresLabels
from kinfed.errors import ConfigError, DataError
from kinfed.learning_tasks import Classification, Regression


def arrays(samples=6, shape=(28, 28), classes=3):
    rng = np.random.default_rng(0)
    return {
        "x_train": rng.integers(0, 256, (samples, *shape), dtype=np.uint8),
        "y_train": (np.arange(samples) % classes).astype(np.uint8),
        "x_test": rng.integers(0, 256, (3, *shape), dtype=np.uint8),
        "y_test": np.array([0, 1, 2], np.uint8),
    }


def message(root, name="mine"):
    with pytest.raises((DataError, ConfigError)) as caught:
        load(name, root)
    return str(caught.value)


def test_digits_need_no_file_and_are_a_stratified_80_20_split():
    digits = load("digits")
    assert digits.x_train.shape == (1438, 1, 8, 8) and digits.x_test.shape == (359, 1, 8, 8)
    assert digits.x_train.dtype == np.uint8 and digits.x_train.max() == 255
    everyone = np.bincount(digits.y_train) + np.bincount(digits.y_test)
    assert np.abs(np.bincount(digits.y_test) - 0.2 * everyone).max() <= 1


def test_digits_are_the_same_samples_every_time():
    np.testing.assert_array_equal(load("digits").x_test, load("digits").x_test)
    found = load("digits")
    assert [crc32(x.tobytes()) for x in (found.x_train, found.x_test)] == [3795802994, 3734265341], (
        "numbers in the README are of these"
    )


def test_a_data_root_that_is_a_file_or_is_not_there_is_said_to_be_so(tmp_path):
    file = tmp_path / "mine.npz"
    store(file, arrays())
    with pytest.raises(ConfigError, match=r"is the file '.*mine\.npz', wanted the folder .*=mine --data-dir"):
        load("mine", file)
    (tmp_path / "table.csv").write_text("client,x,target")
    with pytest.raises(ConfigError, match=r"is the file .*data\.name=.*table\.csv"):
        load("heart", tmp_path / "table.csv")
    with pytest.raises(ConfigError, match=r"unknown dataset 'mine'.*there is no folder '.*nowhere'"):
        load("mine", tmp_path / "nowhere")
    with pytest.raises(ConfigError) as caught:
        load("mien", tmp_path)
    assert "no folder" not in str(caught.value)


def test_gray_images_get_one_channel_and_labels_become_int64(tmp_path):
    given = arrays()
    store(tmp_path / "mine.npz", given)
    mine = load("mine", tmp_path)
    np.testing.assert_array_equal(mine.x_train[:, 0], given["x_train"])
    assert mine.y_train.dtype == np.int64 and mine.classes == 3 and mine.writer_train is None


def test_colour_images_get_their_channels_first(tmp_path):
    given = arrays(shape=(32, 32, 3), classes=10)
    store(tmp_path / "cifar10.npz", given)
    cifar = load("cifar10", tmp_path)
    assert cifar.x_train.shape == (6, 3, 32, 32) and cifar.classes == 10
    np.testing.assert_array_equal(cifar.x_train[2, 1], given["x_train"][2, :, :, 1])


def test_writers_come_along(tmp_path):
    writers = {"writer_train": np.arange(6, dtype=np.int32), "writer_test": np.zeros(3, np.int32)}
    store(tmp_path / "femnist.npz", arrays() | writers)
    femnist = load("femnist", tmp_path)
    assert femnist.classes == 62 and femnist.writer_train.tolist() == [0, 1, 2, 3, 4, 5]


def test_the_root_is_the_argument_then_the_variable_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("KINFED_DATA", "/somewhere")
    assert str(data_root("/here")) == "/here" and str(data_root()) == "/somewhere"
    monkeypatch.delenv("KINFED_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_root() == tmp_path / "kinfed"


def test_an_unknown_name_suggests_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'fashion_mnist'"):
        load("fashionmnist", tmp_path)


def test_a_truncated_file_is_named(tmp_path):
    store(tmp_path / "mine.npz", arrays())
    whole = (tmp_path / "mine.npz").read_bytes()
    (tmp_path / "mine.npz").write_bytes(whole[: len(whole) // 2])
    assert "mine.npz is not a readable .npz file" in message(tmp_path)


def test_series_of_different_lengths_are_named(tmp_path):
    ragged = np.empty(2, object)
    ragged[:] = [np.zeros((3, 5)), np.zeros((3, 6))]
    np.savez(tmp_path / "mine.npz", **{**arrays(), "x_train": ragged}, allow_pickle=True)
    assert "x_train.npy holds objects, as where series differ in length; pad or cut them to one" in message(tmp_path)


def put_byte(path, at, byte):
    """Writes a byte where it is, which takes a disk less time than a new file."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([byte]))


def test_a_file_with_any_byte_damaged_is_read_or_refused_but_nothing_else(tmp_path):
    store(tmp_path / "mine.npz", arrays(shape=(2, 2)))
    whole, refused = (tmp_path / "mine.npz").read_bytes(), 0
    for at, byte in enumerate(whole):
        put_byte(tmp_path / "mine.npz", at, byte ^ 0xFF)
        try:
            load("mine", tmp_path)
        except DataError:
            refused += 1
        put_byte(tmp_path / "mine.npz", at, byte)
    assert refused > len(whole) / 2


@pytest.mark.parametrize("content", [b"", b"hello"])
def test_another_kind_of_file_is_named(tmp_path, content):
    (tmp_path / "mine.npz").write_bytes(content)
    assert message(tmp_path).endswith("mine.npz is not a readable .npz file (it does not begin as one); replace it")


def test_only_a_dataset_that_can_be_fetched_is_to_be_fetched_again(tmp_path):
    (tmp_path / "mnist.npz").write_bytes(b"hello")
    with pytest.raises(DataError, match="delete it to fetch it again, or replace it"):
        load("mnist", tmp_path)


def test_a_bare_array_is_named(tmp_path):
    with (tmp_path / "mine.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    assert "one bare array" in message(tmp_path)


def test_pickles_are_never_opened(tmp_path):
    np.savez(tmp_path / "mine.npz", **(arrays() | {"x_train": np.array([{"a": 1}], dtype=object)}))
    assert "not a readable .npz file" in message(tmp_path)


def test_missing_arrays_are_named(tmp_path):
    np.savez(tmp_path / "mine.npz", x_train=np.zeros(3), x_test=np.zeros(3))
    assert "has no array y_train, y_test" in message(tmp_path)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"x_train": np.zeros((6, 4, 4), bool)}, "x_train is bool [6, 4, 4], wanted uint8"),
        ({"x_train": np.zeros((6, 28, 28))}, "x_train and x_test must be of one kind, got float64 and uint8"),
        ({"x_test": np.zeros((3, 16), np.uint8)}, "x_test is uint8 [3, 16], wanted uint8 [n, height, width]"),
        ({"y_train": np.zeros(6, bool)}, "y_train is bool [6], wanted integers"),
        ({"y_train": np.zeros(5, np.uint8)}, "x_train has 6 samples but y_train has 5"),
        ({"y_train": np.array([0, 1, 2, -1, 0, 1])}, "labels must be 0..2, got -1..2"),
        ({"x_test": np.zeros((3, 5, 5), np.uint8)}, "must have one shape"),
        ({"x_test": np.zeros((0, 28, 28), np.uint8), "y_test": np.zeros(0, np.uint8)}, "x_test has no samples"),
        ({"writer_train": np.zeros(6, np.int32)}, "both writer_train and writer_test"),
    ],
)
def test_wrong_arrays_are_refused_with_got_and_wanted(tmp_path, changed, expected):
    store(tmp_path / "mine.npz", arrays() | changed)
    assert expected in message(tmp_path)


def test_labels_beyond_the_known_classes_are_refused(tmp_path):
    store(tmp_path / "mnist.npz", arrays() | {"y_test": np.array([0, 10, 2], np.uint8)})
    assert "labels must be 0..9, got 0..10" in message(tmp_path, "mnist")


def test_storing_leaves_no_half_file_behind(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match="cannot write"):
        store(tmp_path / "file" / "mine.npz", arrays())
    store(tmp_path / "mine.npz", arrays())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "mine.npz"]


def test_without_the_library_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert message(tmp_path, "mnist") == (
        f"dataset 'mnist' is not at {tmp_path}/mnist.npz: name the folder that has mnist.npz by --data-dir or "
        "KINFED_DATA; or fetch it by `pip install 'kinfed[hub]'`"
    )


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "digits"] + ["mine"])
def test_a_missing_dataset_is_a_short_message_with_what_helps(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    said = message(tmp_path, name).replace(str(tmp_path), "FOLDER")
    assert name in said and "FOLDER" in said and "--data-dir or KINFED_DATA" in said
    assert len(said) < 320


def test_without_a_network_the_error_says_what_to_do(tmp_path, monkeypatch):
    import datasets

    def unreachable(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    assert "or go online (ufldl-stanford/svhn: ConnectionError: no route)" in message(tmp_path, "svhn")


def test_every_dataset_of_images_but_digits_has_a_place_on_the_hub():
    assert set(hub_module.SOURCES) == set(DATASETS) - {"digits"} - set(NATURAL)


def test_real_files_have_the_samples_they_should(real_root):
    mnist, femnist = load("mnist", real_root), load("femnist", real_root)
    assert (len(mnist.y_train), len(mnist.y_test)) == (60_000, 10_000)
    assert femnist.classes == 62 and len(np.unique(femnist.writer_train)) == 288


def test_the_digits_are_scikit_learns():
    bunch = load_digits()
    assert (read_digits() == np.column_stack((bunch.data, bunch.target))).all()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (np.float64, torch.float32), (np.float16, torch.float32), (bool, torch.float32), (np.int8, torch.int64),
        (np.uint16, torch.int64),
    ],
)  # fmt: skip
def test_a_dataset_of_any_type_of_numbers_becomes_one_that_networks_take(given, wanted):
    x, y = np.ones((8, 3), given), np.arange(8, dtype=np.int8) % 2
    found = Dataset("mine", x, y, torch.from_numpy(x.astype(np.float32)), y, 2).for_task(Classification())
    made = build_population(replace(found, x_test=x), IID(2), 0)
    assert made.x.dtype == wanted and made.x.shape == (16, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_test": np.ones((4, 2))}, r"samples of x_train have shape \[3\], those of x_test \[2\]: wanted one shape"),
        ({"y_train": np.zeros(7, int)}, "x_train has 8 samples and y_train 7 targets: wanted as many of each"),
        ({"x_train": np.full((8, 3), 1e39)}, "8 of 8 samples of x_train have a NaN or an infinity"),
    ],
)
def test_a_dataset_that_does_not_fit_together_says_so(change, message):
    whole = {
        "x_train": np.ones((8, 3)),
        "y_train": np.zeros(8, int),
        "x_test": np.ones((4, 3)),
        "y_test": np.zeros(4, int),
    }
    with pytest.raises(DataError, match=message):
        Dataset("mine", **whole | change, classes=2)


def test_partitions_by_label_are_refused_where_targets_are_no_classes():
    numbers = Dataset("mine", np.ones((20, 3)), np.ones(20), np.ones((20, 3)), np.ones(20), 1).for_task(Regression())
    assert build_population(numbers, IID(2), 0).clients == 2
    said = "partition 'dirichlet' is by label, and the targets are no classes: use iid or natural or writers, or one of"
    with pytest.raises(DataError, match=said):
        build_population(numbers, Dirichlet(2), 0)


def test_a_new_partition_says_itself_whether_it_ignores_labels(monkeypatch):
    class Halves(IgnoresLabels):
        def __call__(self, labels, rng):
            return IID(2)(labels, rng)

    class ByLabel:
        def __call__(self, labels, rng):
            return IID(2)(labels, rng)

    numbers = Dataset("mine", np.ones((20, 3)), np.ones(20), np.ones((20, 3)), np.ones(20), 1).for_task(Regression())
    assert build_population(numbers, ByLabel(), 0).clients == 2, "one that is not registered is not judged"
    monkeypatch.setitem(PARTITIONS, "halves", Halves)
    monkeypatch.setitem(PARTITIONS, "by_label", ByLabel)
    assert build_population(numbers, Halves(), 0).clients == 2
    with pytest.raises(DataError, match=r"'by_label' is by label.*: use iid or natural or writers or halves, or"):
        build_population(numbers, ByLabel(), 0)


def test_token_ids_are_neither_normalised_nor_augmented():
    clients = from_arrays(np.ones((6, 4), int), np.ones(6, int), [0, 0, 0, 1, 1, 1], OwnSettings(task="next_token"))
    config = load_config(None, ["model=char_cnn", "task.name=next_token", "inputs.augment=['noise']"])
    with pytest.raises(ConfigError, match="augment are for numbers, and samples are token ids"):
        model_for(config, clients)
