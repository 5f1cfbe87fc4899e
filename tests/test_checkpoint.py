from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from kinfed import checkpoint
from kinfed.engines import Vectorised
from kinfed.errors import CheckpointError, ConfigError
from kinfed.experiment import Experiment
from kinfed.methods import FedAvg, Local
from kinfed.methods.one_model import OneModelState
from tests.problems import assert_same_bits, fit, small_net, tiny_population


def halfway(tmp_path, method):
    state, fed = fit(method, rounds=2, fraction=0.5)
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save(path, state, fed, {"round": 2, "word": "hello"})
    return path, state, fed


def test_a_federation_comes_back_as_it_was_saved(tmp_path):
    path, state, fed = halfway(tmp_path, FedAvg(small_net()))
    other = Vectorised(FedAvg(small_net()), tiny_population(), fraction=0.5)
    again = checkpoint.load(path, FedAvg(small_net()), other)
    assert_same_bits(again.params, state.params)
    assert other.calls == fed.calls and other.ledger.rounds == fed.ledger.rounds and other.rejected == fed.rejected
    assert_same_bits(other.ledger.up, fed.ledger.up)
    assert checkpoint.read_about(path) == {"round": 2, "word": "hello"}


def test_client_memories_come_back(tmp_path):
    path, _, fed = halfway(tmp_path, Local(small_net()))
    other = Vectorised(Local(small_net()), tiny_population(), fraction=0.5)
    checkpoint.load(path, Local(small_net()), other)
    assert_same_bits(other.memory, fed.memory)


@dataclass(frozen=True)
class Shared:
    models: dict[str, torch.Tensor]
    best: torch.Tensor
    last: torch.Tensor


class HoldsTwice(FedAvg):
    def init(self, fed) -> Shared: ...


def test_a_state_that_holds_one_tensor_twice_comes_back(tmp_path):
    _, fed = fit(FedAvg(small_net()), rounds=1)
    w = torch.arange(6.0).view(2, 3)
    checkpoint.save(tmp_path / "c", Shared({"w": w}, w[0], w), fed, {})
    again = checkpoint.load(tmp_path / "c", HoldsTwice(small_net()), fed)
    assert torch.equal(again.models["w"], w) and torch.equal(again.best, w[0]) and torch.equal(again.last, w)


def test_nothing_is_left_beside_a_snapshot(tmp_path):
    halfway(tmp_path, FedAvg(small_net()))
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.safetensors"]


def test_a_failed_write_leaves_the_old_snapshot(tmp_path):
    path, _, fed = halfway(tmp_path, FedAvg(small_net()))
    before = path.read_bytes()
    with pytest.raises(TypeError, match=r"state\.params"):
        checkpoint.save(path, {"params": object()}, fed, {})
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"garbage", None])
def test_a_damaged_or_missing_snapshot_is_a_clear_error(tmp_path, content):
    path, _, fed = halfway(tmp_path, FedAvg(small_net()))
    damaged = tmp_path / "other"
    if content is not None:
        damaged.write_bytes(content)
    with pytest.raises(CheckpointError, match="other"):
        checkpoint.load(damaged, FedAvg(small_net()), fed)
    damaged.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(damaged, FedAvg(small_net()), fed)


@dataclass(frozen=True)
class Inner:
    numbers: tuple[int, ...]
    weight: torch.Tensor


@dataclass(frozen=True)
class Outer:
    inner: Inner
    models: dict[str, torch.Tensor]
    note: str | None
    many: list[tuple[int, str]]


def test_nested_states_survive(tmp_path):
    state = Outer(Inner((1, 2), torch.arange(3)), {"a": torch.ones(2)}, None, [(1, "x"), (2, "y")])

    class Nested(FedAvg):
        def init(self, fed) -> Outer:
            raise NotImplementedError

    fed = Vectorised(FedAvg(small_net()), tiny_population())
    checkpoint.save(tmp_path / "s", state, fed, {})
    back = checkpoint.load(tmp_path / "s", Nested(small_net()), fed)
    assert back.inner.numbers == (1, 2) and back.many == [(1, "x"), (2, "y")] and back.note is None
    assert torch.equal(back.inner.weight, torch.arange(3)) and torch.equal(back.models["a"], torch.ones(2))


@dataclass(frozen=True)
class Several:
    by_number: dict[int, torch.Tensor]
    by_name: dict[str, Inner]
    row: tuple[Inner, ...]
    listed: list[Inner]
    perhaps: tuple[int, ...] | None
    neither: tuple[int, ...] | None
    either: Inner | dict[str, torch.Tensor]
    mixed: tuple[Inner, int]


def test_states_come_back_as_the_types_that_their_fields_have(tmp_path):
    inner = [Inner((1, 2), torch.arange(3)) for _ in range(4)]
    state = Several(
        {3: torch.ones(2)}, {"q": inner[0]}, (inner[1],), [inner[2]], (4, 5), None, {"w": torch.zeros(1)}, (inner[3], 7)
    )  # fmt: skip
    back = load_as(Several, state, tmp_path / "s")
    assert back.by_number.keys() == {3} and (back.perhaps, back.neither) == ((4, 5), None)
    assert isinstance(back.row, tuple) and isinstance(back.listed, list) and back.either.keys() == {"w"}
    for one in (back.by_name["q"], back.row[0], back.listed[0], back.mixed[0]):
        assert isinstance(one, Inner) and one.numbers == (1, 2) and one.weight.tolist() == [0, 1, 2]
    assert back.mixed[1] == 7


def test_a_dict_by_what_json_has_no_keys_of_is_refused_when_it_is_saved(tmp_path):
    fed = Vectorised(FedAvg(small_net()), tiny_population())
    with pytest.raises(TypeError, match=r"state\.pairs: a dict of a state may have text or whole numbers as keys"):
        checkpoint.save(tmp_path / "s", {"pairs": {(1, 2): 3}}, fed, {})


def test_a_run_goes_on_with_a_client_that_diverged_and_serves_nobody_by_it(tmp_path):
    path, state, fed = halfway(tmp_path, Local(small_net()))
    name = next(iter(fed.memory))
    fed.memory[name][2] = torch.nan
    checkpoint.save(path, state, fed, {})
    other = Vectorised(Local(small_net()), tiny_population(), fraction=0.5)
    checkpoint.check(path)
    checkpoint.load(path, Local(small_net()), other)
    assert torch.equal(other.memory[name].isnan(), fed.memory[name].isnan())
    torch.testing.assert_close(other.memory[name], fed.memory[name], rtol=0, atol=0, equal_nan=True)
    average = FedAvg(small_net())
    sick = {name: torch.full_like(w, torch.inf) for name, w in average.model.init().items()}
    checkpoint.save(path, OneModelState(sick), Vectorised(average, tiny_population()), {})
    with pytest.raises(CheckpointError, match="holds a NaN or an infinity"):
        checkpoint.load_served(path, average)


def test_a_state_whose_class_has_other_fields_now_is_refused_by_name(tmp_path):
    class Changed(FedAvg):
        def init(self, fed) -> Inner:
            raise NotImplementedError

    fed = Vectorised(FedAvg(small_net()), tiny_population())
    checkpoint.save(tmp_path / "s", OneModelState(fed.method.model.init()), fed, {})
    with pytest.raises(CheckpointError, match=r"with params, moments was saved, and Inner has numbers, weight:"):
        checkpoint.load(tmp_path / "s", Changed(small_net()), fed)


@dataclass(frozen=True)
class Earlier:
    weight: torch.Tensor


@dataclass(frozen=True)
class Since:
    weight: torch.Tensor
    rounds: int = 7
    notes: tuple[str, ...] = field(default_factory=tuple)


@dataclass(frozen=True)
class Required:
    weight: torch.Tensor
    rounds: int


@dataclass(frozen=True)
class Renamed:
    rounds: int = 7


class AnotherState(FedAvg):
    def init(self, fed):
        raise NotImplementedError


def load_as(kind: type, state: object, path: Path) -> object:
    """A state that was saved, read by a method whose state is of this class now."""
    fed = Vectorised(FedAvg(small_net()), tiny_population())
    checkpoint.save(path, state, fed, {})
    AnotherState.init.__annotations__["return"] = kind
    return checkpoint.load(path, AnotherState(small_net()), fed)


def test_fields_that_a_state_has_had_since_take_their_defaults(tmp_path):
    now = load_as(Since, Earlier(torch.ones(2)), tmp_path / "s")
    assert (now.weight.tolist(), now.rounds, now.notes) == ([1, 1], 7, ())


@pytest.mark.parametrize("kind", [Required, Renamed])
def test_a_field_without_a_default_or_a_field_that_is_gone_is_refused(kind, tmp_path):
    with pytest.raises(CheckpointError, match=f"a state with weight was saved, and {kind.__name__} has"):
        load_as(kind, Earlier(torch.ones(2)), tmp_path / "s")


def test_a_method_that_does_not_name_the_type_of_its_state_is_refused_before_it_runs():
    class Unnamed(FedAvg):
        def init(self, fed):
            return super().init(fed)

    class Unknown(FedAvg):
        def init(self, fed) -> "NowhereDefined":  # noqa: F821
            return super().init(fed)

    for method in (Unnamed, Unknown):
        named = rf"{method.__name__}.init: annotate what it returns by the class of the state"
        with pytest.raises(ConfigError, match=named):
            Experiment(method(small_net()), tiny_population())


def test_a_resumed_experiment_ends_with_the_same_bits(tmp_path):
    def experiment(rounds, checkpoint):
        method = FedAvg(small_net())
        return Experiment(
            method, tiny_population(), fraction=0.5, rounds=rounds, checkpoint=checkpoint, checkpoint_every=2
        )

    whole = experiment(5, tmp_path / "whole")
    summary = whole.run()
    experiment(2, tmp_path / "half").run()
    resumed = experiment(5, tmp_path / "half")
    assert resumed.run(resume=True) == summary
    assert resumed.history == whole.history
    assert_same_bits(resumed.state.params, whole.state.params)
