"""Which samples of a client are copies of others: the very same several times, as oversampling makes them.

A copy is no further evidence of where a client's samples come from, and no test of a model that trained on another one.
Samples are compared by hashes of their bytes, of even and of odd numbers apart. Where they have few values, different
ones share a half now and then, and where targets are noisy, equal samples have different ones: such samples are equal
by chance, and count as they are.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from kinfed.keys import LAST, base_key, fold, hash_bits

CHANCE = 1000.0  # times as many equal samples as their halves explain: more are copies
EVERY, HALVES = (-1, -1), ((-1, 0), (0, -1))  # of even and odd numbers, as masks
SAME = 0.95  # of the pairs of equal samples that have equal targets, at least, where they are copies
AT_ONCE = 2**16  # words that are hashed in one go: as many as a core's cache holds
WORD = 8  # bytes


class Copies(NamedTuple):
    """Which samples of a client are copies; without any, each sample is its own original."""

    rank: Tensor  # [n] the number of each sample's original, by where originals come first
    is_original: Tensor  # [n] bool: it is there for the first time
    distinct: Tensor  # scalar: how many originals there are

    def positions(self) -> Tensor:
        """Where the originals are, in their order; behind them any position: [n]."""
        position = torch.arange(len(self.rank), device=self.rank.device)
        return torch.where(self.is_original, position, LAST).sort().values.clamp(max=len(position) - 1)


def name_samples(x: Tensor, y: Tensor) -> Tensor | None:
    """Hashes of samples [N, ...], of even and odd numbers, and of targets [N, ...]: [N, 3]; None without equal samples.

    Equal samples have equal hashes, on every device. That one number comes twice says nothing.
    """
    flat = x.flatten(1)
    if flat.shape[1] < 2 or len(hash_samples(flat, EVERY).unique()) == len(flat):
        return None
    return torch.stack([*(hash_samples(flat, half) for half in HALVES), hash_samples(y.reshape(len(y), -1), EVERY)], 1)


def hash_samples(flat: Tensor, which: tuple[int, int]) -> Tensor:
    """One 64-bit number for each sample [N, d], by the bytes of even and odd numbers whose mask is not 0: [N]."""
    each = flat.element_size()
    words = -(-flat.shape[1] * each // WORD)
    mask = torch.tensor(which * (words * WORD // each + 1), dtype=torch.int8)[: words * WORD // each]
    mask = mask.repeat_interleave(each).view(torch.long).to(flat.device)
    seed = torch.tensor(base_key("samples"), device=flat.device)
    first, second = (fold(seed, torch.arange(2 * words, device=flat.device)) | 1).view(2, words)
    blocks = (to_words(block, words) for block in flat.split(max(1, AT_ONCE // words)))
    hashed = [hash_block(block if which == EVERY else block & mask, first, second) for block in blocks]
    return hash_bits(torch.cat(hashed)) if hashed else torch.zeros(0, dtype=torch.long, device=flat.device)


def hash_block(words: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """The sum of each sample's words [b, w], hashed by odd keys [w]: [b]."""
    mixed = words * first
    mixed ^= mixed >> 32
    mixed *= second
    return mixed.sum(1)


def to_words(flat: Tensor, words: int) -> Tensor:
    """The bytes of samples [b, d] as so many 64-bit numbers: [b, words]."""
    missing = words * WORD // flat.element_size() - flat.shape[1]
    is_aligned = not missing and not flat.storage_offset() % WORD
    return (flat.contiguous() if is_aligned else pad(flat, (0, missing))).view(torch.long)


def find_copies(names: Tensor, is_real: Tensor) -> Copies:
    """The copies among samples of these names [n, 3], of which some are real [n] and the others padding."""
    whole, position = name_inputs(names), torch.arange(len(names), device=names.device)
    leader = find_first(whole, is_real)
    is_original = (leader == position) & is_real
    halves = [count_pairs(find_first(half, is_original), is_original) for half in names[:, :2].unbind(1)]
    by_chance = halves[0] * halves[1] / count_all(is_original).clamp(min=1).square() * count_all(is_real)
    equal, alike = (count_pairs(first, is_real) for first in (leader, find_first(fold(whole, names[:, 2]), is_real)))
    are_copies = (equal > CHANCE * by_chance) & (alike >= SAME * equal)
    leader = torch.where(are_copies, leader, position)
    is_original = (leader == position) & is_real
    return Copies((is_original.cumsum(0) - 1)[leader], is_original, is_original.sum())


def name_inputs(names: Tensor) -> Tensor:
    """One hash of each sample without its target: [n]."""
    return fold(names[:, 0], names[:, 1])


def find_first(names: Tensor, counts: Tensor) -> Tensor:
    """Where the name of each sample [n] comes first among those that count [n]: [n]."""
    ordered, order = torch.where(counts, names >> 1, LAST).sort(stable=True)
    begins = torch.cat([torch.ones_like(counts[:1]), ordered.diff() != 0])
    start = torch.where(begins, torch.arange(len(names), device=names.device), 0).cummax(0).values
    return torch.zeros_like(order).scatter(0, order, order[start])


def count_pairs(leader: Tensor, counts: Tensor) -> Tensor:
    """How many pairs of the samples that count [n] have the same first one [n]: scalar, double."""
    number = torch.zeros_like(leader).scatter_add(0, leader, counts.long()).double()
    return (number * (number - 1) / 2).sum()


def count_all(counts: Tensor) -> Tensor:
    """How many pairs there are of the samples that count [n]: scalar, double."""
    number = counts.sum().double()
    return number * (number - 1) / 2


def find_originals(x: Tensor, y: Tensor, owned: Iterable[Tensor]) -> Tensor:
    """The first equal sample of the pool x [N, ...] where a sample's owner has copies of it, else itself: [N]."""
    originals, names = torch.arange(len(x)), name_samples(x, y)
    if names is None:
        return originals
    is_copied = torch.zeros(len(x), dtype=torch.bool)
    for own in owned:
        rank = find_copies(names[own], torch.ones_like(own, dtype=torch.bool)).rank
        is_copied[own[rank.bincount()[rank] > 1]] = True
    everything = torch.ones_like(is_copied)
    return torch.where(is_copied, find_first(name_inputs(names), everything), originals)
