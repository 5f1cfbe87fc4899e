"""What a client remembers between tasks, by version, so that server and client agree even after one of them fell over.

A client keeps what a task told it to under the number of that call. With the next task the server says which of them
it has accepted (the answer may have come too late, or been damaged), and which its last checkpoint knows. The client
goes on from the accepted one, holds on to both, and forgets the others: a server that is taken back to its checkpoint,
or a node that was restarted, finds the same memory again.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from kinfed.params import Params


class Memory(Protocol):
    """Where a client keeps it."""

    def recall(self, version: int) -> Params | None:
        """What was kept under this number; None if it is not there."""

    def keep(self, version: int, memory: Params) -> None:
        """Keeps it."""

    def forget_but(self, versions: Collection[int]) -> None:
        """Drops all other versions."""


@dataclass(frozen=True)
class InFolder:
    """Files of a folder of the client's own: they outlive its process."""

    folder: Path

    def recall(self, version: int) -> Params | None:
        try:
            return load_file(self._path(version))
        except (FileNotFoundError, SafetensorError):
            return None

    def keep(self, version: int, memory: Params) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        beside = self.folder / f".{version}.new"
        save_file({name: t.detach().cpu().contiguous() for name, t in memory.items()}, beside)
        with open(beside, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(beside, self._path(version))

    def forget_but(self, versions: Collection[int]) -> None:
        for path in self.folder.glob("memory-*.safetensors"):
            if path.stem.removeprefix("memory-") not in map(str, versions):
                path.unlink(missing_ok=True)

    def _path(self, version: int) -> Path:
        return self.folder / f"memory-{version}.safetensors"
