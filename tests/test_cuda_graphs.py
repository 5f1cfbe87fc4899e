"""CUDA graphs without a GPU: what is eager, captured, replayed and dropped."""

import gc
import logging
import subprocess
import sys
import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from kinfed import cuda_graphs
from kinfed.cuda_graphs import CudaGraphs, Graph, reserve_for_captures


@pytest.fixture
def captures(monkeypatch):
    """A capture that keeps the function, and whose replay calls it; the keys of captures so far."""
    seen = []

    def capture(function, places, pool):
        seen.append(tuple(places["x"].shape))
        outputs = {"y": torch.empty(0)}

        def replay():
            outputs["y"] = function(places)["y"]

        return Graph(SimpleNamespace(replay=replay), places, outputs)

    monkeypatch.setattr(cuda_graphs, "capture", capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return seen


def double(inputs):
    return {"y": 2 * inputs["x"]}


def run(graphs: CudaGraphs, *numbers: float, key: str = "double") -> list[float]:
    return graphs.run(key, double, {"x": torch.tensor(numbers)})["y"].tolist()


def test_a_function_is_captured_once_it_is_warm_and_replayed_on_new_inputs(captures):
    graphs = CudaGraphs(most=2, warm_up=2)
    assert [run(graphs, n) for n in (1.0, 2.0, 3.0, 4.0)] == [[2], [4], [6], [8]]
    assert captures == [(1,)]


def test_other_shapes_and_keys_are_captured_apart_and_the_oldest_is_dropped(captures):
    graphs = CudaGraphs(most=2)
    for numbers in ((1.0,), (1.0, 2.0), (1.0, 2.0, 3.0)):
        assert run(graphs, *numbers) == run(graphs, *numbers) == [2 * n for n in numbers]
    assert captures == [(1,), (2,), (3,)] and len(graphs.graphs) == 2
    run(graphs, 5.0)  # warms up again
    assert len(captures) == 3


def test_what_a_key_depends_on_can_go(captures):
    graphs = CudaGraphs(most=2)
    for key in ("one", "one", "two", "two"):
        run(graphs, 1.0, key=key)
    graphs.discard("one")
    assert [key for key, _ in graphs.graphs] == ["two"]
    graphs.clear()
    assert not graphs.graphs and not graphs.calls


def test_no_garbage_is_collected_while_a_graph_is_captured(captures, monkeypatch):
    capture, on = cuda_graphs.capture, []
    monkeypatch.setattr(cuda_graphs, "capture", lambda *given: on.append(gc.isenabled()) or capture(*given))
    graphs = CudaGraphs(most=2)
    assert [run(graphs, n) for n in (1.0, 2.0)] == [[2], [4]] and on == [False] and gc.isenabled()


def test_a_graph_without_a_kernel_is_not_replayed_and_other_warnings_go_on(captures, monkeypatch):
    capture = cuda_graphs.capture

    def warn(*given):
        warnings.warn("The CUDA Graph is empty. This usually means more", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
        return capture(*given)

    monkeypatch.setattr(cuda_graphs, "capture", warn)
    graphs = CudaGraphs(most=2)
    with pytest.warns(UserWarning, match="something else") as said:
        assert [run(graphs, n) for n in (1.0, 2.0, 3.0)] == [[2], [4], [6]]
    assert len(said) == 1 and len(captures) == 1 and not graphs.graphs and not graphs.failed


def test_what_cannot_be_captured_runs_eagerly_and_is_said_once(captures, monkeypatch, caplog):
    def refuse(function, places, pool):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(cuda_graphs, "capture", refuse)
    graphs = CudaGraphs(most=2)
    with caplog.at_level(logging.WARNING, "kinfed"):
        assert [run(graphs, n) for n in (1.0, 2.0, 3.0)] == [[2], [4], [6]]
    assert caplog.messages == [
        "CUDA graph capture failed; running eagerly: operation not permitted when stream is capturing"
    ]


def test_a_full_memory_is_not_taken_for_a_refusal(captures, monkeypatch):
    def fill(function, places, pool):
        raise torch.OutOfMemoryError("pretended")

    monkeypatch.setattr(cuda_graphs, "capture", fill)
    graphs = CudaGraphs(most=2)
    run(graphs, 1.0)
    with pytest.raises(torch.OutOfMemoryError):
        run(graphs, 1.0)


@pytest.mark.parametrize("end", ["raise KeyboardInterrupt", "import os, signal; os.kill(os.getpid(), signal.SIGINT)"])
def test_an_interrupted_process_lets_all_its_gpus_finish(end):
    script = f"""
import torch
from kinfed.cuda_graphs import finish_before_exit
def synchronize(device):
    print("finished", device, flush=True)
    raise RuntimeError("an illegal memory access")
torch.cuda.synchronize = synchronize
for name in ("cuda:0", "cuda:1", "cuda:0"):
    finish_before_exit(torch.device(name))
{end}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert sorted(done.stdout.splitlines()) == ["finished cuda:0", "finished cuda:1"]
    assert done.returncode != 0 and "illegal" not in done.stderr


def test_what_captures_share_is_reserved_once_for_each_gpu(monkeypatch):
    registered = []
    fake = SimpleNamespace(register_generator_state=registered.append)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: fake)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "default_generators", ("of GPU 0", "of GPU 1"))
    reserve_for_captures.cache_clear()
    assert reserve_for_captures(torch.device("cuda:1")) is reserve_for_captures(torch.device("cuda:1")) is fake
    assert registered == ["of GPU 1"]
    reserve_for_captures.cache_clear()
