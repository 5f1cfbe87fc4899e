"""Token ids as vectors, for encoders and signatures: how often tokens, and pairs of neighbours, occur in a sample."""

import torch
from torch import Tensor

TOKENS = (torch.int16, torch.int32, torch.int64)
SINGLES, PAIRS = 256, 1024  # numbers for tokens, and for pairs; ids beyond share a number
TOKEN_SHAPE = (SINGLES + PAIRS,)
PRIME = 613  # so that pairs of a small vocabulary seldom share a number


def count_tokens(x: Tensor) -> Tensor:
    """The frequencies of tokens and of neighbouring pairs: [b, ...] ids -> [b, 1280], scaled to about 1."""
    ids = x.long().flatten(1)
    pairs = ids[:, :-1] * PRIME + ids[:, 1:]
    parts = [count_remainders(ids, SINGLES), count_remainders(pairs, PAIRS)]
    return torch.cat(parts, 1)


def count_remainders(ids: Tensor, size: int) -> Tensor:
    """How often each remainder of the ids occurs, over the root of their number: [b, size]."""
    each = torch.full(ids.shape, 1 / max(1, ids.shape[1]) ** 0.5, device=ids.device)
    return torch.zeros(len(ids), size, device=ids.device).scatter_add(1, ids % size, each)


def encoder_shape(x: Tensor) -> tuple[int, ...]:
    """The shape of a sample as an encoder takes it: its own, or that of token frequencies."""
    return TOKEN_SHAPE if x.dtype in TOKENS else tuple(x.shape[1:])


def encoder_shapes(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """What an encoder may take where samples are of this shape: samples in a row may be tokens."""
    return (shape, TOKEN_SHAPE) if len(shape) == 1 else (shape,)
