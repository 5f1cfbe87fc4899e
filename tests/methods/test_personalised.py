"""Update rules of the personalised methods by hand, on quadratic losses, and what each of them is at its limits."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from kinfed.data import Role
from kinfed.engines import Sequential
from kinfed.errors import ConfigError
from kinfed.methods import APFL, Ditto, FedALA, FedBABU, FedBN, FedRep, PFedMe
from kinfed.models import Gradient, Model
from kinfed.training import LocalTraining
from tests.methods.by_hand import QUADRATIC, client_with, weight
from tests.methods.registry import make, population
from tests.problems import assert_close, assert_same_bits, fit, norm_net, rows_of_memory, small_net

TWO_STEPS, ONE_STEP = (LocalTraining(epochs, 2, 0.1, momentum=0.0) for epochs in (2, 1))
HALF = LocalTraining(1, 2, 0.5, momentum=0.0)
PADDED = pytest.mark.parametrize("padded", [0, 3])
AGAIN = torch.tensor(True)  # the client has trained before
FIRST = torch.tensor(False)


def own_of(fed, client: int):
    """The model that a client keeps."""
    memory = rows_of_memory(fed, client)
    return {name.removeprefix("own/"): w for name, w in memory.items() if name.startswith("own/")}


@PADDED
@pytest.mark.parametrize(
    ("trained", "own"),
    [
        (AGAIN, 0.72),  # v = 0, then 0.1 · (3 + 1) = 0.4, then 0.4 + 0.1 · (2.6 + 0.6)
        (FIRST, 1.36),  # v = 1, then 1 + 0.1 · 2 = 1.2, then 1.2 + 0.1 · (1.8 - 0.2)
    ],
)
def test_ditto_trains_two_models_by_hand(padded, trained, own):
    client = client_with(2, 4, padded=padded, own=weight(0.0), has_trained=trained)
    reply = Ditto(QUADRATIC, TWO_STEPS, pull=1.0).train(client, params=weight(1.0))
    assert float(reply.send["params"]["w"]) == pytest.approx(1.38)  # 1, 1.2, 1.38
    assert float(reply.keep["own"]["w"]) == pytest.approx(own) and bool(reply.keep["has_trained"])


@PADDED
@pytest.mark.parametrize(
    ("adaptive", "alpha", "own"),
    [
        (False, 0.5, 0.241875),  # slopes half of -2.5 (at 0.5) and of -2.3375 (at 0.6625)
        (True, 0.25, 0.1083984375),  # α = 0.5 - 0.1 · (0 - 1)(0.5 - 3); a quarter of -2.25 (at 0.75) and of -2.0859375
    ],
)
def test_apfl_moves_its_own_model_along_the_mixtures_gradient_by_hand(padded, adaptive, alpha, own):
    memory = {"own": weight(0.0), "has_trained": AGAIN, "alpha": torch.tensor(0.5)}
    apfl = APFL(QUADRATIC, TWO_STEPS, adaptive=adaptive)
    reply = apfl.train(client_with(2, 4, padded=padded, **memory), params=weight(1.0))
    assert float(reply.send["params"]["w"]) == pytest.approx(1.38)
    assert float(reply.keep["own"]["w"]) == pytest.approx(own)
    assert float(reply.keep["alpha"]) == pytest.approx(alpha)
    client = client_with(2, **memory | {"alpha": torch.tensor(0.25)})
    assert float(apfl.personalise(client, {"params": weight(1.0)})["w"]) == 0.75


@PADDED
@pytest.mark.parametrize(
    ("adaptive", "first", "alpha", "own"),
    [
        (
            True,
            0.5,
            0.634,
            1.7706,
        ),  # gradients -2 and -1; slope (2.1 - 1.2)(-0.5 - 1) + 0.01; 0.366 · 1.2 + 0.634 · 2.1
        (True, 0.95, 1.0, 2.1),  # slope 0.9 · -1.05 + 0.019, so α would be 1.0426
        (False, 0.5, 0.5, 1.65),
    ],
)
def test_pfllibs_apfl_trains_its_own_model_apart_and_keeps_the_mixture_by_hand(padded, adaptive, first, alpha, own):
    memory = {"own": weight(2.0), "has_trained": AGAIN, "alpha": torch.tensor(first)}
    client = client_with(2, 4, padded=padded, **memory)
    apfl = APFL(QUADRATIC, ONE_STEP, adaptive=adaptive, variant="pfllib")
    reply = apfl.train(client, params=weight(1.0))
    assert float(reply.send["params"]["w"]) == pytest.approx(1.2)
    assert float(reply.keep["own"]["w"]) == pytest.approx(own)
    assert float(reply.keep["alpha"]) == pytest.approx(alpha)
    assert float(apfl.personalise(client, {"params": weight(1.0)})["w"]) == 2.0


def test_momentum_takes_no_share_of_pfllibs_apfl_out_of_its_range():
    memory = {"own": weight(2.0), "has_trained": AGAIN, "alpha": torch.tensor(0.95)}
    local = LocalTraining(epochs=5, batch_size=1, lr=0.1, momentum=0.9)
    reply = APFL(QUADRATIC, local, variant="pfllib").train(client_with(2, 4, **memory), params=weight(1.0))
    assert 0 <= float(reply.keep["alpha"]) <= 1


@PADDED
def test_pfedme_steps_along_the_moreau_envelope_by_hand(padded):
    pfedme = PFedMe(QUADRATIC, LocalTraining(1, 2, 0.1, momentum=0.9), pull=2.0, inner_steps=2, inner_lr=0.1)
    client = client_with(2, 4, padded=padded)
    trained = pfedme.train(client, params=weight(1.0)).send["params"]
    # θ: 1, then 1 + 0.1 · 2 = 1.2, then 1.2 + 0.1 · (1.8 - 2 · 0.2) = 1.34; w + 0.1 · 2 · (1.34 - 1)
    assert float(trained["w"]) == pytest.approx(1.068)
    assert float(pfedme.personalise(client, {"params": weight(1.0)})["w"]) == pytest.approx(1.2)
    unlabelled = client_with(2, 4, padded=padded, label=-1)
    assert float(pfedme.personalise(unlabelled, {"params": weight(1.0)})["w"]) == 1


@PADDED
def test_pfedme_may_go_on_from_the_last_mini_batch_by_hand(padded):
    twice = LocalTraining(2, 2, 0.1, momentum=0.9)
    pfedme = PFedMe(QUADRATIC, twice, pull=2.0, inner_steps=2, inner_lr=0.1, begin="last")
    trained = pfedme.train(client_with(2, 4, padded=padded), params=weight(1.0)).send["params"]
    # w: 1.068 and θ: 1.34 as above; then θ: 1.34 + 0.1 · (1.66 - 2 · 0.272) = 1.4516, and 1.52972
    assert float(trained["w"]) == pytest.approx(1.068 + 0.1 * 2 * (1.52972 - 1.068))


@PADDED
@pytest.mark.parametrize(
    ("share", "mixing"),
    [
        (1.0, 0.458),  # 1, 1 - 0.1 · 2, 0.8 - 0.1 · 1.8, 0.62 - 0.1 · 1.62
        (0.34, 0.62),  # two of three mini-batches begin before a share of 0.34 is used
        (0.0, 1.0),
    ],
)
def test_fedala_learns_how_much_to_take_by_hand(padded, share, mixing):
    memory = {"own": weight(0.0), "has_trained": AGAIN, "mixing": weight(1.0)}
    client = client_with(-1, -1, -1, padded=padded, **memory)
    fedala = FedALA(QUADRATIC, LocalTraining(1, 1, 1.0, momentum=0.0), share=share, mixing_lr=0.1)
    reply = fedala.train(client, params=weight(1.0))
    assert float(reply.keep["mixing"]["w"]) == pytest.approx(mixing)
    assert float(reply.send["params"]["w"]) == float(reply.keep["own"]["w"]) == pytest.approx(-1)  # a full step each
    used = fedala.personalise(client_with(1, **memory | {"mixing": weight(mixing)}), {"params": weight(1.0)})
    assert float(used["w"]) == pytest.approx(mixing)


def test_fedala_takes_no_more_than_all_of_the_common_model():
    client = client_with(3, own=weight(0.0), has_trained=AGAIN, mixing=weight(0.9))
    reply = FedALA(QUADRATIC, ONE_STEP, mixing_lr=1.0).train(client, params=weight(1.0))
    assert float(reply.keep["mixing"]["w"]) == 1 and float(reply.send["params"]["w"]) == pytest.approx(1.2)


def pull_sum(params, batch):
    """The gradient of ½(body + head - mean x)²."""
    mean = (batch.x[:, 0] * batch.mask).sum() / batch.mask.sum().clamp(min=1)
    slope = (params["body.w"] + params["head.w"] - mean) * batch.mask.any()
    return Gradient({name: slope for name in ("body.w", "head.w")})


COUPLED = SimpleNamespace(gradient=pull_sum, weights=("body.w", "head.w"), buffers=frozenset())


def part(name: str, value: float):
    return {f"{name}.w": torch.tensor(value)}


@PADDED
def test_fedrep_trains_the_head_first_and_then_the_body_by_hand(padded):
    fedrep = FedRep(COUPLED, HALF, head_epochs=2, tune_epochs=1)
    memory = {"own": part("head", 0.0), "has_trained": FIRST}
    client = client_with(1, 1, padded=padded, **memory)
    reply = fedrep.train(client, shared=part("body", 0.0))
    assert float(reply.keep["own"]["head.w"]) == 0.75  # 0, 0.5, 0.75
    assert {name: float(w) for name, w in reply.send["shared"].items()} == {"body.w": 0.125}  # half of 1 - 0.75
    used = fedrep.personalise(client, {"shared": part("body", 0.5)})
    assert {name: float(w) for name, w in used.items()} == {"body.w": 0.5, "head.w": 0.25}
    blank = fedrep.personalise(client_with(1, label=-1, **memory), {"shared": part("body", 0.5)})
    assert float(blank["head.w"]) == 0, "without labels it tunes nothing"


@PADDED
def test_fedreps_first_head_may_be_the_mean_of_the_others_by_hand(padded):
    fedrep = FedRep(COUPLED, HALF, head_epochs=1, begin="mean")
    served, memory = part("body", 0.0) | part("head", 0.5), {"own": part("head", 9.0), "has_trained": FIRST}
    reply = fedrep.train(client_with(1, 1, padded=padded, **memory), shared=served)
    sent = {name: float(w) for name, w in reply.send["shared"].items()}
    assert sent == {"body.w": 0.125, "head.w": 0.75}  # half of 1 - 0.5, then half of 1 - 0.75
    later = fedrep.personalise(client_with(1, 1, padded=padded, **reply.keep), {"shared": served})
    assert float(later["head.w"]) == 0.75, "once it has trained, its head is its own"
    unseen = fedrep.personalise(client_with(1, 1, padded=padded, **memory), {"shared": served})
    assert float(unseen["head.w"]) == 0.5


def test_fedreps_mean_head_is_that_of_the_last_rounds_clients():
    state, fed = fit(make("fedrep", begin="mean"), population=population(), rounds=2, fraction=0.5)
    alone, _ = fit(make("fedrep", begin="mean"), Sequential, population(), 2, fraction=0.5)
    assert_close(state.shared, alone.shared)
    assert set(state.shared) == set(make("fedavg").model.init()), "heads are sent, too"
    heads, trained = fed.memory["own/3.bias"], fed.memory["has_trained"]
    assert 0 < int(trained.sum()) < fed.count
    assert not torch.isclose(heads[trained], state.shared["3.bias"]).all(1).any(), "clients keep their own"


@PADDED
@pytest.mark.parametrize(("tunes", "body", "head"), [("all", 0.6, 0.4), ("head", 0.4, 0.4), ("body", 0.6, 0.2)])
def test_fedbabu_trains_the_body_and_tunes_before_use_by_hand(padded, tunes, body, head):
    fedbabu = FedBABU(COUPLED, HALF, tunes=tunes)
    client = client_with(1, 1, padded=padded, **part("head", 0.2))
    reply = fedbabu.train(client, shared=part("body", 0.0))
    assert float(reply.send["shared"]["body.w"]) == pytest.approx(0.4) and not reply.keep  # half of 1 - 0.2
    used = fedbabu.personalise(client, {"shared": part("body", 0.4)})
    assert {name: float(w) for name, w in used.items()} == pytest.approx({"body.w": body, "head.w": head})


@PADDED
def test_fedbabu_can_tune_the_body_that_a_client_trained_last(padded):
    fedbabu = FedBABU(COUPLED, HALF, tunes="head", begin="last")
    memory = part("head", 0.2) | {"own": part("body", 0.0), "has_trained": FIRST}
    reply = fedbabu.train(client_with(1, 1, padded=padded, **memory), shared=part("body", 0.0))
    assert float(reply.send["shared"]["body.w"]) == float(reply.keep["own"]["body.w"]) == pytest.approx(0.4)
    served = {"shared": part("body", 9.0)}
    later = client_with(1, 1, padded=padded, **memory | reply.keep)
    used = fedbabu.personalise(later, served)
    assert {name: float(w) for name, w in used.items()} == pytest.approx({"body.w": 0.4, "head.w": 0.4})  # as by hand
    unseen = client_with(1, 1, padded=padded, **memory)
    assert float(fedbabu.personalise(unseen, served)["body.w"]) == 9.0


@pytest.mark.parametrize(("name", "settings"), [("ditto", {"pull": 0.0}), ("apfl", {"alpha": 1.0, "adaptive": False})])
def test_without_the_common_model_it_is_local_training(name, settings):
    local = make(name).local
    _, fed = fit(make(name, **settings), population=population(), rounds=2)
    _, alone = fit(make("local", local=local), population=population(), rounds=2)
    assert_close(own_of(fed, 3), {n.removeprefix("params/"): w for n, w in rows_of_memory(alone, 3).items()})


def test_apfl_without_its_own_models_serves_fedavgs():
    apfl = make("apfl", alpha=0.0, adaptive=False)
    state, _ = fit(apfl, population=population(), rounds=2)
    assert_close(state.params, fit(make("fedavg", local=apfl.local), population=population(), rounds=2)[0].params)


@pytest.mark.parametrize("name", ["ditto", "apfl", "fedala"])
def test_who_never_trained_uses_the_common_model(name):
    method, roles = make(name), tuple(Role(holdout=i == 2) for i in range(12))
    state, fed = fit(method, population=population(roles=roles), rounds=1, fraction=0.5)
    for client in (2, int((fed.ledger.up["train"] == 0).nonzero()[-1])):
        memory = rows_of_memory(fed, client)
        nested = {"own": own_of(fed, client)} | {n: w for n, w in memory.items() if "/" not in n}
        nested |= {"mixing": {n.removeprefix("mixing/"): w for n, w in memory.items() if n.startswith("mixing/")}}
        assert_same_bits(method.personalise(client_with(1, **nested), {"params": state.params}), state.params)


@pytest.mark.parametrize("name", ["ditto", "apfl", "fedala"])
def test_personal_models_differ_and_only_the_common_one_is_sent(name):
    _, fed = fit(make(name), population=population(), rounds=2)
    assert not torch.equal(own_of(fed, 0)["3.weight"], own_of(fed, 1)["3.weight"])
    assert int(fed.ledger.up["train"][0]) == 2 * 4 * small_net().parameters()


@pytest.mark.parametrize("name", ["fedrep", "fedbabu"])
def test_only_the_body_is_sent(name):
    _, fed = fit(make(name), population=population(), rounds=2)
    assert int(fed.ledger.up["train"][0]) == 2 * 4 * (64 * 8 + 8)


def test_fedbns_norms_are_personal_whatever_their_kind():
    net = Model(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.GroupNorm(2, 4), nn.Flatten()),
            nn.LayerNorm(144), nn.Linear(144, 3),
        ),
        classes=3,
    )  # fmt: skip
    own = {f"1.{name}" for name in ("weight", "bias", "running_mean", "running_var")}
    own |= {f"{layer}.{name}" for layer in ("2.0", "3") for name in ("weight", "bias")}
    assert set(FedBN(net).initial_memory()) == own


def test_fedbn_keeps_norms_apart_and_says_when_there_are_none():
    state, fed = fit(make("fedbn"), population=population(), rounds=1)
    assert set(fed.memory) == {"2.weight", "2.bias"} and not set(fed.memory) & set(state.shared)
    assert not torch.equal(fed.memory["2.weight"][0], fed.memory["2.weight"][1])
    with pytest.warns(UserWarning, match="which is FedAvg"):
        fit(FedBN(small_net(), TWO_STEPS), population=population(), rounds=1)


def test_fedbn_of_one_client_is_fedavg():
    from kinfed.methods import FedAvg

    alone = population(roles=tuple(Role(holdout=i != 3) for i in range(12)))
    part, fed = fit(make("fedbn"), population=alone, rounds=1)
    whole, _ = fit(FedAvg(norm_net(), make("fedbn").local), population=alone, rounds=1)
    assert_close(rows_of_memory(fed, 3) | part.shared, whole.params)


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("ditto", {"pull": -1.0}, "pull must be at least 0"),
        ("apfl", {"alpha": 1.5}, "alpha must be a fraction"),
        ("apfl", {"variant": "code"}, "variant must be"),
        ("pfedme", {"pull": 0.0}, "pull must be a number above 0"),
        ("pfedme", {"inner_steps": 0}, "inner_steps must be at least 1"),
        ("pfedme", {"begin": "last", "local": LocalTraining(weight_decay=0.1)}, "begin = 'last' is for plain SGD"),
        ("fedala", {"share": 2.0}, "share must be a fraction"),
        ("fedala", {"adaptive_layers": 0}, "adaptive_layers must be at least 1"),
        ("fedrep", {"personal_layers": 0}, "personal_layers must be at least 1"),
        ("fedrep", {"begin": "last"}, "begin must be one of first, mean"),
        ("fedbabu", {"tunes": "tail"}, "tunes must be one of all, head, body"),
        ("fedbabu", {"begin": "first"}, "begin must be one of served, last"),
    ],
)
def test_settings_out_of_range_are_refused(name, settings, says):
    with pytest.raises(ConfigError, match=says):
        make(name, **settings)
