"""Keyed random numbers.

A key is one int64 number, fixed by (seed, task, n-th call of that task, client). Random numbers are hashes of
(key, position), so neither the order of the clients, nor padding, nor the device changes them.
"""

import hashlib
from functools import lru_cache

import torch
from torch import Tensor

LAST = torch.iinfo(torch.int64).max


def base_key(*parts: int | str) -> int:
    """A signed 64-bit number that stands for these words and numbers."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def hash_bits(numbers: Tensor) -> Tensor:
    """int64 -> int64, every bit of the result depends on every bit of the input (splitmix64's finaliser)."""
    x = numbers
    for shift, multiplier in ((30, -4658895280553007687), (27, -7723592293110705685)):
        x = (x ^ ((x >> shift) & (LAST >> (shift - 1)))) * multiplier
    return x ^ ((x >> 31) & (LAST >> 30))


def seed_generators(seed: int) -> None:
    """torch.manual_seed, less the stack trace that it writes for every kind of device where there is none."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def fold(key: Tensor, number: int | Tensor) -> Tensor:
    """A new key from a key and a number: streams that do not depend on each other."""
    other = _hash_number(number * 2 + 1) if isinstance(number, int) else hash_bits(number * 2 + 1)
    return hash_bits(key + other)


def _hash_number(number: int) -> int:
    """`hash_bits` of one number, without a tensor."""
    x = number % 2**64
    for shift, multiplier in ((30, -4658895280553007687), (27, -7723592293110705685)):
        x = (x ^ (x >> shift)) * multiplier % 2**64
    x ^= x >> 31
    return x - 2**64 if x > LAST else x


def fold_number(key: int, number: int) -> int:
    """`fold` of numbers, without a tensor."""
    return _hash_number(key + _hash_number(number * 2 + 1))


def permute(key: int, count: int, device: torch.device) -> Tensor:
    """The numbers below `count` in a random order: as `Samples.shuffle` orders samples without padding."""
    hashed = _hash_positions(1 << max(0, count - 1).bit_length(), device)[:count]
    return (hash_bits(hashed + key) >> 1).argsort(stable=True)


@lru_cache(maxsize=64)  # a table for each power of two
def _hash_positions(count: int, device: torch.device) -> Tensor:
    return hash_bits(torch.arange(count, device=device) * 2 + 1)


def uniform(key: Tensor, count: int) -> Tensor:
    """`count` float32 numbers in [0, 1), number i depends on (key, i) alone."""
    bits = fold(key, torch.arange(count, device=key.device))
    return ((bits >> 40) & 0xFFFFFF).float() / 2**24


def choose(key: Tensor, count: int, wanted: int) -> Tensor:
    """So many different positions of `count`, sorted: those whose `uniform` numbers are least, the first of equals."""
    position = torch.arange(count, device=key.device)
    if wanted >= count:
        return position
    rank = ((fold(key, position) >> 40) & 0xFFFFFF) << 32 | position  # no two are the same
    return (rank.topk(wanted, largest=False, sorted=False).values & 0xFFFFFFFF).sort().values


def to_uniform(bits: Tensor) -> Tensor:
    """Random 64-bit numbers as numbers in [0, 1), double."""
    return ((bits >> 11) & (2**53 - 1)).double() / 2**53


def normal(bits: Tensor) -> Tensor:
    """Half as many standard normal numbers as there are random 64-bit ones (Box and Muller), in double."""
    radius, angle = to_uniform(bits).chunk(2)
    return (-2 * (1 - radius).log()).sqrt() * (2 * torch.pi * angle).cos()
