"""What only a GPU can show: `pytest -m gpu` on a machine that has one."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe

import pytest
import torch
from torch import nn

from kinfed.client import FAST_PATH, Client, Samples
from kinfed.client_tasks import evaluate
from kinfed.config import read
from kinfed.cuda_graphs import CudaGraphs
from kinfed.data import Population, is_stored
from kinfed.engines import Sequential, SeveralDevices, Vectorised, blocks, shared_outputs
from kinfed.fastpath import kernel_evaluation
from kinfed.federation import Offer
from kinfed.gpu_memory import CONTEXT, PROCESSES
from kinfed.methods import IFCA, METHODS, FedAvg, Local
from kinfed.methods.flis import predict
from kinfed.models import Model, make_autoencoder, make_model
from kinfed.models.batch_operations import draw_kept
from kinfed.models.convolutions import Windows2d, convolve_lanes
from kinfed.models.inputs import Inputs
from kinfed.params import stack, to_flat
from kinfed.progress import Silence
from kinfed.runs.jobs import Job, take_jobs_together
from kinfed.runs.parallel import AtOnce, run_jobs
from kinfed.signatures.pretraining import fit as fit_on_server
from kinfed.training import LocalTraining
from tests.methods.registry import make, population
from tests.problems import assert_close, assert_same_bits, fit, small_net, tiny_population

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LOCAL = LocalTraining(epochs=2, batch_size=5, lr=0.05, momentum=0.9, decay=0.9, mu=0.1)


class Eager(CudaGraphs):
    """Captures nothing."""

    def run(self, key, function, inputs):
        return function(inputs)


def on_cpu(tree):
    return {name: t.cpu() for name, t in tree.items()}


def on_gpu(tree):
    return {name: t.cuda() for name, t in tree.items()}


def trained(method, engine=Vectorised, population=None, rounds=4, graphs=None, **settings):
    population = population or tiny_population()
    fed = engine(method, population, fraction=1.0, **settings)
    if graphs:
        fed.graphs = fed.training_graphs.graphs = graphs
    state = method.init(fed)
    for t in range(rounds):
        fed.begin(t)
        state = method.round(state, t, fed)
    return on_cpu(state.params if isinstance(method, FedAvg) else fed.memory), fed


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("method", [FedAvg, Local])
def test_a_cuda_graph_changes_no_bit(method, optimiser):
    method = method(small_net(), LocalTraining(2, 5, 0.01, mu=0.1, decay=0.9, optimiser=optimiser))
    even = tiny_population((14,) * 5)
    replayed, fed = trained(method, population=even, device="cuda")
    own = fed.graphs if optimiser == "sgd" else fed.training_graphs.graphs
    assert own.graphs and not own.failed
    assert_same_bits(replayed, trained(method, population=even, device="cuda", graphs=Eager(48))[0])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("epochs", [7, 40])  # 49 and 280 steps: short and long graphs
def test_graphs_of_steps_of_uneven_clients_change_no_bit(monkeypatch, epochs, momentum):
    method = Local(small_net(), LocalTraining(epochs, 5, 0.01, momentum, mu=0.1, decay=0.9))
    uneven = tiny_population((7, 23, 12, 31, 9))
    stepped, fed = trained(method, population=uneven, device="cuda")
    (graph,) = fed.step_graphs.graphs.graphs.values()
    assert len(graph.inputs["lr"]) == (16 if epochs == 7 else 64) and not fed.step_graphs.graphs.failed
    assert not fed.graphs.graphs
    monkeypatch.setattr(Vectorised, "_captures_steps", lambda fed, reads: False)
    assert_same_bits(stepped, trained(method, population=uneven, device="cuda", graphs=Eager(48))[0])


def test_graphs_of_steps_serve_other_cohorts():
    method = make("per_fedavg", LocalTraining(4, 5, 0.05))
    (slow, _), (fast, fed) = (
        fit(method, engine, population(), 6, fraction=0.3, **how)
        for engine, how in ((Sequential, {}), (Vectorised, {"device": "cuda"}))
    )
    assert fed.step_graphs.graphs.graphs
    assert_close(slow.params, on_cpu(fast.params), atol=1e-5)


def test_pairs_with_one_momentum_are_captured_step_by_step():
    method = make("per_fedavg", LocalTraining(4, 5, 0.05), momentum=0.5)
    (slow, _), (fast, fed) = (
        fit(method, engine, population(), 4, fraction=0.5, **how)
        for engine, how in ((Sequential, {}), (Vectorised, {"device": "cuda"}))
    )
    assert fed.training_graphs.graphs.graphs and not fed.training_graphs.graphs.failed
    assert_close(slow.params, on_cpu(fast.params), atol=1e-5)


@pytest.mark.parametrize("name", ["mlp_200", "lenet5", "flhc_cnn", "repa_cnn", "resnet9"])
def test_every_network_agrees_with_the_reference(name):
    shape = (3, 32, 32) if name in ("resnet9", "lenet5") else (1, 28, 28)
    population = tiny_population((4, 9, 23), shape=shape)
    method = FedAvg(make_model(name, shape, 3), LocalTraining(1, 5, 0.002))
    fast = trained(method, population=population, rounds=3, device="cuda")[0]
    atol = 1e-3 if name == "resnet9" else 1e-5  # its norms divide by small numbers
    assert_close(fast, trained(method, Sequential, population, rounds=3)[0], atol)


@pytest.mark.parametrize("name", ["lenet5", "resnet9"])
def test_what_clients_compute_with_one_model_agrees_with_the_reference(name):
    population, ends = tiny_population((4, 9, 23), shape=(3, 32, 32)), []
    method = FedAvg(make_model(name, (3, 32, 32), 3), LOCAL)
    for engine, how in ((Sequential, {}), (Vectorised, {"device": "cuda"})):
        fed = engine(method, population, **how)
        offer = method.offer(method.init(fed), fed.clients, fed)
        ends += [{"loss": fed.run(evaluate, fed.clients, offer)["loss"].cpu()} for _ in range(3)]  # captured, replayed
    for got in ends[1:]:
        assert_close(ends[0], got, atol=1e-4)


@pytest.mark.parametrize("name", ["mlp_200", "lenet5", "flhc_cnn", "resnet9"])
def test_what_clients_compute_with_models_of_their_own_agrees_with_the_reference(monkeypatch, name):
    shape, called = (3, 32, 32) if name in ("resnet9", "lenet5") else (1, 28, 28), []
    compute = kernel_evaluation.compute_outputs
    monkeypatch.setattr(kernel_evaluation, "compute_outputs", lambda *given: called.append(name) or compute(*given))
    population, ends = tiny_population((4, 9, 23, 7), shape=shape), []
    method = FedAvg(make_model(name, shape, 3), LOCAL)
    models = stack([method.model.init(seed) for seed in range(4)])
    for engine, how, to in ((Sequential, {}, on_cpu), (Vectorised, {"device": "cuda"}, on_gpu)):
        fed = engine(method, population, **how)
        for _ in range(3):  # captured, replayed
            replies = fed.run(evaluate, fed.clients, Offer(each={"params": to(models)}))
            ends.append({name: replies[name].cpu().float() for name in ("loss", "metric")})
    for got in ends[1:]:
        assert_close(ends[0], got, atol=1e-3 if name == "resnet9" else 1e-4)
    assert bool(called) == (name != "resnet9")


@pytest.mark.parametrize("pick", [None, (0, 0, 0, 1)])
def test_test_samples_that_clients_share_are_evaluated_once(monkeypatch, pick):
    population, ends, pairs = tiny_population((4, 9, 23, 7), shape=(1, 28, 28)), [], []
    everybodys = torch.cat(population.test)
    population = replace(population, test=(everybodys, everybodys.flip(0)) * 2)
    real = shared_outputs.evaluate_pairs
    monkeypatch.setattr(shared_outputs, "evaluate_pairs", lambda *given: pairs.append(given[2]) or real(*given))
    method = FedAvg(make_model("lenet5", (1, 28, 28), 3), LOCAL)
    models = stack([method.model.init(seed) for seed in range(2)])
    for engine, how, to in ((Sequential, {}, on_cpu), (Vectorised, {"device": "cuda"}, on_gpu)):
        fed = engine(method, population, **how)
        one, several = Offer({"params": to(method.model.init())}), Offer(each={"params": to(models)})
        offer = one if pick is None else several._replace(pick=torch.tensor(pick, device=fed.device))
        for _ in range(3):
            replies = fed.run(evaluate, fed.clients, offer)
            ends.append({name: replies[name].cpu().float() for name in ("loss", "metric")})
    assert len(pairs) == 3 and len(pairs[0]) == (1 if pick is None else 2)
    for got in ends[1:]:
        assert_close(ends[0], got, atol=1e-4)


def test_clients_that_select_a_model_evaluate_their_own_test_samples(monkeypatch):
    population = tiny_population((4, 9, 23, 7), shape=(1, 28, 28))
    population = replace(population, test=(torch.cat(population.test),) * 4)
    monkeypatch.setattr(shared_outputs, "evaluate_pairs", None)  # calling it would fail
    method = IFCA(make_model("lenet5", (1, 28, 28), 3), LOCAL, clusters=2)
    ends = []
    for engine, how in ((Sequential, {}), (Vectorised, {"device": "cuda"})):
        fed = engine(method, population, **how)
        replies = fed.run(evaluate, fed.clients, method.offer(method.init(fed), fed.clients, fed))
        ends.append({name: replies[name].cpu().float() for name in ("loss", "metric")})
    assert not fed.evaluates_once
    assert_close(*ends, atol=1e-4)


def test_predictions_of_many_models_are_those_of_each():
    model = make_model("lenet5", (3, 32, 32), 3)
    models = stack([model.init(seed) for seed in range(19)])
    x = torch.randint(0, 256, (1100, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    there = predict(model, on_gpu(models), x.cuda(), soft=True)
    torch.testing.assert_close(there.cpu(), predict(model, models, x, soft=True), atol=1e-5, rtol=0)


def test_two_parts_of_a_cohort_on_a_gpu_change_no_bit():
    method = Local(small_net(), LocalTraining(2, 5, 0.01, 0.9, decay=0.9, weight_decay=0.01))
    uneven = tiny_population((7, 23, 12, 31, 9, 14))
    one, _ = trained(method, population=uneven, device="cuda")
    two, fed = trained(method, SeveralDevices, uneven, devices=("cuda:0", "cuda:0"))
    assert fed.others[0].reads
    assert_same_bits(one, two)


def test_augmented_inputs_train_by_our_kernels():
    inputs = Inputs(augment=("crop", "flip"), crop=2, padding="reflect")
    plain = make_model("lenet5", (3, 32, 32), 3)
    method = FedAvg(replace(plain, build=partial(inputs.wrap, plain.build)), LocalTraining(1, 5, 0.002))
    population = tiny_population((4, 9, 23), shape=(3, 32, 32))
    fast, fed = trained(method, population=population, rounds=3, device="cuda")
    assert any(FAST_PATH in reads for reads in fed.reads.values())
    assert_close(fast, trained(method, Sequential, population, rounds=3)[0])


class OwnForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 3)

    def forward(self, x):
        return self.layer(x.flatten(1)).tanh()


def test_a_users_module_is_captured_too():
    method = FedAvg(Model(OwnForward, classes=3, mean=(0.5,), std=(0.25,)), LOCAL)
    fast, fed = trained(method, device="cuda")
    assert fed.training_graphs.graphs.graphs and not fed.training_graphs.graphs.failed
    assert_close(fast, trained(method, Sequential)[0])


@pytest.mark.parametrize(("size", "padding", "channels", "out"), [(3, 1, 16, 16), (3, 1, 64, 130), (5, 0, 8, 33)])
def test_kernels_of_convolutions_agree_with_double_precision(size, padding, channels, out):
    draw = torch.Generator().manual_seed(0)
    images, weight = torch.randn(3, 20, channels, 16, 16, generator=draw), torch.randn(3, out, channels, size, size)
    windows, ends = Windows2d((size, size), (1, 1), (padding, padding), (1, 1)), []
    for device, dtype in (("cpu", torch.double), ("cuda", torch.float32)):
        x, w = (t.to(device, dtype).requires_grad_() for t in (images, weight / (channels * size**2) ** 0.5))
        y = convolve_lanes(x, w, windows)
        ends.append([t.detach().cpu().double() for t in (y, *torch.autograd.grad(y.square().sum(), (x, w)))])
    for expected, got in zip(*ends, strict=True):
        assert (got - expected).abs().max() < 2e-6 * expected.abs().max()


def test_masks_of_dropout_are_the_same():
    keys = torch.tensor([3, -7, 2**62])
    for count, dropped in ((1, 0.5), (1003, 0.1), (4096, 0.9)):
        here, there = (draw_kept(t, count, dropped, torch.float32) for t in (keys, keys.cuda()))
        assert torch.equal(here, there.cpu())


def test_layouts_of_images_and_weights_agree_with_the_reference():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.ReLU(), nn.MaxPool2d(2),
                        nn.Conv2d(8, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU(), nn.Conv2d(12, 12, 3, 2),
                        nn.Flatten(), nn.Linear(108, 3))  # fmt: skip
    population = tiny_population((4, 9, 23, 17), shape=(3, 16, 16))
    for how in (LocalTraining(2, 5, 0.01, 0.5), LocalTraining(1, 5, 0.01, optimiser="adamw", weight_decay=0.01)):
        method = FedAvg(Model(net, classes=3), how)
        fast, fed = trained(method, population=population, rounds=3, device="cuda")
        assert fed.training_graphs.graphs.graphs and not fed.training_graphs.graphs.failed
        assert_close(fast, trained(method, Sequential, population, rounds=3)[0], 1e-4)


@pytest.mark.parametrize("block", [1, 2, 4])
def test_blocks_and_padding_change_no_bit_of_the_fast_path(block):
    method = Local(make_model("lenet5", (1, 28, 28), 3), LOCAL)
    population = tiny_population((7, 23, 12, 31, 9), shape=(1, 28, 28))
    whole = trained(method, population=population, device="cuda")[0]
    assert_same_bits(trained(method, population=population, device="cuda", block=block)[0], whole)


def test_tf32_is_near_full_precision():
    method = FedAvg(make_model("lenet5", (1, 28, 28), 3), LocalTraining(1, 5, 0.01))
    population = tiny_population(shape=(1, 28, 28))
    fast = trained(method, population=population, device="cuda", precision="tf32")[0]
    precise = trained(method, population=population, device="cuda")[0]
    assert_close(fast, precise, atol=1e-3)
    assert not torch.equal(fast["0.weight"], precise["0.weight"])


def test_too_many_lanes_for_the_memory_are_halved(monkeypatch):
    monkeypatch.setattr(blocks, "is_crowded", lambda device: False)  # whoever else is on this GPU
    method, population = FedAvg(small_net(), LOCAL), tiny_population((6,) * 80)
    fed = Vectorised(method, population, device="cuda")
    run_block = fed._run_block

    def narrow(name, cohort, keys, offer, block):
        if len(block.positions) > 40:
            raise torch.OutOfMemoryError("pretended")
        return run_block(name, cohort, keys, offer, block)

    fed._run_block = narrow
    state = method.round(method.init(fed), 0, fed)
    assert fed.block_sizes.found["train"] == 40
    assert_close(on_cpu(state.params), fit(method, Sequential, population, 1)[0].params)


FULL = """
import torch
from kinfed.cuda_graphs import CudaGraphs, reserve_for_captures
device, graphs = torch.device("cuda"), CudaGraphs(most=2)
reserve_for_captures(device)
double, x = lambda inputs: {"y": 2 * inputs["x"]}, torch.ones(4, device=device)
graphs.run("double", double, {"x": x})
torch.cuda.empty_cache()
torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / torch.cuda.mem_get_info()[1])
try:
    graphs.run("double", double, {"x": x})
except torch.OutOfMemoryError:
    print("out of memory")
"""


def test_a_capture_without_memory_is_out_of_memory_and_does_not_end_the_process():
    done = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "out of memory"), done.stderr


def many_test_samples(clients: int = 200, each: int = 256) -> Population:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (2000, 3, 32, 32), dtype=torch.uint8, generator=draw)
    rows = [torch.randperm(2000, generator=draw)[: each + 20] for _ in range(clients)]
    y = torch.randint(0, 10, (2000,), generator=draw)
    return Population(x, y, tuple(own[:20] for own in rows), tuple(own[20:] for own in rows), 10)


def test_a_process_of_several_keeps_to_its_share_of_the_memory(monkeypatch):
    method, population = FedAvg(make_model("lenet5", (3, 32, 32), 10), LOCAL), many_test_samples()
    monkeypatch.setenv(PROCESSES, "1")
    whole = Vectorised(method, population, device="cuda")
    state = method.init(whole)
    expected = whole.run(evaluate, whole.clients, method.offer(state, whole.clients, whole))["loss"]
    del whole
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    monkeypatch.setenv(PROCESSES, str(torch.cuda.mem_get_info()[1] // (2**30 + CONTEXT)))  # a GiB each
    fed = Vectorised(method, population, device="cuda", block=200)
    for _ in range(4):  # eagerly, captured, and replayed
        got = fed.run(evaluate, fed.clients, method.offer(state, fed.clients, fed))["loss"]
        torch.testing.assert_close(got, expected)
    assert fed.block_sizes.found["evaluate"] < 200 and fed.graphs.graphs
    assert torch.cuda.max_memory_reserved() < 1.6 * 2**30
    fed.graphs.clear()
    planned = Vectorised(method, population, device="cuda")
    planned.run(evaluate, planned.clients, method.offer(state, planned.clients, planned))
    assert not planned.block_sizes.found, "by itself it asks for no more than its share"


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_agrees_with_the_reference(name):
    (slow, reference), (fast, fed) = (
        fit(make(name), engine, population(), 3, fraction=0.5, **how)
        for engine, how in ((Sequential, {}), (Vectorised, {"device": "cuda"}))
    )
    assert not fed.graphs.failed and not fed.fallbacks
    assert reference.ledger.rounds == fed.ledger.rounds
    clients = reference.clients
    theirs, ours = (
        method.offer(state, clients.to(engine.device), engine)
        for method, state, engine in ((make(name), slow, reference), (make(name), fast, fed))
    )
    for part in ("shared", "each"):
        assert_close(to_flat(getattr(theirs, part)), on_cpu(to_flat(getattr(ours, part))), atol=1e-4)


def test_a_captured_fit_agrees_with_the_eager_one():
    network = make_autoencoder("conv_ae", (1, 8, 8), 4)
    x = torch.randint(0, 256, (30, 1, 8, 8), dtype=torch.uint8)
    ends = []
    for device in ("cuda", "cpu"):
        size, zero = torch.tensor(30, device=device), torch.tensor(0, device=device)
        index = torch.arange(30, device=device)
        own = Samples(x.to(device), torch.zeros_like(index), index, size, exact=True)
        server = Client(own, own, torch.tensor(5, device=device), zero, zero, {})
        start = {name: weight.to(device) for name, weight in network.init().items()}
        ends.append(on_cpu(fit_on_server(network, start, server.batches(5, 8), 1e-3)))
    assert_close(*ends, 1e-4)


@pytest.mark.parametrize(("data", "network"), [("digits", "mlp_200"), ("cifar10", "lenet5")])
def test_runs_that_train_together_have_the_bits_they_have_alone(tmp_path, data, network):
    """Other seeds, methods and learning rates in one process, against each by itself."""
    if not is_stored(data):
        pytest.skip(f"needs {data} in the data folder")
    table = {
        "rounds": 4, "model": network, "engine": {"device": "cuda"}, "partition": {"name": "dirichlet", "clients": 12},
        "data": {"name": data, "train_samples": 60}, "fraction": 0.5, "evaluation": {"every": 1},
    }  # fmt: skip
    runs = [("fedavg", 0, 0.05), ("fedavg", 0, 0.02), ("fedavg", 1, 0.05), ("local", 0, 0.05), ("ifca", 1, 0.05)]
    runs += [("fedprox", 0, 0.05), ("scaffold", 0, 0.05)]
    configs = [read(table | {"method": m, "seed": s, "training": {"lr": lr, "momentum": 0.5}}) for m, s, lr in runs]
    ours, theirs = zip(*(Pipe() for _ in configs), strict=True)
    for number, (line, config) in enumerate(zip(ours, configs, strict=True)):
        line.send(Job(config, str(number), tmp_path / f"together-{number}"))
        line.send("no other job")
    assert take_jobs_together(theirs) > len(runs)
    jobs = [Job(config, str(number), tmp_path / f"alone-{number}") for number, config in enumerate(configs)]
    assert not run_jobs(jobs, AtOnce(1, 1), Silence(lambda text: None))
    for number in range(len(runs)):
        together, alone = ((tmp_path / f"{name}-{number}" / "rounds.csv").read_text() for name in ("together", "alone"))
        assert together == alone
