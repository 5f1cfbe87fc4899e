"""The GPU's kernels on a CPU: Triton can interpret them, slowly, where it is installed."""

import importlib.util
import os
import subprocess
import sys

import pytest

SCRIPT = """
import threading
import time
from types import SimpleNamespace
import torch
from functools import partial
from torch import nn
from torch.func import vmap
from kinfed.client import Batch
from kinfed import cuda_graphs
from kinfed.fastpath import SGD, FastPlan, JointTraining, Schedule, StepGraphs
from kinfed.fastpath import gpu_training, kernel_evaluation, parse, train_lanes
from kinfed.models import Model
from kinfed.models.inputs import Inputs
from kinfed.models.convolutions import Windows2d, _KernelProduct, _Product
from kinfed.training import MetaGradient

def pooled():
    first = nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.ReLU()
    then = nn.Conv2d(3, 20, 2), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*first, *then, nn.Linear(80, 7), nn.ReLU(), nn.Linear(7, 3))

def padded():
    first = nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3, padding=1)
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(125, 9, bias=False), nn.ReLU(), nn.Linear(9, 3))

def dropped():
    first = nn.Conv2d(2, 3, 3, padding=1), nn.MaxPool2d(2), nn.Dropout2d(0.3), nn.ReLU(), nn.Conv2d(3, 5, 2, padding=1)
    then = nn.Dropout(0.2), nn.Flatten(), nn.Linear(80, 7), nn.Dropout(), nn.ReLU(), nn.Linear(7, 3)
    return nn.Sequential(*first, *then)

DROPPED = Model(dropped, classes=3)
AUGMENTED = Model(lambda: Inputs(augment=("crop", "flip"), crop=2).wrap(dropped), classes=3)
POOLED, PADDED = Model(pooled, classes=3), Model(padded, classes=3)
X = torch.randint(0, 256, (40, 2, 7, 7), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
Y = torch.arange(40) % 3

def starts(model, seed):
    return {name: torch.stack([model.init(seed + lane)[name] for lane in range(3)]) for name in model.init()}

def check(model, size, momentum, mu, shifts=False, seed=0, graphs=None, decay=0.0):
    draw = torch.Generator().manual_seed(seed)
    pick, mask = torch.randint(0, 40, (3, 3, size), generator=draw), torch.ones(3, 3, size, dtype=torch.bool)
    mask[1, 2], mask[0, 2, 2:] = False, False  # an empty batch, and one with two samples
    keys = torch.arange(9).view(3, 3) * 7919 + seed
    schedule, rate, start = Schedule(X, Y, pick, mask, keys), torch.tensor(0.05), starts(model, seed)
    shift = {name: torch.randn(w.shape, generator=draw) / 10 for name, w in start.items() if shifts}
    sgd = SGD(momentum, mu, weight_decay=decay)
    expected = train_lanes(FastPlan(parse(model), sgd), schedule, rate, start, shift)
    got = gpu_training.train_lanes(parse(model), schedule, rate, start, shift, sgd, graphs)
    for name in expected:
        assert not torch.equal(got[name], start[name]), name
        torch.testing.assert_close(got[name], expected[name], atol=1e-6, rtol=0)

def evaluate_each(model, models, x):
    return torch.stack([model.logits({name: w[lane] for name, w in models.items()}, x) for lane in range(3)])

def check_evaluation(model):
    models, own = starts(model, 5), X[:27].unflatten(0, (3, 9))
    compute = partial(kernel_evaluation.compute_logits, model)
    def check(got, expected):
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)
    check(vmap(compute)(models, own), torch.stack([evaluate_each(model, models, own[i])[i] for i in range(3)]))
    each = vmap(lambda x: vmap(compute, (0, None))(models, x))(own)  # clients that compare models
    check(each, torch.stack([evaluate_each(model, models, x) for x in own]))
    several = {name: torch.stack([w, w.flip(0)]) for name, w in models.items()}
    each = vmap(lambda some: vmap(compute, (0, None))(some, X[:4]))(several)  # models of each client's own
    check(each[0], evaluate_each(model, models, X[:4]))
    check(each[1], each[0].flip(0))

def check_lookahead(model, seed=1, graphs=None):
    draw = torch.Generator().manual_seed(seed)
    pick, mask = torch.randint(0, 40, (3, 2, 8), generator=draw), torch.ones(3, 2, 8, dtype=torch.bool)
    mask[1, 1], mask[0, 1, 6:], mask[2, 1, 3:] = False, False, False  # no pair, a short second half, and none
    start, rule = starts(model, seed), MetaGradient(model.gradient, 0.2, 4)
    keys = torch.arange(6).view(3, 2) * 7919 + seed
    sgd, schedule = SGD(mu=0.1, inner_lr=0.2), Schedule(X, Y, pick, mask, keys)
    got = gpu_training.train_lanes(parse(model), schedule, torch.tensor(0.05), start, {}, sgd, graphs)
    for lane in range(3):
        params = first = {name: w[lane] for name, w in start.items()}
        for at, real, key in zip(pick[lane], mask[lane], keys[lane]):
            if real[4:].any():
                g = rule(params, Batch(X[at], Y[at], real, real.any(), key=key)).weights
                params = {n: w - 0.05 * (g[n] + 0.1 * (w - first[n])) for n, w in params.items()}
        for name in params:
            torch.testing.assert_close(got[name][lane], params[name], atol=1e-6, rtol=0)

FLAT = Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(98, 12), nn.ReLU(), nn.Linear(12, 3)), classes=3)
calls, compute_outputs = [], kernel_evaluation.compute_outputs
kernel_evaluation.has_evaluation_kernels = lambda model, x: True
kernel_evaluation.compute_outputs = lambda *given: calls.append(given[1].shape[:2]) or compute_outputs(*given)
for model in (POOLED, PADDED, DROPPED, AUGMENTED, FLAT):
    check_evaluation(model)
assert calls[:3] == [(3, 9), (3, 27), (6, 4)], calls
kernel_evaluation.LARGEST = 1  # lane by lane
check_evaluation(PADDED)

check(POOLED, 4, 0.9, 0.1, decay=0.05)
def check_convolution(size, padding, image, channels, out):
    draw = torch.Generator().manual_seed(size)
    images = torch.randn(3, 2, *image, channels, generator=draw).requires_grad_()
    weight = torch.randn(3, size * size * channels, out, generator=draw).requires_grad_()
    windows = Windows2d((size, size), (1, 1), (padding, padding), (1, 1))
    ends = []
    for rule in (_Product, _KernelProduct):
        y = rule.apply(images, weight, windows)
        ends.append((y, *torch.autograd.grad(y.square().sum(), (images, weight))))
    for got, expected in zip(*ends):
        torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-5)

check_convolution(3, 1, (6, 7), 4, 5)
check_convolution(2, 0, (5, 4), 8, 17)
check(DROPPED, 4, 0.9, 0.0)
check_lookahead(DROPPED)
check(AUGMENTED, 4, 0.9, 0.0)
check_lookahead(AUGMENTED)
check(POOLED, 18, 0.0, 0.0)  # more samples than a tile has
check_lookahead(POOLED)

def play(function, places, pool):  # a true capture needs a GPU
    return cuda_graphs.Graph(SimpleNamespace(replay=lambda: function(places)), places, {})

torch.cuda.graph_pool_handle, torch.cuda.synchronize, cuda_graphs.capture = lambda: "a pool", lambda: None, play
gpu_training.GRAPH_STEPS = 2, 2  # steps, of three
graphs = StepGraphs()
for seed in range(2):  # the second time from other starts
    check(POOLED, 4, 0.9, 0.1, seed=seed, graphs=graphs, decay=0.2)
    check(PADDED, 4, 0.5, 0.0, shifts=True, seed=seed, graphs=graphs)
    check_lookahead(POOLED, seed, graphs)
assert len(graphs.states) == len(graphs.graphs.graphs) == 3

def training_of(seed, size, steps, x, lr, momentum=0.9, run=0):
    draw = torch.Generator().manual_seed(seed)
    pick = torch.randint(0, len(x), (3, steps, size), generator=draw)
    mask = torch.ones(3, steps, size, dtype=torch.bool)
    mask[1, 1:] = False
    schedule = Schedule(x, Y[: len(x)], pick, mask, torch.arange(3 * steps).view(3, steps) * 7919 + seed)
    start, shift = starts(DROPPED, seed), {}
    if run == 1:  # the others have no term, or a pull
        shift = {name: torch.randn(w.shape, generator=draw) / 10 for name, w in start.items()}
    return parse(DROPPED), schedule, torch.tensor(lr), start, shift, SGD(momentum, 0.1 * (run == 2))

# rounds of three runs: other samples, lengths, learning rates and terms; the third's second round has another momentum
def round_of(run, t):
    x, momentum = X[: 40 - 5 * run].clone(), 0.5 if run + t == 3 else 0.9
    return training_of(10 * run + t, 4, 2 + run, x, 0.05 / (1 + run), momentum, run)

ROUNDS = [[round_of(run, t) for t in range(2)] for run in range(3)]
joint, ends = JointTraining(), {}

def go(run):
    with joint.take_part():
        ends[run] = [gpu_training.train_lanes(*given, joint) for given in ROUNDS[run]]

with joint.turn:  # nobody begins before all are there
    threads = [threading.Thread(target=go, args=(run,)) for run in range(3)]
    [thread.start() for thread in threads]
    while len(joint.runs) < 3:
        time.sleep(0.001)
[thread.join(60) for thread in threads]
assert joint.joined == 5, joint.joined  # three in the first round, two in the second
for run, rounds in enumerate(ROUNDS):
    for given, together in zip(rounds, ends[run]):
        alone = gpu_training.train_lanes(*given, StepGraphs())
        assert all(torch.equal(alone[name], together[name]) for name in alone), run

gpu_training.AT_ONCE = 1  # images of two steps at a time
check(PADDED, 4, 0.5, 0.0, shifts=True)
check(PADDED, 4, 0.5, 0.0, shifts=True, decay=0.001)
"""


@pytest.mark.slow  # minutes, where Triton is installed
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed: pip install triton")
def test_interpreted_kernels_train_as_the_cpu_does():
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
