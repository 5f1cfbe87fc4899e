# mypy: ignore-errors
"""Masks of dropout on a GPU in one kernel (Triton): the bits of `batch_operations`, drawn where they are stored."""

import torch
import triton
from torch import Tensor
from triton import language as tl

constexpr = tl.constexpr
BLOCK = 1024


def draw_factors(keys: Tensor, count: int, threshold: int, scale: float, dtype: torch.dtype) -> Tensor:
    """Factors `scale` and 0 by chance: [keys, count]."""
    factors = torch.empty(len(keys), count, dtype=dtype, device=keys.device)
    _draw[(triton.cdiv(count, BLOCK), len(keys))](keys, factors, count, threshold, scale, BLOCK)
    return factors


@triton.jit
def _draw(keys, factors, count, threshold, scale, block: constexpr):
    lane = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * block + tl.arange(0, block)
    position = _hash((at // 4).to(tl.int64) * 2 + 1)
    bits = _hash(tl.load(keys + lane) + position)
    part = ((bits >> ((at % 4) * 16).to(tl.int64)) & 65535).to(tl.int32)
    signed = tl.where(part >= 32768, part - 65536, part)
    value = tl.where(signed >= threshold, scale, 0.0)
    tl.store(factors + lane * count + at, value.to(factors.dtype.element_ty), mask=at < count)


@triton.jit
def _hash(x):
    """`keys.hash_bits`."""
    x = (x ^ ((x >> 30) & 17179869183)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 137438953471)) * -7723592293110705685
    return x ^ ((x >> 31) & 8589934591)
