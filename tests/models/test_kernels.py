"""The GPU's kernels on a CPU: Triton can interpret them, slowly, where it is installed."""

import importlib.util
import os
import subprocess
import sys

import pytest

SCRIPT = """
from types import SimpleNamespace as Played
import torch
from torch import nn
from kinfed.client import Batch
from kinfed.models.stages import Pace
from kinfed.models.walks import Recorded, Walks
from kinfed.models import Feed, Model, Quick, descent, on_gpu
from kinfed.training import MetaGradient

def pooled():
    first = nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.ReLU()
    then = nn.Conv2d(3, 20, 2), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*first, *then, nn.Linear(80, 7), nn.ReLU(), nn.Linear(7, 3))

def padded():
    first = nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3, padding=1)
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(125, 9, bias=False), nn.ReLU(), nn.Linear(9, 3))

POOLED, PADDED = Model(pooled, classes=3), Model(padded, classes=3)
X = torch.randint(0, 256, (40, 2, 7, 7), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
Y = torch.arange(40) % 3

def starts(model, seed):
    return {name: torch.stack([model.init(seed + lane)[name] for lane in range(3)]) for name in model.init()}

def check(model, rows, momentum, mu, shifts=False, seed=0):
    draw = torch.Generator().manual_seed(seed)
    pick, mask = torch.randint(0, 40, (3, 3, rows), generator=draw), torch.ones(3, 3, rows, dtype=torch.bool)
    mask[1, 2], mask[0, 2, 2:] = False, False  # an empty batch, and one with two rows
    feed, rate, start = Feed(X, Y, pick, mask), torch.tensor(0.05), starts(model, seed)
    shift = {name: torch.randn(w.shape, generator=draw) / 10 for name, w in start.items() if shifts}
    expected = descent._descended(Quick(model, momentum, mu), feed, rate, start, shift)
    got = on_gpu.descended(model, feed, rate, start, shift, Pace(momentum, mu))
    for name in expected:
        assert not torch.equal(got[name], start[name]), name
        torch.testing.assert_close(got[name], expected[name], atol=1e-6, rtol=0)

def check_trial_steps(model, seed=1):
    draw = torch.Generator().manual_seed(seed)
    pick, mask = torch.randint(0, 40, (3, 2, 8), generator=draw), torch.ones(3, 2, 8, dtype=torch.bool)
    mask[1, 1], mask[0, 1, 6:], mask[2, 1, 3:] = False, False, False  # no pair, a short second half, and none
    start, slope = starts(model, seed), MetaGradient(model.gradient, 0.2, 4)
    got = on_gpu.descended(model, Feed(X, Y, pick, mask), torch.tensor(0.05), start, {}, Pace(mu=0.1, inner=0.2))
    for lane in range(3):
        params = first = {name: w[lane] for name, w in start.items()}
        for at, real in zip(pick[lane], mask[lane]):
            if real.any():
                g = slope(params, Batch(X[at], Y[at], real, real.any())).weights
                params = {n: w - 0.05 * (g[n] + 0.1 * (w - first[n])) for n, w in params.items()}
        for name in params:
            torch.testing.assert_close(got[name][lane], params[name], atol=1e-6, rtol=0)

check(POOLED, 4, 0.9, 0.1)
check(POOLED, 18, 0.0, 0.0)  # more rows than a tile has
check_trial_steps(POOLED)

torch.cuda.graph_pool_handle = lambda: "a pool"
Recorded._recorded = lambda self, places: Played(replay=lambda: self.walk.go(places))  # a true recording needs a GPU
on_gpu.RECORDED = 2, 2  # steps, of three
walks = Walks()
with walks:
    for seed in range(2):  # the second time from other starts
        check(POOLED, 4, 0.9, 0.1, seed=seed)
        check(PADDED, 4, 0.5, 0.0, shifts=True, seed=seed)
        check_trial_steps(POOLED, seed)
assert len(walks.known) == 3 and all(walk.graph for walk in walks.known.values())

on_gpu.AHEAD = 1  # images of two steps at a time
check(PADDED, 4, 0.5, 0.0, shifts=True)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed: pip install triton")
def test_interpreted_kernels_train_as_the_cpu_does():
    told = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=told, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
