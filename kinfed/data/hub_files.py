"""Natural datasets on the Hugging Face hub: which files they are there, and how these become NAME.npz.

`har` are UCI's text files, `heart` the four processed.*.data of UCI, in which '?' is a gap. LEAF's `shakespeare` has
other roles and another text than ours, and is not taken for it.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kinfed.data.arrays import store
from kinfed.data.hub import NO_LIBRARY, Unreachable, save_time_when_offline
from kinfed.data.partitions.split import Index, draw_stratified, generator, others
from kinfed.errors import DataError
from kinfed.files import Arrays

log = logging.getLogger("kinfed")
SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
ACTIVITIES = ("walking", "walking_upstairs", "walking_downstairs", "sitting", "standing", "laying")
HOSPITALS = {
    "Cleveland": "cleveland", "Hungarian": "hungarian", "Switzerland": "switzerland", "VA Long Beach": "va",
}  # fmt: skip
FEATURES = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
)  # fmt: skip
SELDOM = 3  # columns at the end, which FLamby leaves out


@dataclass(frozen=True)
class FileSource:
    """Where the files of a dataset lie, and how they become the arrays of NAME.npz."""

    repository: str
    revision: str | None  # the commit; None: whatever is there, which is logged
    files: tuple[str, ...]
    convert: Callable[[Mapping[str, Path]], Arrays]


def fetch_files(name: str, path: Path) -> None:
    """Fetch the files of a dataset from the hub, convert them, and store the arrays at this path."""
    source = FILES[name]
    store(path, source.convert({file: download_file(source, file) for file in source.files}))


def download_file(source: FileSource, file: str) -> Path:
    """One file of a dataset on the hub."""
    try:
        from huggingface_hub import hf_hub_download

        save_time_when_offline()
    except ImportError as error:
        raise Unreachable(NO_LIBRARY) from error
    if source.revision is None and file == source.files[0]:
        log.warning("%s is not pinned to a revision: what is there today is taken", source.repository)
    try:
        return Path(hf_hub_download(source.repository, file, repo_type="dataset", revision=source.revision))
    except (OSError, ValueError, RuntimeError) as error:
        raise Unreachable.at(source.repository, error) from error


def read_numbers(path: Path, columns: int, delimiter: str | None = None) -> npt.NDArray[np.float64]:
    """The numbers of a text file; '?' is NaN."""
    lines = path.read_text().replace("?", "nan").splitlines()
    try:
        numbers = np.loadtxt([line for line in lines if line.strip()], delimiter=delimiter, ndmin=2)
    except ValueError as error:
        raise DataError(f"{path} has other than numbers ({error}); delete it to fetch it again") from error
    if numbers.shape[1] != columns:
        raise DataError(f"{path} has {numbers.shape[1]} columns, wanted {columns}; delete it to fetch it again")
    return numbers


def list_har_files(part: str) -> tuple[str, ...]:
    """The files of UCI's train or test subjects: signals, activities, subjects."""
    signals = (f"{part}/Inertial Signals/{signal}_{part}.txt" for signal in SIGNALS)
    return (*signals, f"{part}/y_{part}.txt", f"{part}/subject_{part}.txt")


def convert_har(paths: Mapping[str, Path]) -> Arrays:
    """All subjects as `har` has them; the random quarter of windows for testing is our own draw, not PFLlib's."""
    parts = [[paths[file] for file in list_har_files(part)] for part in ("train", "test")]
    x = np.concatenate([np.stack([read_numbers(path, 128) for path in own[:-2]], 1) for own in parts])
    y, client = (np.concatenate([read_numbers(own[i], 1)[:, 0] for own in parts]) for i in (-2, -1))
    y, client = y.astype(np.int64) - 1, client.astype(np.int64) - 1
    arrays: Arrays = {
        "x": x.astype(np.float16),
        "y": y.astype(np.uint8),
        "client": client,
        "run": chain_windows(x, y, client),
    }
    test = draw_stratified(client, round(0.25 * len(y)), generator(0, "hub"), low_first=True)
    split = {"train": others(len(y), test), "test": test}
    cut = {f"{name}_{part}": array[own] for name, array in arrays.items() for part, own in split.items()}
    return cut | {"classes": np.array(ACTIVITIES), "channels": np.array(SIGNALS)}


def chain_windows(x: npt.NDArray[np.float64], y: Index, client: Index) -> Index:
    """The unbroken series of each window: the next one begins with the second half of the one before."""
    half = x.shape[2] // 2
    follows = (x[1:, :, :half] == x[:-1, :, half:]).all((1, 2)) & (y[1:] == y[:-1]) & (client[1:] == client[:-1])
    return np.concatenate([[0], np.cumsum(~follows)]).astype(np.int64)


def convert_heart(paths: Mapping[str, Path]) -> Arrays:
    """All patients as `heart` has them, and FLamby's split."""
    parts = [read_numbers(path, len(FEATURES) + 1, ",") for path in paths.values()]
    patients, sizes = np.concatenate(parts), [len(own) for own in parts]
    return {
        "x": patients[:, :-1].astype(np.float32), "y": (patients[:, -1] > 0).astype(np.uint8),
        "y_raw": patients[:, -1].astype(np.uint8), "client": np.repeat(np.arange(len(parts)), sizes),
        "hospitals": np.array(list(HOSPITALS)), "features": np.array(FEATURES),
        "flamby_split": np.concatenate([split_as_flamby(own) for own in parts]),
    }  # fmt: skip


def split_as_flamby(patients: npt.NDArray[np.float64]) -> npt.NDArray[np.int8]:
    """FLamby's part of each patient of a hospital: 0 train, 1 test, -1 where one of its columns has a gap."""
    from sklearn.model_selection import train_test_split  # slow to load, and seldom used

    known = np.flatnonzero(~np.isnan(patients[:, : len(FEATURES) - SELDOM]).any(1))
    sick = patients[known, -1] > 0
    strata = sick if min(sick.sum(), (~sick).sum()) > 1 else None  # Switzerland has one healthy patient left
    train, test = train_test_split(known, test_size=0.34, train_size=0.66, random_state=43, stratify=strata)
    part = np.full(len(patients), -1, np.int8)
    part[train], part[test] = 0, 1
    return part


FILES = {
    "har": FileSource("udayl/UCI_HAR", None, (*list_har_files("train"), *list_har_files("test")), convert_har),
    "heart": FileSource(
        "mstz/heart", "761febbea12569d135b87fb05acf11b0491c9423",
        tuple(f"processed.{name}.data" for name in HOSPITALS.values()), convert_heart,
    ),
}  # fmt: skip
