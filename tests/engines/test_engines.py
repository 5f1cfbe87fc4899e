import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

from kinfed.client import Client, Reply, client_task
from kinfed.client_tasks import evaluate
from kinfed.data import PARTITIONS, Role, build_population, load
from kinfed.engines import Sequential, Vectorised
from kinfed.engines.blocks import Cut
from kinfed.engines.sequential import make_client
from kinfed.errors import ConfigError, ModelError
from kinfed.experiment import Experiment
from kinfed.federation import Offer
from kinfed.methods import FedAvg, Local, PerFedAvg
from kinfed.models import MODELS, TAKES, Model, make_model
from kinfed.params import Params
from kinfed.training import LocalTraining
from tests.models.test_module_checks import Counting
from tests.problems import SIZES, assert_close, assert_same_bits, fit, small_net, tiny_population
from tests.zoo import ZOO

LOCAL = LocalTraining(epochs=2, batch_size=5, lr=0.05, momentum=0.9, decay=0.9, mu=0.1)


def trained(method, engine, population=None, rounds=2, **settings):
    state, fed = fit(method, engine, population, rounds, fraction=0.7, **settings)
    return state.params if isinstance(method, FedAvg | PerFedAvg) else fed.memory, fed


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("method", [FedAvg, Local])
def test_run_blocks_equals_one_by_one(method, optimiser):
    local = LocalTraining(2, 5, 0.01, mu=0.1, optimiser=optimiser)
    method = method(small_net(), local)
    (slow, reference), (fast, fed) = (trained(method, engine) for engine in (Sequential, Vectorised))
    assert_close(slow, fast)
    assert reference.ledger.rounds == fed.ledger.rounds


LARGER = {"resnet9", "resnet18"}  # on demand: the layers of resnet20, and more of them


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.on_demand] if name in LARGER else [])
        for name in MODELS
        if not TAKES.get(name)
    ],
)
def test_every_model_agrees_between_engines(name):
    shape = (1, 32, 32) if name == "resnet9" else (1, 28, 28)
    population = tiny_population((4, 9), shape=shape)
    method = FedAvg(make_model(name, shape, 3), LocalTraining(1, 5, 0.002))
    slow, fast = (trained(method, engine, population, rounds=1)[0] for engine in (Sequential, Vectorised))
    assert_close(slow, fast)


SMALL = {
    "iid": {"clients": 6},
    "shards": {"clients": 6},
    "disjoint_classes": {"clients": 10},
    "shared_class": {"clients": 10},
    "structured": {"clients": 10, "clusters": 5, "labels_per_cluster": 2},
    "label_swap": {"clients": 8},
    "label_skew": {"clients": 10},
    "dirichlet": {"clients": 6},
    "favoured_labels": {"clients": 6},
    "label_sets": {"clients": 6},
    "pathological": {"clients": 6},
}


@pytest.mark.parametrize("name", SMALL)
def test_every_partition_agrees_between_engines(name):
    population = build_population(load("digits"), PARTITIONS[name](**SMALL[name]), seed=1)
    method = FedAvg(small_net(10), LocalTraining(1, 10, 0.05))
    slow, fast = (trained(method, engine, population) for engine in (Sequential, Vectorised))
    assert_close(slow[0], fast[0])
    assert slow[1].ledger.rounds == fast[1].ledger.rounds


def test_the_writer_partition_agrees_between_engines():
    from dataclasses import replace

    digits = load("digits")
    writers = {
        "writer_train": torch.arange(len(digits.y_train)).numpy() % 7,
        "writer_test": torch.arange(len(digits.y_test)).numpy() % 7,
    }
    population = build_population(replace(digits, **writers), PARTITIONS["writers"](), seed=1)
    method = FedAvg(small_net(10), LocalTraining(1, 10, 0.05))
    slow, fast = (trained(method, engine, population)[0] for engine in (Sequential, Vectorised))
    assert_close(slow, fast)


@pytest.mark.parametrize("name", ["mlp_200", "lenet5"])
@pytest.mark.parametrize("method", [FedAvg, Local])
def test_the_same_seed_gives_the_same_bits_whatever_the_block_size(method, name):
    population = tiny_population(shape=(1, 28, 28)) if name == "lenet5" else tiny_population()
    shape = (1, 28, 28) if name == "lenet5" else (1, 8, 8)
    method = method(make_model(name, shape, 3), LOCAL)
    whole, _ = trained(method, Vectorised, population, rounds=1)
    for block in (1, 2, 3, 4):
        assert_same_bits(trained(method, Vectorised, population, rounds=1, block=block)[0], whole)


def test_colour_convolutions_have_the_same_bits_in_blocks_of_one_two_and_more():
    population = tiny_population((9, 10, 11, 9, 10), shape=(3, 32, 32))
    method = FedAvg(make_model("flhc_cnn", (3, 32, 32), 3), LocalTraining(1, 10, 0.01))
    whole, _ = trained(method, Vectorised, population, rounds=1)
    for block in (1, 2):
        assert_same_bits(trained(method, Vectorised, population, rounds=1, block=block)[0], whole)


@pytest.mark.parametrize(
    ("method", "name"),
    [(FedAvg, "mlp_200"), (Local, "mlp_200"), (PerFedAvg, "mlp_200"), (FedAvg, "lenet5"), (Local, "lenet5")],
)
def test_a_batch_larger_than_any_client_is_all_its_rows(method, name):
    population = tiny_population(shape=(1, 28, 28))
    model = make_model(name, (1, 28, 28), 3)
    most, more, huge = (method(model, replace(LOCAL, batch_size=size)) for size in (max(SIZES), 1000, 10**23))
    whole, _ = trained(huge, Vectorised, population, rounds=1)
    assert_close(trained(huge, Sequential, population, rounds=1)[0], whole)
    for method, block in ((most, 0), (more, 0), (huge, 1), (huge, 4)):
        assert_same_bits(trained(method, Vectorised, population, rounds=1, block=block, workers=2)[0], whole)


def test_a_pair_of_batches_wider_than_any_client_is_cut_where_its_first_ends():
    method = PerFedAvg(small_net(), LocalTraining(1, 20), alpha=0.1, beta=0.5)
    slow, fast = (trained(method, engine)[0] for engine in (Sequential, Vectorised))
    assert_close(slow, fast)
    assert not torch.equal(fast["1.weight"], method.model.init()["1.weight"])


def test_another_seed_gives_other_bits():
    method = FedAvg(small_net(), LOCAL)
    a, b = (trained(method, Vectorised, seed=seed)[0] for seed in (0, 1))
    assert not torch.equal(a["1.weight"], b["1.weight"])


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize(
    ("name", "optimiser"), [*((name, "sgd") for name in ZOO), ("dropout", "adam"), ("lstm", "adam")]
)
def test_networks_of_every_kind_train_in_blocks_and_agree_with_the_reference(name, optimiser):
    few = tiny_population((7, 13, 4, 1))
    method = FedAvg(Model(ZOO[name], classes=3), LocalTraining(1, 6, 0.01, momentum=0.9, optimiser=optimiser))
    slow, fast, cut = (
        fit(method, engine, few, 1, **how)
        for engine, how in ((Sequential, {}), (Vectorised, {}), (Vectorised, {"block": 2}))
    )
    assert not fast[1].fallbacks
    assert_close(slow[0].params, fast[0].params)
    assert_same_bits(cut[0].params, fast[0].params)


def train_by_hand(model: Model, fed: Vectorised, client: int, local: LocalTraining, key: torch.Tensor) -> dict:
    """A plain loop of torch over the batches of one client."""
    module = model.build_module().train()
    module.load_state_dict(model.init(), strict=False)
    optimiser = torch.optim.SGD(module.parameters(), local.lr, local.momentum)
    for batch in make_client(fed, client, key, {}).batches(local.epochs, local.batch_size):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(batch.x / 255), batch.y).backward()
        optimiser.step()
    return module.state_dict()


def test_batch_norm_of_uneven_clients_is_that_of_a_plain_loop():
    model, local = Model(ZOO["batch norm of images"], classes=3), LocalTraining(2, 5, 0.05, momentum=0.9)
    population = tiny_population((7, 23, 12, 29, 9))  # last batches of 2, 3, 2, 4 and 4 samples
    method = FedAvg(model, local)
    fed, keys = Vectorised(method, population), []
    run = fed._run
    fed._run = lambda name, cohort, key, offer: keys.append(key) or run(name, cohort, key, offer)
    state = method.round(method.init(fed), 0, fed)
    ends = [train_by_hand(model, fed, i, local, keys[0][i]) for i in range(5)]
    share = torch.tensor([7, 23, 12, 29, 9]) / 80
    wanted = {name: sum(s * end[name] for s, end in zip(share, ends, strict=True)) for name in state.params}
    assert_close(state.params, wanted)


@pytest.mark.parametrize("name", ["dropout", "batch norm of images"])
def test_a_run_resumed_with_dropout_or_batch_norm_has_the_same_bits(name, tmp_path):
    method, few = FedAvg(Model(ZOO[name], classes=3), LocalTraining(1, 6, 0.05)), tiny_population((7, 13, 9))

    def run(rounds: int, folder: str, resume: bool = False) -> Params:
        experiment = Experiment.over(Vectorised(method, few), rounds=rounds, checkpoint=tmp_path / folder)
        experiment.run(resume=resume)
        return experiment.state.params

    run(1, "cut")
    assert_same_bits(run(3, "cut", resume=True), run(3, "whole"))


class Centred(nn.Module):
    """Batch norm by hand: rows less their mean in training, less the mean so far in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x - (x.mean(0) if self.training else self.mean)


def centred() -> Model:
    return Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), Centred(), nn.Linear(8, 3)), classes=3)


def test_what_cannot_run_run_blocks_runs_one_by_one_and_says_why_once():
    method, why = FedAvg(centred(), LocalTraining(1, 6, 0.05)), "mixes the samples of a batch"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fast, _ = trained(method, Vectorised)
    assert len([w for w in said if why in str(w.message)]) == 1
    assert "\n" not in str(said[0].message)
    slow, _ = trained(method, Sequential)
    assert_same_bits(fast, slow)


def test_a_network_that_mixes_rows_in_evaluation_too_is_refused():
    class Mixing(nn.Linear):
        def forward(self, x):
            return super().forward(x.flatten(1) - x.flatten(1).mean(0))

    with pytest.raises(ModelError, match="depends on the other samples of its batch"):
        trained(FedAvg(Model(lambda: Mixing(64, 3), classes=3), LOCAL), Vectorised)


def test_buffers_that_move_do_so_in_every_engine():
    method = Local(Model(Counting, classes=3), LOCAL)
    with pytest.warns(UserWarning, match="buffers change in training"):
        fast, _ = trained(method, Vectorised)
    assert_same_bits(fast, trained(method, Sequential)[0])


class SomePixels(nn.Module):
    """Looks at pixels that it draws when it is built."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("some", torch.randperm(64)[:40])
        self.layer = nn.Linear(40, 3)

    def forward(self, x):
        return self.layer(x.flatten(1)[:, self.some])


def test_a_network_is_scored_with_what_it_drew_for_training():
    ends = []
    for engine in (Sequential, Vectorised):
        method = FedAvg(Model(SomePixels, classes=3), LocalTraining(2, 6, 0.2))
        experiment = Experiment.over(engine(method, tiny_population(clusters=1)), rounds=8)
        assert experiment.run()["accuracy"] > 0.95
        ends.append(experiment.state.params)
    assert_close(*ends)


def hooked() -> nn.Module:
    inner = nn.Sequential(nn.Linear(64, 8), nn.ReLU())
    inner.register_forward_hook(lambda module, args, output: 3 * output)
    return nn.Sequential(nn.Flatten(), inner, nn.Linear(8, 3))


def test_a_hook_on_a_part_made_of_parts_is_heard_in_training():
    method = FedAvg(Model(hooked, classes=3), LOCAL)
    slow, fast = (trained(method, engine)[0] for engine in (Sequential, Vectorised))
    assert_close(slow, fast)


def test_a_backward_hook_sees_one_client_at_a_time():
    def build() -> nn.Module:
        module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 3))
        module[3].register_full_backward_hook(lambda part, into, out: (3 * into[0],))
        return module

    method = FedAvg(Model(build, classes=3), LOCAL)
    with pytest.warns(UserWarning, match="backward hook"):
        fast, _ = trained(method, Vectorised)
    assert_same_bits(fast, trained(method, Sequential)[0])


class BranchesOnData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 3)

    def forward(self, x):
        flat = x.flatten(1)
        return self.layer(flat) if float(flat.sum()) > 0 else self.layer(-flat)


def test_a_users_module_that_vmap_refuses_falls_back_and_is_right():
    method = FedAvg(Model(BranchesOnData, classes=3), LocalTraining(1, 6, 0.05))
    with pytest.warns(
        UserWarning, match="reading numbers out of tensors.*: clients (train|run 'evaluate(_all)?') sequentially"
    ):
        fast, _ = trained(method, Vectorised)
    assert_same_bits(fast, trained(method, Sequential)[0])


def test_a_device_that_was_full_once_is_tried_again():
    method, population = FedAvg(small_net(), LOCAL), tiny_population()
    fed = Vectorised(method, population)
    run_block, full = fed._run_block, [True]

    def crowded(*args):
        if full[0]:
            raise torch.OutOfMemoryError("pretended")
        return run_block(*args)

    fed._run_block = crowded
    with pytest.warns(UserWarning, match="pretended: clients train sequentially"):
        state = method.round(method.init(fed), 0, fed)
    full[0] = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method.round(state, 1, fed)
    assert not fed.fallbacks and "blocks" in fed.layouts["train"]
    assert_close(state.params, fit(method, Sequential, population, 1)[0].params)


class SaysTwice(FedAvg):
    @client_task
    def say(self, client: Client, params: Params, again: Params) -> Reply:
        return Reply({"here": params, "there": params})


@pytest.mark.parametrize("engine", [Sequential, Vectorised])
def test_a_task_may_be_sent_and_may_send_one_tensor_twice(engine):
    method = SaysTwice(small_net())
    fed, params = engine(method, tiny_population()), method.model.init()
    replies = fed.run(method.say, fed.clients, Offer(shared={"params": params, "again": params}))
    for part in ("here", "there"):
        assert_same_bits({name: w[2] for name, w in replies.stack(part).items()}, params)


def test_a_marked_task_runs_one_by_one_without_a_warning():
    class Marked(Local):
        @client_task(sequential=True)  # not Local.train itself: the mark would stay there for all tests to come
        def train(self, client) -> Reply:
            return super().train(client)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast, _ = trained(Marked(small_net(), LOCAL), Vectorised)
    assert_close(fast, trained(Local(small_net(), LOCAL), Sequential)[0])


def test_an_error_of_the_task_itself_surfaces_once_without_a_warning():
    calls = []

    class Broken(Local):
        @client_task
        def train(self, client) -> Reply:
            calls.append(1)
            return torch.zeros(2) @ torch.zeros(3)

    with warnings.catch_warnings(), pytest.raises(RuntimeError, match="size"):
        warnings.simplefilter("error")
        trained(Broken(small_net()), Vectorised, tiny_population((8,) * 70))
    assert calls == [1]


def test_clients_of_one_block_have_similar_lengths():
    fed = Vectorised(Local(small_net()), tiny_population())
    cut = Cut(fed._table("train"), fed._table("test"), fed.device)
    blocks = [fed.sizes[block.order].tolist() for block in cut.blocks(fed.clients.tolist(), 4)]
    assert sorted(size for sizes in blocks for size in sizes) == sorted(fed.sizes.tolist())
    assert all(min(sizes) >= 0.7 * max(sizes) and len(sizes) <= 4 for sizes in blocks)


def test_where_steps_are_captured_uneven_clients_share_a_block():
    fed = Vectorised(Local(small_net()), tiny_population((7, 23, 300)))
    cut = Cut(fed._table("train"), fed._table("test"), fed.device, step_graphs=True)
    (block,) = cut.blocks(fed.clients.tolist(), 4)
    assert block.order == [2, 1, 0] and block.longest[0] == 300


def test_a_negative_block_is_refused():
    with pytest.raises(ConfigError, match="block"):
        Vectorised(Local(small_net()), tiny_population(), block=-1)


def products() -> tuple[bool, bool]:
    """Whether products on a GPU use TF32 now, those of matrices and those of convolutions."""
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_only_what_clients_do_has_the_precision(precision):
    seen = []

    class Noting(FedAvg):
        @client_task
        def train(self, client, params: Params) -> Reply:
            seen.append(products())
            return super().train(client, params)

    before, method = products(), Noting(small_net(), LOCAL)
    fed = Vectorised(method, tiny_population(), precision=precision)
    method.round(method.init(fed), 0, fed)
    assert set(seen) == {(precision != "float32",) * 2} and products() == before


@pytest.mark.parametrize("name", ["batch norm of images", "transformer", "transposed convolution"])
def test_bfloat16_is_near_full_precision_and_its_weights_are_float32(name):
    method = FedAvg(Model(ZOO[name], classes=3), LocalTraining(1, 6, 0.01))
    few = tiny_population((7, 13, 4))
    low, full = (fit(method, Vectorised, few, 1, precision=how)[0].params for how in ("bf16", "float32"))
    assert {w.dtype for w in low.values()} == {torch.float32}
    assert_close(low, full, atol=1e-2)


def test_padding_never_shows_a_client_the_rows_of_another():
    population = tiny_population()
    sick, y = population.x.float() / 255, population.y.clone()
    sick[population.train[0]], y[population.train[0]] = torch.nan, -1  # the first rows of the pool
    unlabelled = tuple(Role(labelled=i > 0) for i in range(6))
    _, fed = fit(FedAvg(small_net(), LOCAL), Vectorised, replace(population, x=sick), rounds=1)
    assert {reply.client for reply in fed.rejected} == {0}
    _, fed = fit(FedAvg(small_net(), LOCAL), Vectorised, replace(population, y=y, roles=unlabelled), rounds=1)
    assert not fed.fallbacks


def test_clients_alike_in_all_that_a_task_looks_at_are_asked_once():
    population = tiny_population()
    population = replace(population, test=(population.test[0], population.test[0], *population.test[2:]))
    method = FedAvg(small_net(), LOCAL)
    state, fed = fit(method, Vectorised, population, rounds=2)
    asked = []
    run_blocks = fed._run_blocks

    def watch(name, ids, *rest):
        asked.append((name, ids))
        return run_blocks(name, ids, *rest)

    fed._run_blocks = watch
    replies = fed.run(evaluate, fed.clients, method.offer(state, fed.clients, fed))
    assert asked == [("evaluate", [0, 2, 3, 4, 5])]
    slow = Sequential(method, population)
    expected = slow.run(evaluate, slow.clients, method.offer(state, slow.clients, slow))
    assert replies["metric"].tolist() == expected["metric"].tolist()
    fed.run(method.train, fed.clients, method.offer(state, fed.clients, fed))
    assert asked[-1] == ("train", [0, 1, 2, 3, 4, 5])


class Spare(nn.Module):
    """A network with a weight that has no part in its output."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.spare = nn.Linear(64, 3), nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x.flatten(1))


@pytest.mark.parametrize("engine", [Vectorised, Sequential])
def test_a_weight_without_a_part_stays_as_it_was(engine):
    state, fed = fit(FedAvg(Model(Spare, classes=3), LocalTraining(lr=0.1)), engine, rounds=1)
    assert state.params["spare"].tolist() == [1, 1] and not fed.rejected
    assert not torch.equal(state.params["line.weight"], Model(Spare, classes=3).init()["line.weight"])
