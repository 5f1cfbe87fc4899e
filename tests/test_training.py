from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.nn.functional import cross_entropy

from kinfed import training
from kinfed.client import Batch, Client, Samples
from kinfed.errors import ConfigError
from kinfed.fastpath import NotSupported, train
from kinfed.methods import FedNova, Local
from kinfed.methods.ifca import IFCA
from kinfed.methods.scaffold import Scaffold
from kinfed.models import Gradient, Model
from kinfed.params import Params, select
from kinfed.training import LabelledGradient, LocalTraining, MetaGradient, ShiftedGradient, weigh_steps
from tests.problems import assert_close, fit, rows_of_memory, small_net, tiny_population
from tests.zoo import ZOO


def client(size: int = 2, padded: int = 2, round: int = 0) -> Client:
    x = torch.tensor([[2.0], [4.0], [9.0], [9.0], [9.0], [9.0]])
    index = torch.arange(padded)
    samples = Samples(x, torch.zeros(6, dtype=torch.long), index, torch.tensor(size), exact=size == padded)
    return Client(samples, samples, torch.tensor(1), torch.tensor(round), torch.tensor(0), {})


def pull_to_mean(params: Params, batch) -> Gradient:
    """The gradient of ½(w - mean x)²."""
    mean = (batch.x[:, 0] * batch.mask).sum() / batch.mask.sum().clamp(min=1)
    return Gradient({"w": (params["w"] - mean) * batch.live})


START = {"w": torch.tensor(0.0)}


def trained(local: LocalTraining, on: Client) -> float:
    return float(local(on, START, pull_to_mean)[0]["w"])


def test_one_full_batch_step_by_hand():
    # gradient 0 - 3 = -3, step +0.1 * 3
    assert trained(LocalTraining(1, 2, 0.1, momentum=0), client()) == pytest.approx(0.3)


def test_momentum_by_hand():
    # v1 = -3, w1 = 0.3; v2 = 0.5 * -3 + (0.3 - 3) = -4.2, w2 = 0.72
    assert trained(LocalTraining(2, 2, 0.1, momentum=0.5), client()) == pytest.approx(0.72)


def test_proximal_term_by_hand():
    # w1 = 0.3; g2 = (0.3 - 3) + 2 * (0.3 - 0) = -2.1, w2 = 0.51
    assert trained(LocalTraining(2, 2, 0.1, momentum=0, mu=2.0), client()) == pytest.approx(0.51)


def test_learning_rate_decays_by_round():
    assert trained(LocalTraining(1, 2, 0.1, momentum=0, decay=0.5), client(round=2)) == pytest.approx(0.3 / 4)


def test_adam_takes_a_step_of_the_learning_rate_at_first():
    assert trained(LocalTraining(1, 2, 0.01, optimiser="adam"), client()) == pytest.approx(0.01, rel=1e-5)


def test_adam_agrees_with_torch():
    w = torch.tensor(0.0, requires_grad=True)
    adam = torch.optim.Adam([w], lr=0.05)
    for _ in range(7):
        adam.zero_grad()
        (0.5 * (w - 3) ** 2).backward()
        adam.step()
    assert trained(LocalTraining(7, 2, 0.05, optimiser="adam"), client()) == pytest.approx(float(w.detach()), abs=1e-6)


def test_every_epoch_may_have_a_learning_rate_of_its_own():
    # by hand, 3 batches of one sample an epoch, gradient 1: w = -3 (0.5 + 0.2 + 0.1); padded steps move nothing
    ones = lambda params, batch: Gradient({"w": torch.ones(()) * batch.live})  # noqa: E731
    local, rates = LocalTraining(3, 1, 9.0, momentum=0.0), torch.tensor([0.5, 0.2, 0.1])
    for padded in (3, 5):
        end, steps = local(client(3, padded), START, ones, rates)
        assert float(end["w"]) == pytest.approx(-2.4) and int(steps) == 9


def test_adam_with_a_rate_for_each_epoch_is_torchs_with_its_scheduler():
    model, own = small_net(), tiny_population((20,))
    samples = Samples(own.x, own.y, own.train[0], torch.tensor(20), exact=True)
    on = Client(samples, samples, torch.tensor(1), torch.tensor(0), torch.tensor(0), {})
    module = model.module_with(model.init())
    adam = torch.optim.Adam(module.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(adam, step_size=2, gamma=0.5)
    for step, batch in enumerate(on.batches(5, 8), 1):
        adam.zero_grad()
        cross_entropy(module(model.inputs(batch.x)), batch.y).backward()
        adam.step()
        if step % 3 == 0:  # 20 samples are three batches
            scheduler.step()
    rates = torch.tensor([0.01, 0.01, 0.005, 0.005, 0.0025])
    end, _ = LocalTraining(5, 8, 7.0, optimiser="adam")(on, model.init(), model.gradient, rates)
    assert_close(end, {name: w.detach() for name, w in module.named_parameters()}, atol=1e-6)


REGULARISED = {
    "weight decay": ({"weight_decay": 0.3}, lambda w: torch.optim.SGD(w, 0.05, 0.5, weight_decay=0.3), 0.0),
    "adam with weight decay": (
        {"optimiser": "adam", "weight_decay": 0.3},
        lambda w: torch.optim.Adam(w, 0.05, weight_decay=0.3),
        0.0,
    ),
    "adamw": (
        {"optimiser": "adamw", "weight_decay": 0.3},
        lambda w: torch.optim.AdamW(w, 0.05, weight_decay=0.3),
        0.0,
    ),
    "clipping": ({"clip_norm": 0.2}, lambda w: torch.optim.SGD(w, 0.05, 0.5), 0.2),
}


@pytest.mark.parametrize(("ours", "theirs", "clip"), REGULARISED.values(), ids=REGULARISED)
def test_optimisers_are_torchs(ours, theirs, clip):
    w = torch.tensor(0.0, requires_grad=True)
    optimiser = theirs([w])
    for _ in range(7):
        optimiser.zero_grad()
        (0.5 * (w - 3) ** 2).backward()
        torch.nn.utils.clip_grad_norm_([w], clip or 1e9)
        optimiser.step()
    assert trained(LocalTraining(7, 2, 0.05, **ours), client()) == pytest.approx(float(w.detach()), abs=1e-5)


@pytest.mark.parametrize(("ours", "theirs", "clip"), REGULARISED.values(), ids=REGULARISED)
def test_optimisers_of_blocks_are_torchs(ours, theirs, clip):
    model, population = Model(ZOO["layer norm"], classes=3), tiny_population((6, 12, 9))
    _, fed = fit(Local(model, LocalTraining(3, 20, 0.05, **ours)), population=population, rounds=1)
    for i, own in enumerate(population.train):
        module = model.build_module()
        module.load_state_dict(model.init())
        optimiser = theirs(module.parameters())
        for _ in range(3):  # one batch of all samples, in any order
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(module(population.x[own] / 255), population.y[own]).backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip or 1e9)
            optimiser.step()
        own_model = {name.removeprefix("params/"): t for name, t in rows_of_memory(fed, i).items()}
        assert_close(own_model, {name: w.detach() for name, w in module.named_parameters()})


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_empty_batches_move_nothing_not_even_by_momentum(optimiser):
    local = LocalTraining(2, 1, 0.1, momentum=0.9, mu=0.5, optimiser=optimiser)
    assert trained(local, client(size=2, padded=6)) == pytest.approx(trained(local, client()), abs=1e-7)


def test_steps_are_counted():
    assert int(LocalTraining(3, 1)(client(), START, pull_to_mean)[1]) == 6


def test_a_huge_proximal_term_keeps_the_received_model():
    local = LocalTraining(50, 2, 1e-4, momentum=0, mu=9e3)
    assert abs(trained(local, client())) < 1e-3


def test_adaptation_has_epochs_of_its_own():
    assert LocalTraining(epochs=2, adapt_epochs=5).for_adaptation().epochs == 5
    assert LocalTraining(epochs=2).for_adaptation().epochs == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"lr": 0},
        {"momentum": 1.0},
        {"mu": -1},
        {"optimiser": "sdg"},
        {"lr": float("nan")},
        {"lr": float("inf")},
        {"decay": float("inf")},
        {"mu": float("nan")},
        {"weight_decay": -1},
        {"clip_norm": -1},
    ],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError):
        LocalTraining(**wrong)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"momentum": 0.0}, 3.0),  # τ
        ({"momentum": 0.5}, 4.25),  # 1 + 1.5 + 1.75
        ({"momentum": 0.0, "mu": 2.0}, 2.44),  # a ← 0.8 a + 1
        ({"momentum": 0.5, "mu": 2.0}, 3.49),  # v ← 0.5 v + 1 - 0.2 a, a ← a + v
        ({"momentum": 0.5, "mu": 1.5, "weight_decay": 0.5}, 3.49),
        ({"optimiser": "adam"}, 3.0),  # each step is as long as the learning rate
    ],
)
@pytest.mark.parametrize("padded", [2, 6])
def test_effective_steps_by_hand(settings, wanted, padded):
    assert float(LocalTraining(3, 2, 0.1, **settings).effective_steps(client(2, padded))) == pytest.approx(
        wanted, rel=1e-5
    )


@pytest.mark.parametrize("rho", [0.3, 0.9])
def test_effective_steps_are_fednovas_formula_and_goes_to_the_number_of_steps(rho):
    tau = 10
    formula = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
    assert float(LocalTraining(5, 1, momentum=rho).effective_steps(client())) == pytest.approx(formula, rel=1e-5)
    assert float(LocalTraining(5, 1, momentum=1e-9).effective_steps(client())) == pytest.approx(tau)


@pytest.mark.parametrize("tau", [1, 77, 1210])
def test_the_weight_of_many_steps_is_that_of_one_after_the_other(tau):
    speed, way = 0.0, 0.0
    for _ in range(tau):
        speed = 0.9 * speed + 1 - 0.003 * way
        way += speed
    both = weigh_steps(torch.tensor([tau, 0]), 0.9, torch.tensor(0.003), 11)
    assert both.tolist() == pytest.approx([way, 0.0], rel=1e-5)


@pytest.mark.parametrize("method", [Scaffold, FedNova])
def test_momentum_and_weight_decay_take_no_steps_beside_those_of_the_fast_path(monkeypatch, method):
    monkeypatch.delattr(Client, "batches")
    fit(method(small_net(), LocalTraining(1, 5, 0.05, momentum=0.5, mu=0.1, weight_decay=0.1)), rounds=1)


def test_effective_steps_do_not_hang_on_the_decay():
    late = LocalTraining(3, 2, 0.1, momentum=0.5, decay=0.5).effective_steps(client(round=4))
    assert float(late) == pytest.approx(4.25, rel=1e-5)


def batch_of(*x: float, labels: tuple[int, ...] = (), exact: bool = False) -> Batch:
    mask = torch.ones(len(x), dtype=torch.bool)
    y = torch.tensor(labels or (0,) * len(x))
    return Batch(torch.tensor(x)[:, None], y, mask, mask.any(), exact)


def test_a_shifted_gradient_by_hand():
    gradient = ShiftedGradient(pull_to_mean, {"w": torch.tensor(0.5)})(START, batch_of(2.0, 4.0))
    assert float(gradient.weights["w"]) == -2.5


def test_the_meta_gradient_by_hand():
    # ∇f(0; 2) = -2, the probe is 0.1 * 2 = 0.2, ∇f(0.2; 4) = -3.8
    gradient = MetaGradient(pull_to_mean, 0.1, 1)(START, batch_of(2.0, 4.0))
    assert float(gradient.weights["w"]) == pytest.approx(-3.8)


def test_a_pair_without_a_second_batch_has_no_gradient():
    assert float(MetaGradient(pull_to_mean, 0.1, 2)(START, batch_of(2.0, 4.0)).weights["w"]) == 0
    padded = batch_of(2.0, 9.0)._replace(mask=torch.tensor([True, False]))
    assert float(MetaGradient(pull_to_mean, 0.1, 1)(START, padded).weights["w"]) == 0


def test_samples_without_a_label_teach_nothing():
    def with_buffer(params: Params, batch) -> Gradient:
        return Gradient(pull_to_mean({"w": params["w"]}, batch).weights, {"mean": torch.tensor(7.0)})

    start = START | {"mean": torch.tensor(1.0)}
    some = LabelledGradient(with_buffer)(start, batch_of(2.0, 4.0, labels=(-1, 0)))
    assert (float(some.weights["w"]), float(some.buffers["mean"])) == (-4, 7)
    none = LabelledGradient(with_buffer)(start, batch_of(0.0, 0.0, labels=(-1, -1)))
    assert (float(none.weights["w"]), float(none.buffers["mean"])) == (0, 1)


def test_what_a_rule_says_nothing_about_stays_as_it_is():
    start = START | {"mean": torch.tensor(5.0)}
    assert float(LocalTraining(2, 2)(client(), start, pull_to_mean)[0]["mean"]) == 5


@pytest.mark.parametrize(
    ("method", "more", "fast"),
    [
        (Scaffold, {}, True), (Scaffold, {"mu": 0.1}, True), (Scaffold, {"weight_decay": 0.1}, True),
        (IFCA, {"mu": 0.1, "weight_decay": 0.1}, True), (IFCA, {"clip_norm": 1.0}, False),
    ],
)  # fmt: skip
def test_shifts_proximal_terms_and_weight_decay_go_the_fast_path(monkeypatch, method, more, fast):
    calls = []
    monkeypatch.setattr(training, "train", lambda *given: calls.append(1) or train(*given))
    fit(method(small_net(), LocalTraining(1, 5, 0.05, momentum=0.5, **more)), rounds=1)
    assert bool(calls) == fast


def passes(client, **more):
    return [(b.x[b.mask].flatten(1).sum(1).tolist()) for b in client.batches(2, 4, **more) if bool(b.live)]


@pytest.mark.parametrize("more", [{}, {"steps": 7}, {"drop_last": True}, {"steps": 3, "drop_last": True}])
def test_padded_and_exact_samples_have_the_same_batches(more):
    x = torch.arange(1.0, 13.0)[:, None]
    key, size = torch.tensor(5), torch.tensor(10)
    exact = Samples(x, torch.zeros(12).long(), torch.arange(10), size, exact=True)
    padded = Samples(x, torch.zeros(12).long(), torch.arange(12), size, longest=12)
    made = [Client(own, own, key, torch.tensor(0), torch.tensor(0), {}) for own in (exact, padded)]
    a, b = (passes(client, **more) for client in made)
    assert a == b and len(a) == int(made[1].steps(2, 4, **more))
    assert len(a) == more.get("steps", 4 if more else 6)
    if more.get("drop_last"):
        assert all(len(batch) == 4 for batch in a)


def test_a_client_smaller_than_a_batch_keeps_its_only_one():
    own = Samples(torch.ones(3, 1), torch.zeros(3).long(), torch.arange(3), torch.tensor(3), longest=9)
    client = Client(own, own, torch.tensor(1), torch.tensor(0), torch.tensor(0), {})
    assert int(client.steps(1, 4, drop_last=True)) == 1


def test_the_learning_rate_follows_its_schedule():
    def rates(**more):
        local, own = (
            LocalTraining(lr=1.0, **more),
            Samples(torch.ones(1, 1), torch.zeros(1).long(), *[torch.tensor(0)] * 2),
        )
        return [
            float(local.rate(Client(own, own, torch.tensor(0), torch.tensor(t), torch.tensor(0), {}))) for t in range(5)
        ]

    assert rates(decay=0.5) == [1, 0.5, 0.25, 0.125, 0.0625]
    assert rates(decay=0.1, schedule="step", schedule_rounds=2) == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    assert rates(schedule="cosine", schedule_rounds=4) == pytest.approx([1, 0.853553, 0.5, 0.146447, 0], abs=1e-5)
    assert rates(warm_up=4) == pytest.approx([0.25, 0.5, 0.75, 1, 1])
    with pytest.raises(ConfigError, match="schedule_rounds must be at least 1"):
        LocalTraining(schedule="cosine")


@pytest.mark.parametrize("network", [small_net, lambda: Model(conv_net, classes=3)])
def test_weighted_samples_train_the_same_in_blocks_one_by_one_and_by_hand(network):
    """A block in one vmap, one client after the other, exact samples, and a plain loop over weighted losses."""
    model, local = network(), LocalTraining(epochs=2, batch_size=4, lr=0.1, momentum=0.5)
    first, draw = model.init(), torch.Generator().manual_seed(0)
    x, y = torch.randint(0, 256, (12, 1, 8, 8), dtype=torch.uint8, generator=draw), torch.arange(12) % 3
    weights = torch.rand(12, generator=draw)
    zero, key, size = torch.tensor(0), torch.tensor(5), torch.tensor(10)
    padded = Samples(x, y, torch.arange(12), size, longest=12, weights=weights)
    exact = Samples(x, y, torch.arange(10), size, exact=True, weights=weights[:10])
    clients = [Client(own, own, key, zero, zero, {}) for own in (padded, exact)]
    wanted = LocalTraining._train(local, clients[1], first, lambda p, b: weighted_gradient(model, p, b))
    for client in clients:
        assert isinstance(local.plan(client, first, model.gradient), NotSupported)
        assert_close(local(client, first, model.gradient)[0], wanted)

    def train(weights):
        own = replace(padded, weights=weights)
        return local(Client(own, own, key, zero, zero, {}), first, model.gradient)[0]

    block = vmap(train)(torch.stack([weights, torch.ones(12), torch.zeros(12)]))
    assert_close(select(block, 0), wanted)
    assert_close(select(block, 2), first)
    unweighted = replace(padded, weights=None)
    plain = local(Client(unweighted, unweighted, key, zero, zero, {}), first, model.gradient)[0]
    assert_close(select(block, 1), plain)


def weighted_gradient(model: Model, params: Params, batch: Batch) -> Gradient:
    leaves = {name: w.clone().requires_grad_() for name, w in params.items()}
    losses = cross_entropy(model.logits(leaves, batch.x), batch.y, reduction="none")
    assert batch.weight is not None
    loss = (losses * batch.weight).sum() / len(losses)
    return Gradient(dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True)))


def conv_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))


def test_held_out_samples_and_parts_of_a_batch_keep_their_weights():
    own = Samples(torch.zeros(4, 1), torch.zeros(4), torch.arange(4), torch.tensor(4), weights=torch.arange(4.0))
    rest, held = own.hold_out(2)
    assert rest.weights.tolist() == [0, 0, 2, 2] and held.weights.tolist() == [1, 3]
    batch = next(own.in_order())
    assert batch.weight[:4].tolist() == [0, 1, 2, 3] and batch.part(slice(1, 3)).weight.tolist() == [1, 2]
