"""Milliseconds of each kernel of ResNet-9's convolutions by how it is cut into tiles, on a GPU.

    python benchmarks/tiles.py [--clients 20] [--batch 20] [--precision tf32x3] [--processes 14]

The tables in `kinfed/kernels/layout.py` choose by what this prints: for each layer and kernel the tile that they choose
now, then the others, fastest first. Kernels are compiled in several processes before one process times them.
"""

import argparse
import contextlib
import itertools
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

import torch

from kinfed.kernels import layout
from kinfed.kernels.layout import PaddedImages, PlainConvolution, Tile

LAYERS = ((64, 128, 32), (128, 128, 16), (128, 256, 16), (256, 512, 8), (512, 512, 4))  # channels, out, side
KERNELS = "forward", "backward", "weights"
TILES: tuple[Tile, ...] = (
    ((128, 64, 32), 4, 3), ((128, 64, 32), 8, 3), ((128, 128, 32), 8, 3), ((128, 128, 32), 4, 3),
    ((128, 128, 16), 8, 4), ((64, 128, 32), 4, 3), ((256, 64, 32), 8, 3), ((64, 64, 32), 4, 4),
)  # fmt: skip
REPEATS = 5


class Case(NamedTuple):
    """A kernel of a layer with a tile; None: the one that is chosen now."""

    layer: tuple[int, int, int]
    kernel: str
    tile: Tile | None
    lanes: int
    batch: int
    precision: str


def milliseconds(case: Case) -> float:
    """Of one launch, the median; infinite where a tile needs more than the GPU has."""
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources

    try:
        return _measure(case)
    except (OutOfResources, CompilationError):
        return float("inf")


def _measure(case: Case) -> float:
    from kinfed.kernels import products

    torch.backends.cuda.matmul.allow_tf32 = case.precision == "tf32"
    tile = case.tile
    products.product_tile = layout.product_tile if tile is None else lambda *_: tile
    products.gradient_tile = layout.gradient_tile if tile is None else lambda *_: tile
    channels, out, side = case.layer
    shape = case.lanes, case.batch
    x = PaddedImages(torch.randn(*shape, side + 2, side + 2, channels, device="cuda"), 1)
    after = PaddedImages(torch.randn(*shape, side + 2, side + 2, out, device="cuda"), 1)
    y, before = (PaddedImages(torch.empty(*shape, side, side, n, device="cuda")) for n in (out, channels))
    weight, lr = torch.randn(case.lanes, 9 * channels, out, device="cuda"), torch.ones(case.lanes, device="cuda")
    plain = PlainConvolution(3)
    launch = {
        "forward": lambda: products.convolve(plain, x, weight, y, lr),
        "backward": lambda: products.convolve_back(plain, after, weight, before, None, lr),
        "weights": lambda: products.compute_gradient(plain, x, after, weight, lr),
    }[case.kernel]
    taken = []
    for _ in range(REPEATS + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        launch()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end))
    return sorted(taken[2:])[REPEATS // 2]


def main() -> None:
    """Prints a line for each layer and kernel."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("clients", 20), ("batch", 20), ("processes", 14)):
        asked.add_argument(f"--{name}", type=int, default=usual)
    asked.add_argument("--precision", default="tf32x3", choices=["tf32x3", "tf32"])
    said = asked.parse_args()
    sizes = said.clients, said.batch, said.precision
    cases = [Case(*which, *sizes) for which in itertools.product(LAYERS, KERNELS, (None, *TILES))]
    if said.processes > 1:
        with ProcessPoolExecutor(said.processes, mp_context=get_context("spawn")) as pool, contextlib.suppress(OSError):
            list(pool.map(milliseconds, cases))
    total = best = 0.0
    for layer, kernel in itertools.product(LAYERS, KERNELS):
        found = {case.tile: milliseconds(case) for case in cases if (case.layer, case.kernel) == (layer, kernel)}
        now = found.pop(None)
        order = sorted(found, key=lambda tile: found[tile])
        times = 2 if layer in ((128, 128, 16), (512, 512, 4)) else 1  # two such layers
        total, best = total + times * now, best + times * min(now, *found.values())
        shown = ", ".join(f"{tile} {found[tile]:.3f}" for tile in order if tile)
        print(f"{layer} {kernel}: now {now:.3f} ms; {shown}", flush=True)
    print(f"a step of ResNet-9: {total:.2f} ms with the tiles chosen now, {best:.2f} ms with the fastest of each")


if __name__ == "__main__":
    main()
