"""How much of a GPU's memory this process may take: all that is free, or its share where several processes use it.

`--jobs N` tells its processes that they are N. Where several commands share a GPU, `KINFED_GPU_PROCESSES` says how many
processes they have in all.
"""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kinfed.errors import ConfigError

PROCESSES = "KINFED_GPU_PROCESSES"
CONTEXT = 2**29  # bytes of a process on a GPU beside its tensors, roughly
NEARLY = 0.9
SOME = 2**28  # bytes that are worth giving back
INSIDE: Counter[int] = Counter()  # of each device: how many runs keep to the limit, one of which goes on at a time


def count_processes() -> int:
    """How many processes share each GPU, this one included."""
    said = os.environ.get(PROCESSES, "") or "1"
    if not said.isdecimal() or int(said) < 1:
        raise ConfigError(f"{PROCESSES}: wanted how many processes share a GPU, at least 1, got '{said}'")
    return int(said)


def share_with(processes: int) -> None:
    """Notes that this process shares the GPU with so many in all, or with more where the environment says so."""
    os.environ[PROCESSES] = str(max(processes, count_processes()))


def limit_of(device: torch.device) -> int:
    """Bytes that this process's tensors may take, in all; where it has more than half already, half a share more."""
    total, processes = torch.cuda.mem_get_info(device)[1], count_processes()
    if processes == 1:
        return total
    share = max(SOME, total // processes - CONTEXT)
    return min(total, max(share, torch.cuda.memory_allocated(device) + share // 2))


def room_on(device: torch.device) -> int:
    """Bytes that this process may still take: free ones, and those that torch keeps for it, within its limit."""
    kept, used = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    return min(torch.cuda.mem_get_info(device)[0] + kept, limit_of(device)) - used


def is_crowded(device: torch.device) -> bool:
    """Whether other processes have what this one may take of a GPU."""
    if device.type != "cuda":
        return False
    own = torch.cuda.memory_reserved(device) + CONTEXT
    return torch.cuda.mem_get_info(device)[0] < NEARLY * (limit_of(device) - own)


@contextmanager
def keep_to_limit(device: torch.device) -> Iterator[None]:
    """Inside it torch raises its out-of-memory error where this process takes more than its limit.

    The limit is the process's: of runs that train together the last one that leaves lifts it.
    """
    if device.type != "cuda" or count_processes() == 1:
        yield
        return
    number = torch.cuda.current_device() if device.index is None else device.index  # torch wants one here
    torch.cuda.set_per_process_memory_fraction(limit_of(device) / torch.cuda.mem_get_info(device)[1], number)
    INSIDE[number] += 1
    try:
        yield
    finally:
        INSIDE[number] -= 1
        if not INSIDE[number]:
            torch.cuda.set_per_process_memory_fraction(1.0, number)


def give_back(device: torch.device) -> None:
    """Gives others what torch only keeps for later, if this process shares the GPU and little of it is free."""
    if device.type != "cuda" or count_processes() == 1:
        return
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if kept > SOME and torch.cuda.mem_get_info(device)[0] < limit_of(device):
        torch.cuda.empty_cache()
