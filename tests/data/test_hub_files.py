import sys
from itertools import pairwise

import numpy as np
import pytest

from kinfed.data import load
from kinfed.data.hub_files import FILES, HOSPITALS, SIGNALS, chain_windows
from kinfed.errors import DataError

huggingface_hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def on_the_hub(monkeypatch, tmp_path):
    """Files that the hub has; those that it has not raise as the library does."""
    folder = tmp_path / "hub"

    def give(repository, file, repo_type, revision):
        if not (folder / file).exists():
            raise FileNotFoundError(f"no {file} in {repository}")
        return str(folder / file)

    def put(file, lines):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("\n".join(lines) + "\n")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", give)
    monkeypatch.setattr("kinfed.data.hub_files.save_time_when_offline", lambda: None)
    return put


def put_hospitals(put, healthy=3):
    """Four hospitals of 12 patients, the last of whom has no pulse; the third has one healthy patient."""
    for i, name in enumerate(HOSPITALS.values()):
        sick = [int(j >= (1 if i == 2 else healthy)) * (j % 4 + 1) for j in range(12)]
        lines = [f"{50 + j},1,4,120,{200 + i},0,1,{'?' if j == 11 else 150},0,1.5,?,?,?,{sick[j]}" for j in range(12)]
        put(f"processed.{name}.data", lines)


def test_hospitals_come_from_their_files_with_flambys_split(on_the_hub, tmp_path):
    put_hospitals(on_the_hub)
    found = load("heart", tmp_path, {"target": "degree"})
    assert np.bincount(found.writer_train).tolist() == [7] * 4 and np.bincount(found.writer_test).tolist() == [4] * 4
    assert found.client_names == tuple(HOSPITALS) and max(found.y_train) == 4 and found.x_train.shape[1] == 13
    everyone = load("heart", tmp_path, {"rule": "all"})  # from heart.npz, which is there now
    assert len(everyone.y_train) + len(everyone.y_test) == 48


def test_series_are_chained_by_the_halves_that_windows_share(on_the_hub, tmp_path):
    signal = np.arange(64 * 12, dtype=float).reshape(12, 64)  # of one subject: 11 windows, of which the 6th is left out
    windows = [np.concatenate(pair) for i, pair in enumerate(pairwise(signal)) if i != 5]
    for part, subject in (("train", 1), ("test", 2)):
        for name in SIGNALS:
            lines = [" ".join(f"{v / 1000:.7e}" for v in window) for window in windows]
            on_the_hub(f"{part}/Inertial Signals/{name}_{part}.txt", lines)
        on_the_hub(f"{part}/y_{part}.txt", ["6"] * 10)
        on_the_hub(f"{part}/subject_{part}.txt", [str(subject)] * 10)
    found = load("har", tmp_path)
    stored = np.load(tmp_path / "har.npz")
    runs = np.concatenate([stored["run_train"], stored["run_test"]])
    assert np.bincount(runs).tolist() == [5] * 4 and found.class_names[5] == "laying"
    assert set(found.y_train) == {5} and sorted(set(found.writer_train)) == [0, 1]
    assert len(load("har", tmp_path, {"split": "windows"}).y_test) == 5


def test_a_series_ends_with_the_subject_or_the_activity():
    x = np.zeros((4, 9, 128))
    assert chain_windows(x, np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1])).tolist() == [0, 0, 1, 2]


def test_files_that_are_not_what_was_expected_say_which(on_the_hub, tmp_path):
    put_hospitals(on_the_hub)
    on_the_hub("processed.va.data", ["1,2,3"])
    with pytest.raises(DataError, match=r"processed\.va\.data has 3 columns, wanted 14"):
        load("heart", tmp_path)
    on_the_hub("processed.va.data", ["<html>"])
    with pytest.raises(DataError, match=r"processed\.va\.data has other than numbers"):
        load("heart", tmp_path)


def test_without_the_hub_the_error_says_what_to_do(on_the_hub, tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"folder that has har\.npz .*natural-data\.md.*go online \(udayl/UCI_HAR: "):
        load("har", tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DataError, match=r"fetch it by `pip install 'kinfed\[hub\]'`"):
        load("heart", tmp_path)


def test_each_source_names_its_files():
    assert len(FILES["har"].files) == 2 * (9 + 2) and len(FILES["heart"].files) == 4
