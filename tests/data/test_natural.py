import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from kinfed.config import load_config
from kinfed.config.assembly import make_population
from kinfed.data import load
from kinfed.data.natural import hold_out_series, scale_by_client, scale_columns
from kinfed.errors import ConfigError, DataError


def write_har(folder):
    """Two subjects, two activities, four series of three windows each; a window's numbers are its series and place."""
    series = np.repeat(np.arange(16), 3)
    x = np.zeros((48, 9, 128), np.float16) + (np.arange(9)[:, None] * 128 + np.arange(128))
    x[:, 0, 0] = series
    arrays = {"x": x, "y": (series // 4 % 2).astype(np.uint8), "client": (series // 8).astype(np.int32),
              "run": series.astype(np.int16)}  # fmt: skip
    parts = {"train": np.arange(48) % 3 != 0, "test": np.arange(48) % 3 == 0}
    saved = {f"{name}_{part}": a[mask] for name, a in arrays.items() for part, mask in parts.items()}
    np.savez(folder / "har.npz", **saved, classes=np.array(["walking", "sitting", "c", "d", "e", "f"]))


def write_shakespeare(folder, length=40):
    """Three roles in two plays, with so many of the letters a, b, c each."""
    text = np.arange(3 * length) % 3
    np.savez(
        folder / "shakespeare.npz", text=text.astype(np.uint8), vocab=np.array(["a", "b", "c"]),
        role_offsets=(np.arange(4) * length).astype(np.int32), role_names=np.array(["First", "Second", "Third"]),
        role_play=np.array([0, 1, 1], np.uint8), play_names=np.array(["One", "Two"]),
        play_genre=np.array([1, 0], np.uint8),
    )  # fmt: skip


def write_heart(folder, times=1):
    """Ten patients of two hospitals, or so many times as many; the second never measures the last column."""
    n = 10 * times
    names = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca"]
    x = np.random.default_rng(0).normal(size=(n, 12)).astype(np.float32)
    x[:, 2], x[:, 6] = np.arange(n) % 4 + 1, np.arange(n) % 3
    x[n // 2 :, 11] = np.nan
    np.savez(
        folder / "heart.npz", x=x, y=(np.arange(n) % 2).astype(np.uint8), y_raw=(np.arange(n) % 5).astype(np.uint8),
        client=np.repeat([0, 1], n // 2), features=np.array(names), hospitals=np.array(["A", "B"]),
        flamby_split=np.array([0, 0, 0, 1, -1] * (2 * times), np.int8),
    )  # fmt: skip


def test_series_are_held_out_whole(tmp_path):
    write_har(tmp_path)
    found = load("har", tmp_path)
    train, test = (set(x[:, 0, 0].astype(int).tolist()) for x in (found.x_train, found.x_test))
    assert not train & test and len(test) == 4  # one of four of each subject and activity
    assert found.class_names[:2] == ("walking", "sitting") and found.x_train.shape == (36, 9, 128)


def test_windows_of_a_series_are_in_both_parts_of_pfllibs_split(tmp_path):
    write_har(tmp_path)
    found = load("har", tmp_path, {"split": "windows", "layout": "pfllib"})
    assert len(found.x_test) == 16 and set(found.x_train[:, 0, 0]) == set(found.x_test[:, 0, 0])
    assert found.x_train[0, 0, :10].tolist() == [0, 128, 256, 384, 512, 640, 768, 896, 1024, 1]  # signals interleaved


def test_a_lonely_series_is_for_training():
    nobody = hold_out_series(np.zeros(3), np.zeros(3), np.zeros(3), 0.5, np.random.default_rng(0))
    assert not len(nobody)


def test_a_role_is_split_by_time_and_its_play_has_a_genre(tmp_path):
    write_shakespeare(tmp_path)
    found = load("shakespeare", tmp_path, {"window": 4, "stride": 2})
    assert found.x_train[0].tolist() == [0, 1, 2, 0] and found.y_train[0] == 1
    assert len(found.y_train) == 3 * 14 and len(found.y_test) == 3 * 2  # of 32 and 8 characters of each
    assert found.client_clusters.tolist() == [1, 0, 0] and found.client_names[2] == "Third (Two)"
    each = load("shakespeare", tmp_path, {"window": 4, "stride": 2, "target": "each", "clusters": "play"})
    assert each.y_train[0].tolist() == [1, 2, 0, 1] and each.client_clusters.tolist() == [0, 1, 1]


def test_columns_are_scaled_by_the_own_hospital_and_gaps_get_a_column(tmp_path):
    write_heart(tmp_path)
    whole, flamby = load("heart", tmp_path, {"rule": "all"}), load("heart", tmp_path)
    assert whole.x_train.shape[1] == 8 + 2 + 5 + 1 and flamby.x_train.shape == (6, 13)
    assert np.isfinite(whole.x_train).all() and whole.x_train[whole.writer_train == 1, -1].all()
    own = flamby.x_train[flamby.writer_train == 1]
    assert own[:, 0].mean() == pytest.approx(0, abs=1e-6) and own[:, 0].std(ddof=1) == pytest.approx(1, abs=1e-5)


def test_a_client_without_a_column_has_zeros_there():
    x = np.array([[np.nan], [np.nan], [1.0], [3.0]], np.float32)
    scaled = scale_by_client(x, np.array([0, 0, 1, 1]), np.ones(4, bool))
    assert scaled[:2].tolist() == [[0, 1], [0, 1]] and scaled[2:, 0] == pytest.approx([-(0.5**0.5), 0.5**0.5])


def test_a_client_of_one_sample_cannot_be_scaled_by_itself_and_is_named(caplog):
    x = np.array([[1.0, 9.0], [3.0, 5.0], [7.0, 7.0]])
    assert (scale_columns(x, np.array([0, 0, 1]), np.ones(3, bool))[2] == 0).all()
    assert "1 client has a single sample to train on: scaled by itself it is all zeros" in caplog.text


def test_columns_far_from_zero_are_scaled_as_scikit_learn_scales_them():
    rng = np.random.default_rng(0)
    x = np.stack(
        [1e4 + rng.normal(size=300_000), 1.7e9 + rng.integers(0, 3600, 300_000), 1e20 * rng.normal(size=300_000)], 1
    )
    scaled = scale_columns(x, np.zeros(len(x), np.int64), np.ones(len(x), bool))
    np.testing.assert_allclose(scaled, StandardScaler().fit_transform(x), atol=1e-4)
    assert len(np.unique(scaled[:, 1])) == 3600


def test_a_column_that_is_constant_in_training_is_0_in_testing_too():
    x = np.stack([np.full(100_001, 0.1), np.full(100_001, 5.0), np.arange(100_001.0)], 1)
    x[-1, 1], x[1, 0] = 5.001, 0.3 - 0.2  # which is not 0.1 to the last bit
    scaled = scale_columns(x, np.zeros(len(x), np.int64), np.arange(len(x)) < 100_000)
    assert not scaled[:, :2].any() and scaled[-1, 2] == pytest.approx(3**0.5, abs=1e-3)


def test_natural_clients_have_their_ground_truth(tmp_path):
    write_shakespeare(tmp_path)
    options = ["data.name=shakespeare", f"data.dir={tmp_path}", "partition.name=natural", "task.name=next_token"]
    made = make_population(load_config(None, [*options, "data.options={window=4, stride=2}"]))
    assert made.clients == 3 and made.true_clusters.tolist() == [1, 0, 0] and made.class_names == ("a", "b", "c")
    with pytest.raises(DataError, match=r"partition\.name = 'natural' needs the client of each sample"):
        make_population(load_config(None, ["data.name=digits", "partition.name=natural"]))


def test_one_setting_makes_classes_numbers(tmp_path):
    write_heart(tmp_path)
    options = ["data.name=heart", f"data.dir={tmp_path}", "partition.name=natural", "data.options={target='degree'}"]
    degrees = make_population(load_config(None, [*options, "task.name=regression"]))
    assert degrees.y.dtype.is_floating_point and degrees.classes == 1 and not degrees.class_names


def test_unknown_options_and_missing_files_say_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match="unknown option 'splitt': did you mean 'split'"):
        load("har", tmp_path, {"splitt": "windows"})
    with pytest.raises(ConfigError, match=r"data\.options of 'har': split must be"):
        load("har", tmp_path, {"split": "halves"})
    with pytest.raises(DataError, match=r"folder that has shakespeare\.npz by --data-dir or KINFED_DATA"):
        load("shakespeare", tmp_path)
    np.savez(tmp_path / "heart.npz", x=np.zeros(3))
    with pytest.raises(DataError, match="has no array y, y_raw"):
        load("heart", tmp_path)
