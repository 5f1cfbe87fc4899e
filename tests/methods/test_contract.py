"""What every method must keep to."""

import copy
import shutil
import warnings
from dataclasses import FrozenInstanceError, fields, replace

import pytest
import torch

from kinfed import checkpoint
from kinfed.capabilities import reason_for_labels, takes_server_samples
from kinfed.client import Reply, client_task
from kinfed.data import LATER, Role
from kinfed.data.population import NO_SAMPLES
from kinfed.engines import Sequential, Vectorised
from kinfed.errors import ConfigError, RoleError
from kinfed.experiment import Evaluation, Experiment, Observer
from kinfed.method import Method
from kinfed.params import Params
from tests.methods.registry import CASES, make, mark_alike, population
from tests.problems import assert_close, assert_same_bits

ROLES = tuple(Role(holdout=i == 2, joins={4: 2, 5: LATER}.get(i, 0)) for i in range(12))
SCORED = Evaluation(every=2, metrics="main", signatures="none")  # test_measured resumes a run with all metrics


def everything(state, fed) -> dict[str, torch.Tensor]:
    """All tensors of a state and of the clients' memories, by name."""
    tensors: dict[str, torch.Tensor] = {}
    checkpoint.take_apart(state, "state", tensors)
    checkpoint.take_apart(fed.memory, "memory", tensors)
    return tensors


def run(method, engine=Vectorised, rounds=2, people=None, **settings):
    """Some rounds, scored after the second and the last: both are enough for all that methods do in turn."""
    fed = engine(method, people or population(), fraction=0.5, **settings)
    experiment = Experiment.over(fed, rounds=rounds, evaluation=replace(SCORED, adapt=True))
    return experiment.run(), experiment.state, fed


def run_rounds(method, **settings):
    """The state after the same rounds, with few scores, which change nothing of it."""
    fed = Vectorised(method, population(), fraction=0.5, **settings)
    experiment = Experiment.over(fed, rounds=2, evaluation=SCORED)
    experiment.run()
    return experiment.state, fed


@pytest.fixture(scope="module")
def used(named):
    """The method after a run, its settings before it, and what the run gave."""
    method = make(named)
    before = copy.deepcopy(vars(method))
    return method, before, run(method)


@pytest.fixture(scope="module")
def usual(used):
    """What a run of the method gives with nothing changed: once for all tests, since runs are most of their time."""
    return used[2]


@pytest.mark.parametrize("name", CASES)
def test_every_registered_method_is_tested(name):
    assert make(name).model.classes == 3


def test_who_needs_rows_of_the_server_says_so(method):
    fed = Vectorised(method, replace(population(), public=NO_SAMPLES))
    if takes_server_samples(method):
        with pytest.raises(ConfigError, match=r"there are none: set data\.public"):
            method.init(fed)
    else:
        method.init(fed)


def test_engines_agree_and_their_ledgers_are_equal(method, usual):
    (slow, state, reference), (fast, other, fed) = run(method, Sequential), usual
    assert_close(everything(state, reference), everything(other, fed))
    assert reference.ledger.rounds == fed.ledger.rounds
    assert slow["accuracy"] == pytest.approx(fast["accuracy"], abs=1e-5)


@pytest.mark.parametrize("block", [pytest.param(1, marks=pytest.mark.on_demand), 5])
def test_the_same_seed_gives_the_same_bits_whatever_the_block_size(method, block, usual):
    """Blocks of five leave one client of a cohort, and two of all, in blocks of their own."""
    (_, a, fed), (b, other) = usual, run_rounds(method, block=block)
    assert_same_bits(everything(a, fed), everything(b, other))


@pytest.mark.parametrize("named", mark_alike("train"), indirect=True)
def test_another_seed_gives_other_bits(method, usual):
    (_, a, fed), (b, other) = usual, run_rounds(method, seed=1)
    pairs = zip(everything(a, fed).values(), everything(b, other).values(), strict=True)
    assert any(not torch.equal(x, y) for x, y in pairs)


def test_the_object_holds_settings_only(used):
    method, before, _ = used
    after = {name: value for name, value in vars(method).items() if name in before}
    assert {f.name for f in fields(method)} <= set(before)
    assert all(repr(after[f.name]) == repr(before[f.name]) for f in fields(method) if f.name != "model")
    with pytest.raises(FrozenInstanceError):
        method.local = None


def make_experiment(method, checkpoint, observers=()):
    """Three rounds with late and holdout clients, a checkpoint after the second."""
    fed = Vectorised(method, population(roles=ROLES), fraction=0.5)
    rhythm = {"rounds": 3, "checkpoint_every": 2, "evaluation": SCORED}
    return Experiment.over(fed, checkpoint=checkpoint, observers=observers, **rhythm)


class KeepCheckpoint(Observer):
    """Keeps the checkpoint of the second round, as a run leaves it that is killed in the third."""

    def __init__(self, checkpoint, kept):
        self.checkpoint, self.kept = checkpoint, kept

    def on_round(self, result):
        if result.round == 3:
            shutil.copy(self.checkpoint, self.kept)


@pytest.fixture(scope="module")
def whole(named, tmp_path_factory):
    """A run with late and holdout clients, its summary, and its checkpoint of the second round."""
    folder = tmp_path_factory.mktemp("whole")
    keeper = KeepCheckpoint(folder / "last", folder / "kept")
    experiment = make_experiment(make(named), folder / "last", [keeper])
    return experiment, experiment.run(), folder / "kept"


def test_a_state_survives_saving_and_training_goes_on_bit_for_bit(method, whole):
    uninterrupted, summary, kept = whole
    resumed = make_experiment(method, kept)
    assert resumed.run(resume=True) == summary
    assert_same_bits(everything(resumed.state, resumed.fed), everything(uninterrupted.state, uninterrupted.fed))


def test_holdout_and_late_clients_are_served(whole):
    experiment, summary, _ = whole
    ledger = experiment.fed.ledger
    assert torch.isfinite(torch.tensor(summary["accuracy_unseen"]))
    assert ledger.up["train"][[2, 5]].sum() == 0 if "train" in ledger.up else True
    assert int(ledger.up["evaluate"][5]) > 0


@pytest.mark.parametrize("named", mark_alike("round", "admit", "personalise"), indirect=True)
def test_a_client_without_labels_is_served_or_refused_as_the_method_says(method):
    people = population()
    y = people.y.clone()
    y[people.train[7]] = -1
    people = replace(people, y=y, roles=tuple(replace(role, labelled=i != 7) for i, role in enumerate(ROLES)))
    if reason_for_labels(method):
        with pytest.raises(RoleError, match=r"\[7\] have no labelled training samples, but .+"):
            run(method, rounds=3, people=people)
        return
    _, _, fed = run(method, rounds=3, people=people)
    assert fed.ledger.up["train"][7] == 0 if "train" in fed.ledger.up else True
    assert int(fed.ledger.up["evaluate"][7]) > 0


@pytest.mark.parametrize("named", mark_alike("train"), indirect=True)
def test_the_proximal_term_composes(method, usual):
    (_, free, fed), (held, other) = usual, run_rounds(replace(method, local=replace(method.local, mu=5.0)))
    pairs = zip(everything(free, fed).values(), everything(held, other).values(), strict=True)
    assert any(not torch.equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("named", mark_alike("round", "train"), indirect=True)
def test_a_sick_client_is_left_out_and_nobody_else_suffers(method):
    people = population()
    sick = people.x.float() / 255
    sick[people.train[3]] = torch.nan
    people = replace(people, x=sick)
    summary, state, fed = run(method, people=people)
    assert {reply.client for reply in fed.rejected} <= {3}
    if method.__class__.__name__ != "Local":
        assert summary["rejected_replies"] > 0
        assert all(torch.isfinite(t).all() for t in everything(state, fed).values() if t.is_floating_point())


def test_the_contract_has_seven_members():
    names = {name for name in (*vars(Method), *Method.__annotations__) if not name.startswith("_")}
    assert names == {"model", "local", "init", "round", "offer", "admit", "personalise"}


@pytest.mark.parametrize("engine", [Sequential, Vectorised])
def test_a_methods_own_error_surfaces_once(engine):
    calls = []

    class Broken(type(make("fedavg"))):
        @client_task
        def train(self, client, params: Params) -> Reply:
            calls.append(1)
            raise RuntimeError("no such layer")

    method = Broken(make("fedavg").model)
    fed = engine(method, population())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match="no such layer"):
            method.round(method.init(fed), 0, fed)
    assert len(calls) == 1
