"""Shares of a GPU's memory, with a GPU that is made up: 80 GiB."""

import pytest
import torch

from kinfed import gpu_memory
from kinfed.errors import ConfigError
from kinfed.gpu_memory import CONTEXT, PROCESSES, give_back, is_crowded, keep_to_limit, limit_of, room_on, share_with

GIB = 2**30
TOTAL = 80 * GIB
GPU, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict:
    """What of it is free, kept by torch for this process, and used."""
    state = {"free": 70 * GIB, "kept": 0, "used": 0, "emptied": 0, "limits": []}
    monkeypatch.setenv(PROCESSES, "")  # what a test sets is undone
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (state["free"], TOTAL))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device=None: state["kept"])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: state["used"])
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: state.update(emptied=state["emptied"] + 1))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    numbered = {0: state["limits"]}  # torch refuses a device without a number
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda part, at: numbered[at].append(part))
    return state


def test_alone_a_process_may_take_all_that_is_free(gpu):
    gpu.update(kept=4 * GIB, used=1 * GIB)
    assert room_on(GPU) == 73 * GIB
    with keep_to_limit(GPU):
        assert gpu["limits"] == []


def test_of_several_each_has_its_share_and_no_more_than_is_free(gpu, monkeypatch):
    monkeypatch.setenv(PROCESSES, "20")
    assert limit_of(GPU) == room_on(GPU) == 4 * GIB - CONTEXT
    gpu.update(free=GIB, kept=GIB, used=GIB // 2)
    assert room_on(GPU) == 3 * GIB // 2
    with keep_to_limit(GPU):
        assert gpu["limits"] == [limit_of(GPU) / TOTAL]
    assert gpu["limits"][1:] == [1.0]


def test_runs_of_a_process_keep_to_its_limit_until_the_last_one_leaves(gpu, monkeypatch):
    monkeypatch.setenv(PROCESSES, "20")
    first, second = keep_to_limit(GPU), keep_to_limit(GPU)
    first.__enter__(), second.__enter__()
    first.__exit__(None, None, None)
    assert 1.0 not in gpu["limits"]
    second.__exit__(None, None, None)
    assert gpu["limits"][2:] == [1.0]


def test_a_process_whose_data_exceed_its_share_has_half_a_share_beside_them(gpu, monkeypatch):
    monkeypatch.setenv(PROCESSES, "20")
    gpu.update(kept=10 * GIB, used=10 * GIB)
    assert room_on(GPU) == (4 * GIB - CONTEXT) // 2


def test_the_environment_may_say_that_there_are_more(gpu, monkeypatch):
    share_with(4)
    assert gpu_memory.count_processes() == 4
    monkeypatch.setenv(PROCESSES, "20")
    share_with(4)
    assert gpu_memory.count_processes() == 20
    for wrong in ("0", "-1", "many"):
        monkeypatch.setenv(PROCESSES, wrong)
        with pytest.raises(ConfigError, match=f"{PROCESSES}: wanted how many processes share a GPU.*'{wrong}'"):
            gpu_memory.count_processes()


def test_a_gpu_is_crowded_where_others_have_what_this_process_may_take(gpu, monkeypatch):
    assert not is_crowded(CPU)
    gpu.update(free=79 * GIB, kept=GIB // 2)
    assert not is_crowded(GPU)
    gpu.update(free=60 * GIB)
    assert is_crowded(GPU)
    monkeypatch.setenv(PROCESSES, "20")
    assert not is_crowded(GPU)
    gpu.update(free=GIB)
    assert is_crowded(GPU)


def test_what_torch_only_keeps_is_given_back_where_others_need_it(gpu, monkeypatch):
    gpu.update(free=GIB, kept=2 * GIB, used=GIB)
    give_back(GPU)
    assert not gpu["emptied"], "alone there is nobody who needs it"
    monkeypatch.setenv(PROCESSES, "20")
    give_back(CPU)
    give_back(GPU)
    assert gpu["emptied"] == 1
    gpu.update(free=30 * GIB)
    give_back(GPU)
    gpu.update(free=GIB, used=2 * GIB)
    give_back(GPU)
    assert gpu["emptied"] == 1
