"""Files: written whole or not at all, sealed by a digest, read within bounds, and held by one process at a time."""

import hashlib
import json
import logging
import os
import shlex
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from typing import IO, Protocol, cast

import numpy as np
import numpy.typing as npt
import psutil
import torch
from filelock import FileLock, Timeout
from numpy.lib import format as npy
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from kinfed.errors import ConfigError, FileError

log = logging.getLogger("kinfed")
Arrays = dict[str, npt.NDArray[np.generic]]


class SafeFile(Protocol):
    """What we use of an open safetensors file, which has no types of its own."""

    def keys(self) -> list[str]: ...

    def get_tensor(self, name: str) -> Tensor: ...

    def metadata(self) -> dict[str, str] | None: ...


PRIVATE, USUAL = 0o600, 0o666  # permissions; the user's umask takes away from them
BESIDE = ".new"  # ends the name of a file that is not whole yet
SAFETENSORS = ".tmp??????"  # names of files that safetensors writes before it moves them
SEAL = "sha256"  # of a file of tensors: what it says of all else in it
MOST_TEXT = 2**31  # bytes of a table or another text that is read as a whole
BLANK = "0" * 64  # in place of a text's own digest while that is computed


def quote(path: Path) -> str:
    """The path as a shell takes it in a command that is shown."""
    return shlex.quote(f"{path}")


def write_atomically(path: Path, write: Callable[[Path], None], private: bool = False) -> None:
    """Lets `write` fill a file beside `path`, forces it to disk, and moves it into place; FileError where it cannot."""
    beside = path.with_name(f".{path.name}.{os.getpid()}{BESIDE}")
    try:
        _make_empty(beside, PRIVATE if private else USUAL)
        write(beside)
        with open(beside, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    except (OSError, SafetensorError) as error:
        kept = "; the one that is there is kept" if path.exists() else ""
        raise FileError(f"{path} cannot be written: {reason_of(error)}{kept}") from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)  # where it was not moved


def clear_unfinished(folder: Path) -> None:
    """Removes files that a killed process left half-written."""
    for left in (*folder.glob(f".*{BESIDE}"), *folder.glob(SAFETENSORS)):
        left.unlink(missing_ok=True)


def _make_empty(path: Path, mode: int) -> None:
    """Makes a new empty file; one that is there, or a link that leads elsewhere, is removed and not followed."""
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))


def reason_of(error: Exception) -> str:
    """What the operating system says, in a few words."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def write_bytes(path: Path, content: bytes, private: bool = False) -> None:
    """Replaces a file in one step."""

    def write(beside: Path) -> None:
        beside.write_bytes(content)

    write_atomically(path, write, private)


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None, private: bool = True
) -> None:
    """Replaces a file of tensors in one step, sealed by a digest."""
    held = separate({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    sealed = {**(metadata or {}), SEAL: digest_content(held, metadata or {})}

    def write(beside: Path) -> None:
        mode = beside.stat().st_mode
        save_file(held, beside, metadata=sealed)
        beside.chmod(mode)  # safetensors has its own opinion

    write_atomically(path, write, private)


def separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, of which no two share memory, as safetensors demands: later ones that do are copied."""
    seen, found = set[int](), dict[str, Tensor]()
    for name, tensor in tensors.items():
        start = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if start in seen else tensor
        seen.add(start)
    return found


def load_tensors(path: Path, must_be_sealed: bool = True) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file; FileError where it is damaged or changed, or not sealed as it must be."""
    with _open_tensors(path) as file:
        tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        metadata = dict(file.metadata() or {})
    seal = metadata.pop(SEAL, None)
    if seal is None and must_be_sealed:
        raise FileError("it has no digest: it is damaged, or from an earlier kinfed")
    if seal is not None and seal != digest_content(tensors, metadata):
        raise FileError("its digest is that of other content: it is damaged")
    return tensors, metadata


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata alone; unlike the rest it is not checked against the digest."""
    with _open_tensors(path) as file:
        return dict(file.metadata() or {})


def refuse_device(path: Path) -> None:
    """Raise FileError where something else than a file is there: to read a pipe or a device may never end."""
    if path.exists() and not path.is_file():
        raise FileError("it is a folder, a pipe or a device, wanted a file")


def begins_with(path: Path, *starts: str) -> bool:
    """Whether a text file begins in one of these ways: so are files known that kinfed wrote."""
    if not path.is_file():
        return False
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(max(map(len, starts))).startswith(starts)


def refuse_foreign(folder: Path, names: Iterable[str], what: str) -> None:
    """Raise ConfigError where files or folders of these names are there: they are the user's own."""
    if there := [name for name in dict.fromkeys(names) if os.path.lexists(folder / name)]:
        raise ConfigError(
            f"{folder} has {', '.join(there)}, which kinfed did not write and would replace: choose another folder for "
            f"{what}"
        )


def refuse_large(path: Path) -> None:
    """Raise FileError where a text is larger than any that kinfed writes: it is read as a whole."""
    if path.exists() and (size := path.stat().st_size) > MOST_TEXT:
        raise FileError(f"it has {size} bytes, wanted at most {MOST_TEXT}")


@contextmanager
def _open_tensors(path: Path) -> Iterator[SafeFile]:
    refuse_device(path)
    try:
        with safe_open(path, framework="pt") as file:
            yield cast(SafeFile, file)
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, KeyError, AttributeError, ValueError, RuntimeError) as error:
        raise FileError(reason_of(error)) from error


def digest_content(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """The SHA-256 of names, types, shapes and bytes of tensors, and of the metadata."""
    digest = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        flat = tensor.contiguous().reshape(-1)
        flat = flat if flat.stride() == (1,) else flat.clone(memory_format=torch.contiguous_format)  # a single number
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Raise FileError for the first of these tensors that holds a NaN or an infinity."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise FileError(f"{name} holds a NaN or an infinity, which no model may")


def seal_text(text: str) -> str:
    """The text, and in place of the first blank its own digest."""
    return text.replace(BLANK, hashlib.sha256(text.encode()).hexdigest(), 1)


def check_seal(text: str, seal: object) -> None:
    """Raise FileError unless the digest in this text is that of the text."""
    if not isinstance(seal, str) or len(seal) != len(BLANK):
        raise FileError("it has no digest: it is damaged, or from an earlier kinfed")
    if hashlib.sha256(text.replace(seal, BLANK, 1).encode()).hexdigest() != seal:
        raise FileError("its digest is that of other content: it is damaged")


AT_ONCE = 2**28  # bytes that are unpacked without further ado
RATIO = 200  # images seldom pack better; a bomb packs a thousandfold
BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError, RuntimeError, NotImplementedError)


def read_arrays(path: Path) -> Arrays:
    """The arrays of numbers and text in an .npz file, whose sizes are checked before anything is unpacked."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            _check_size(sum(info.file_size for info in members.values()), os.path.getsize(path))
            return {name: _read_array(archive, info) for name, info in members.items()}
    except FileNotFoundError:
        raise
    except (*BROKEN, SyntaxError, TypeError, MemoryError, RecursionError, OverflowError) as error:
        raise FileError(reason_of(error) if isinstance(error, OSError) else str(error)) from error


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[np.generic]], private: bool = True) -> None:
    """Replaces an .npz file in one step; what is in it is clients' own, so that only its owner reads it."""

    def write(beside: Path) -> None:
        with open(beside, "wb") as file:  # given a name, numpy would add .npz to it
            np.savez_compressed(file, allow_pickle=False, **arrays)

    write_atomically(path, write, private)


def _check_size(unpacked: int, packed: int) -> None:
    """Raise ValueError where so many bytes cannot be meant, or do not fit into memory."""
    if unpacked > max(AT_ONCE, RATIO * packed):
        raise ValueError(f"it would unpack {packed} bytes to {unpacked}, more than {RATIO} times as many")
    if unpacked > (free := psutil.virtual_memory().available):
        raise ValueError(f"it would unpack to {unpacked} bytes, and {free} are free")


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> npt.NDArray[np.generic]:
    """An array of numbers or text; its header must say as many bytes as follow it."""
    with archive.open(info) as file:
        shape, dtype = _read_header(file, info.filename)
        if dtype.hasobject:
            raise ValueError(f"{info.filename} holds objects, as where series differ in length; pad or cut them to one")
        if dtype.kind not in "biufU" or prod(shape) * dtype.itemsize != info.file_size - file.tell():
            raise ValueError(f"{info.filename} is {dtype} {list(shape)}, which its {info.file_size} bytes cannot be")
    with archive.open(info) as file:
        found: npt.NDArray[np.generic] = npy.read_array(file, allow_pickle=False)
        return found


def _read_header(file: IO[bytes], name: str) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    """The shape and the type of an array that follow its magic number."""
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    version = npy.read_magic(file)
    if version not in readers:
        raise ValueError(f"{name} is an array of version {version}, wanted {', '.join(map(str, readers))}")
    shape, _, dtype = readers[version](file)
    if any(length < 0 for length in shape):
        raise ValueError(f"{name} has the shape {list(shape)}")
    return shape, dtype


@contextmanager
def lock(path: Path, busy: str = "", waits: str = "") -> Iterator[None]:
    """Holds a lock file. Where another process has it: raises ConfigError with `busy`, or logs `waits` and waits.

    Where the file system has no locks, as some network drives have none, it holds nothing.
    """
    file = FileLock(path)
    try:
        with suppress(OSError, NotImplementedError):
            take(file, busy, waits)
        yield
    finally:
        file.release()


def take(file: FileLock, busy: str, waits: str) -> None:
    """Takes the lock; if another process has it, raises ConfigError or waits."""
    try:
        file.acquire(timeout=0)
    except Timeout:
        if busy:
            raise ConfigError(busy) from None
        if waits:
            log.info(waits)
        file.acquire(timeout=-1)
