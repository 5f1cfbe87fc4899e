"""What a client remembers between tasks, by version, so that server and client agree even after one of them fell over.

A client keeps what a task told it to under the number of that call. With the next task the server says which of them
it has accepted (the answer may have come too late, or been damaged), and which its last checkpoint knows. The client
goes on from the accepted one, holds on to both, and forgets the others: a server that is taken back to its checkpoint,
or a node that was restarted, finds the same memory again.
"""

import json
import os
from collections.abc import Collection
from dataclasses import asdict, dataclass
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

    def arrival(self, digest: str, round: int) -> int:
        """The round in which the client first had the rows of this digest; 0 if it never had others."""


@dataclass(frozen=True)
class Seen:
    """Which rows a client had at its last task."""

    digest: str
    round: int  # of that task
    since: int  # the round in which they came

    def again(self, digest: str, round: int) -> "Seen":
        """The same at its next task; other rows are of a later round than the last task, which had the old ones."""
        return Seen(digest, round, self.since if digest == self.digest else max(round, self.round + 1))


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

    def arrival(self, digest: str, round: int) -> int:
        path = self.folder / "rows.json"
        seen = Seen(**json.loads(path.read_text())) if path.exists() else Seen(digest, round, 0)
        now = seen.again(digest, round)
        self.folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(now)))
        return now.since

    def _path(self, version: int) -> Path:
        return self.folder / f"memory-{version}.safetensors"
