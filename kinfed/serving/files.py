"""Files that are handed on: written in one step, readable by whom the user lets read."""

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from kinfed.checkpoint import write_atomically


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors by name; unlike safetensors' own function with the permissions that other files get."""
    content = save({name: t.detach().contiguous() for name, t in tensors.items()})

    def write(beside: Path) -> None:
        beside.write_bytes(content)

    write_atomically(path, write)
