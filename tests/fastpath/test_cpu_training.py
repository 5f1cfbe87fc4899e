from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.func import vmap

from kinfed.client import Batch
from kinfed.fastpath import SGD, FastPlan, Schedule, cpu_training, layers, parse, train, train_lanes
from kinfed.fastpath.sequences import parse_layers
from kinfed.fastpath.stages import parse_stages
from kinfed.models import Model
from kinfed.models.inputs import Inputs
from kinfed.params import Stack
from kinfed.training import LabelledGradient
from tests.problems import assert_close, assert_same_bits

POOL = torch.randint(0, 256, (40, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
LABELS = torch.arange(40) % 3
STEPS = (4, 1, 3, 3, 2)  # real batches of each lane


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(64, 8), nn.ReLU()), nn.Linear(8, 3, bias=False))


def convolving() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, groups=2, bias=False), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip


def dense_dropout() -> nn.Module:
    hidden = nn.Dropout(0.2), nn.Linear(64, 8), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 8, bias=False)
    return nn.Sequential(nn.Flatten(), *hidden, nn.Dropout(0.3), nn.Linear(8, 3))


def convolving_dropout() -> nn.Module:
    first = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.4)
    return nn.Sequential(*first, nn.Conv2d(4, 5, 2), nn.Dropout(0.3), nn.Flatten(), nn.Linear(45, 3))


def dense_augmented() -> nn.Module:
    return Inputs(augment=("noise", "crop"), crop=1).wrap(dense_dropout)


def convolving_augmented() -> nn.Module:
    return Inputs(augment=("crop", "flip"), crop=2, padding="reflect").wrap(convolving_dropout)


def schedule(lanes: list[int]) -> Schedule:
    """Batches of 5 samples, four at most; a lane's last one has 3."""
    pick = torch.stack([(torch.arange(20) * (lane + 3)) % 40 for lane in lanes]).view(-1, 4, 5)
    mask = torch.zeros(len(lanes), 4, 5, dtype=torch.bool)
    for i, lane in enumerate(lanes):
        mask[i, : STEPS[lane]] = True
        mask[i, STEPS[lane] - 1, 3:] = False
    return Schedule(POOL, LABELS, pick, mask)


def fast_plan(model: Model, momentum: float = 0.0, mu: float = 0.0, decay: float = 0.0) -> FastPlan:
    return FastPlan(parse(model), SGD(momentum, mu, weight_decay=decay))


def fast_ends(
    build, lanes: list[int], momentum: float = 0.0, mu: float = 0.0, shifts: bool = False, decay: float = 0.0
) -> Stack:
    model = Model(build, classes=3)
    given, rate, start = schedule(lanes), torch.tensor(0.1), model.init()
    plan, other = fast_plan(model, momentum, mu, decay), model.init(7)

    def lane(number, pick, mask):
        shift = {name: w * (number + 1) for name, w in other.items() if shifts}
        return train(plan, Schedule(given.x, given.y, pick, mask), rate, start, shift)

    return vmap(lane)(torch.tensor(lanes), given.pick, given.mask)


def torch_end(build, lane: int, momentum: float, mu: float, shifts: bool, decay: float) -> dict[str, torch.Tensor]:
    """The same training by torch's own optimiser."""
    model = Model(build, classes=3)
    module = build()
    module.load_state_dict(model.init())
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=momentum, weight_decay=decay)
    given = schedule([lane])
    for pick, mask in zip(given.pick[0], given.mask[0], strict=True):
        if mask.any():
            optimiser.zero_grad()
            x, y = POOL[pick[mask]].float() / 255, LABELS[pick[mask]]
            far = sum(((w - model.init()[name]) ** 2).sum() for name, w in module.named_parameters())
            (nn.functional.cross_entropy(module(x), y) + mu / 2 * far).backward()
            for name, w in module.named_parameters():
                w.grad += model.init(7)[name] * (lane + 1) * shifts
            optimiser.step()
    return {name: w.detach() for name, w in module.state_dict().items()}


@pytest.mark.parametrize("build", [dense, convolving])
@pytest.mark.parametrize(
    ("momentum", "mu", "shifts", "decay"),
    [
        (0.0, 0.0, False, 0.0), (0.9, 0.0, False, 0.0), (0.0, 0.3, False, 0.0), (0.5, 0.3, False, 0.0),
        (0.0, 0.0, True, 0.0), (0.5, 0.0, True, 0.0), (0.0, 0.0, False, 0.2), (0.5, 0.3, False, 0.2),
        (0.5, 0.3, True, 0.2),
    ],
)  # fmt: skip
def test_the_fast_path_ends_where_torchs_optimiser_ends(build, momentum, mu, shifts, decay):
    ends = fast_ends(build, [0, 1, 2, 3, 4], momentum, mu, shifts, decay)
    for lane in range(5):
        want = torch_end(build, lane, momentum, mu, shifts, decay)
        assert_close({name: w[lane] for name, w in ends.items()}, want, atol=1e-6)


@pytest.mark.parametrize("build", [dense, convolving])
def test_a_lane_has_the_same_bits_beside_any_others(build):
    whole = fast_ends(build, [0, 1, 2, 3, 4], 0.9, 0.0, shifts=True)
    for lanes in ([0], [1, 0], [4, 3, 1], [2, 4, 0, 1]):
        some = fast_ends(build, lanes, 0.9, 0.0, shifts=True)
        assert_same_bits(some, {name: w[lanes] for name, w in whole.items()})


def wide() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 30, bias=False), nn.Dropout(0.0), nn.ReLU(), nn.Linear(30, 3))


@pytest.fixture
def deferred(monkeypatch):
    """Three steps of 5 samples at once, as it is for large matrices where there is no MKL; how often that came."""
    steps, taken = cpu_training._take_steps, []
    monkeypatch.setattr(layers, "HAS_MKL", False)
    monkeypatch.setattr(layers, "ROWS", 15)
    monkeypatch.setattr(layers, "LARGE", 1)
    monkeypatch.setattr(
        cpu_training, "_take_steps", lambda *given: (taken.append(tuple(given[2].shape[:2])), steps(*given))
    )
    parse.cache_clear()
    yield taken
    parse.cache_clear()


def wide_biased() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))


@pytest.mark.parametrize("build", [wide, wide_biased])
def test_a_matrix_that_moves_after_several_steps_ends_where_torchs_optimiser_ends(build, deferred):
    ends = fast_ends(build, [0, 1, 2, 3, 4])
    assert sorted(deferred) == [(1, 3), (1, 3), (2, 3), (3, 3)]  # steps and lanes, filled up to three
    for lane in range(5):
        want = torch_end(build, lane, 0.0, 0.0, shifts=False, decay=0.0)
        assert_close({name: w[lane] for name, w in ends.items()}, want, atol=1e-6)
    for lanes in ([0], [1, 0], [4, 3, 1], [2, 4, 0, 1]):
        assert_same_bits(fast_ends(build, lanes), {name: w[lanes] for name, w in ends.items()})


@pytest.mark.parametrize("settings", [{"momentum": 0.5}, {"mu": 0.1}, {"shifts": True}, {"decay": 0.1}])
def test_a_matrix_moves_in_every_step_where_more_than_its_gradient_moves_it(settings, deferred):
    fast_ends(wide, [0, 1, 2, 3], **settings)
    assert not deferred


@pytest.mark.parametrize("build", [dense, convolving, dense_dropout, dense_augmented])
def test_a_matrix_moves_in_every_step_where_it_is_small_or_not_the_lowest(build, deferred):
    fast_ends(build, [0, 1, 2, 3])
    assert not deferred


@pytest.mark.parametrize("build", [dense_dropout, convolving_dropout, dense_augmented, convolving_augmented])
def test_dropout_and_augmentation_draw_as_they_do_under_autograd(build):
    model, keys = Model(build, classes=3), torch.arange(12).view(3, 4) * 12345
    given = replace(schedule([0, 1, 2]), key=keys)
    start = {name: torch.stack([w] * 3) for name, w in model.init().items()}
    ends = train_lanes(fast_plan(model), given, torch.tensor(0.1), start, {})
    other = train_lanes(fast_plan(model), replace(given, key=keys + 1), torch.tensor(0.1), start, {})
    for lane in range(3):
        params = model.init()
        for at, real, key in zip(given.pick[lane], given.mask[lane], keys[lane], strict=True):
            if real.any():
                gradient = model.compute_gradient(
                    params, Batch(POOL[at], LABELS[at], real, real.any(), key=key)
                ).weights
                params = {name: w - 0.1 * gradient[name] for name, w in params.items()}
        assert_close({name: w[lane] for name, w in ends.items()}, params, atol=1e-6)
        assert any(not torch.allclose(other[name][lane], w, atol=1e-4) for name, w in params.items())


def test_copies_of_a_lane_cost_no_training(monkeypatch):
    trained, train_lane = [], cpu_training._train_lane
    monkeypatch.setattr(cpu_training, "_train_lane", lambda *given: trained.append(given[2]) or train_lane(*given))
    ends = fast_ends(convolving, [2, 4, 2])
    assert trained == [0, 1]
    assert_same_bits(ends, fast_ends(convolving, [2, 4, 2]))
    assert all(torch.equal(w[0], w[2]) and not torch.equal(w[0], w[1]) for w in ends.values())


@pytest.mark.parametrize("build", [dense, convolving])
def test_samples_without_a_label_count_for_nothing(build):
    model, given = Model(build, classes=3), schedule([0, 1, 2])
    unknown = LABELS.masked_fill(torch.arange(40) % 4 == 1, -1)
    start = {name: torch.stack([w] * 3) for name, w in model.init().items()}
    some = train_lanes(fast_plan(model, 0.9), replace(given, y=unknown), torch.tensor(0.1), start, {})
    for lane in range(3):
        params, velocity = model.init(), {name: 0 for name in start}
        for at, real in zip(given.pick[lane], given.mask[lane], strict=True):
            if real.any():
                batch = Batch(POOL[at], unknown[at], real, real.any())
                gradient = LabelledGradient(model.gradient)(params, batch).weights
                velocity = {name: 0.9 * v + gradient[name] for name, v in velocity.items()}
                params = {name: w - 0.1 * velocity[name] for name, w in params.items()}
        assert_close({name: w[lane] for name, w in some.items()}, params, atol=1e-6)
    none = train_lanes(fast_plan(model), replace(given, y=-torch.ones_like(LABELS)), torch.tensor(0.1), start, {})
    assert_same_bits(none, start)


def test_a_client_outside_of_a_block_has_the_same_bits_too():
    model, given = Model(dense, classes=3), schedule([2])
    alone = train(
        fast_plan(model, 0.9),
        Schedule(POOL, LABELS, given.pick[0], given.mask[0]),
        torch.tensor(0.1),
        model.init(),
    )
    assert_same_bits(alone, {name: w[0] for name, w in fast_ends(dense, [2, 1, 0], 0.9).items()})


class Twice(nn.Sequential):
    pass


def hooked() -> nn.Module:
    layer = nn.Linear(64, 3)
    layer.register_forward_hook(lambda module, args, output: 2 * output)
    return nn.Sequential(nn.Flatten(), layer)


@pytest.mark.parametrize("where", ["", "1", "1.0"], ids=["root", "container", "leaf"])
@pytest.mark.parametrize("kind", ["forward_pre_hook", "forward_hook", "full_backward_pre_hook", "full_backward_hook"])
def test_a_hook_anywhere_is_not_supported(kind, where):
    module = dense()
    assert parse_layers(module) and parse_stages(module)
    getattr(module.get_submodule(where), f"register_{kind}")(lambda *given: None)
    assert parse_layers(module) is None and parse_stages(module) == ()


def test_a_forward_of_its_own_is_not_supported():
    module = dense()
    module[1][0].forward = lambda x: 2 * nn.Linear.forward(module[1][0], x)
    assert parse_layers(module) is None and parse_stages(module) == ()


def shared() -> nn.Module:
    layer = nn.Linear(64, 64)
    return nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer)


def tied() -> nn.Module:
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, second)


@pytest.mark.parametrize(
    "module",
    [
        hooked(),
        shared(),
        tied(),
        Twice(nn.Flatten(), nn.Linear(64, 3)),
        nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 3)),
        nn.Sequential(nn.Flatten(), nn.AlphaDropout(), nn.Linear(64, 3)),
        nn.Sequential(nn.Flatten(0), nn.Linear(64, 3)),
        nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten(), nn.Linear(128, 3)),
        nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(128, 3)),
    ],
    ids=["hook", "shared", "tied", "subclass", "batch norm", "alpha dropout", "flattens samples", "same", "reflect"],
)
def test_what_is_not_a_sequence_of_plain_layers_is_not_supported(module):
    assert parse_layers(module) is None


def test_a_model_with_a_loss_of_its_own_is_not_supported():
    class Doubled(Model):
        def loss_of(self, output, batch):
            return 2 * super().loss_of(output, batch)

    class Penalised(Model):
        def mean_loss(self, output, batch):
            return super().mean_loss(output, batch) + batch.mean(output.square().sum(1))

    assert parse(Model(dense, classes=3)).layers is not None
    assert parse(Doubled(dense, classes=3)).layers is None
    assert parse(Penalised(dense, classes=3)).layers is None


@pytest.mark.parametrize("has_mkl", [True, False])
@pytest.mark.parametrize("build", [dense, dense_dropout, convolving])
def test_weights_are_laid_out_for_the_products_of_the_cpu(monkeypatch, build, has_mkl):
    want = (
        {lane: torch_end(build, lane, 0.5, 0.3, True, 0.2) for lane in range(5)} if build is not dense_dropout else {}
    )
    monkeypatch.setattr(layers, "HAS_MKL", has_mkl)
    parse.cache_clear()
    ends = fast_ends(build, [0, 1, 2, 3, 4], 0.5, 0.3, True, 0.2)
    parse.cache_clear()
    for lane, end in want.items():
        assert_close({name: w[lane] for name, w in ends.items()}, end, atol=1e-6)
    assert all(w.is_contiguous() for w in ends.values())
    assert bool(parse_layers(build()).transposed) == (not has_mkl and build is not convolving)
