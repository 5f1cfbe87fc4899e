import os
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture
def real_root() -> Path:
    """The folder of real .npz files."""
    root = Path(os.environ.get("KINFED_DATA") or SHARED)
    if not (root / "mnist.npz").exists():
        pytest.skip(f"no real files in {root}; set KINFED_DATA to run this test")
    return root
