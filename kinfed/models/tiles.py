"""How the kernels cut their work: by tables of what was fastest on an H200, not by a rule."""

import torch

Tile = tuple[tuple[int, int, int], int, int]  # rows, columns and depth of a tile of products; warps; loads ahead


def precision() -> str:
    """How numbers are multiplied."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"


def product_tile(rows: int, depth: int, out: int) -> Tile:
    """How a product of so many rows and columns, over such a depth, is cut."""
    across, coarse = _across(out), precision() == "tf32"
    if rows <= 16:
        return (16, across, 64 if out >= 512 or depth <= 64 else 32), 4, 4
    if depth <= 32:
        return (128, across, 32), 4, 2
    if rows <= 1024 or across == 16:
        return (64, across, 32), 4, 4
    if across == 32:
        return ((128, across, 32), 8, 3) if coarse else ((64, across, 64), 4, 3)
    return ((256, across, 32), 8, 4) if coarse else ((128, across, 32), 8, 3)


def learning_tile(rows: int, total: int, out: int, lanes: int) -> Tile:
    """How the gradient of a weight [total, out] is cut, whose depth are the rows."""
    across = _across(out)
    if rows <= 16:
        return (32, across, 16), 4, 2
    if total <= 33:
        return (32, across, 32), 2, 4
    if across == 16:
        return (16, across, 64), 2, 3
    many = lanes * total > 50_000 and precision() == "tf32x3"
    return ((128, across, 32), 4, 3) if many else ((32, across, 64), 4, 3)


def _across(out: int) -> int:
    """Columns of a tile: a power of two."""
    return min(64, max(16, 1 << (out - 1).bit_length()))
