import pytest
import torch

from kinfed.models.tiles import learning_tile, precision, product_tile


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("out", [1, 6, 10, 32, 47, 64, 512])
@pytest.mark.parametrize("rows", [1, 16, 100, 1960, 7840])
def test_tiles_are_what_a_kernel_can_multiply(rows, out, tf32, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", tf32)
    assert precision() == ("tf32" if tf32 else "tf32x3")
    tiles = [product_tile(rows, depth, out) for depth in (25, 60, 800)]
    tiles += [learning_tile(rows, total, out, lanes) for total in (26, 151, 801) for lanes in (1, 100)]
    for sides, warps, ahead in tiles:
        assert all(side >= 16 and side & (side - 1) == 0 for side in sides)
        assert sides[1] >= min(out, 64) and warps in (2, 4, 8) and ahead >= 2
