"""Runs that train together: who waits for whom, and which lanes are whose."""

import threading
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kinfed.cuda_graphs import CudaGraphs
from kinfed.engines import Sequential, Vectorised
from kinfed.engines.resident import Resident
from kinfed.fastpath import JointTraining, StepGraphs, find_step_graphs
from kinfed.fastpath.gpu_training import StepBatches, Training, TrainingState
from kinfed.fastpath.joint_training import CURRENT, LANES, SharedPool, join, keep_precision
from kinfed.methods import FedAvg
from tests.problems import small_net, tiny_population

RUN = StepGraphs.run


class Network:
    stages = ()

    def __init__(self, kind: str = "plain") -> None:
        self.kind = kind


def make_training(
    start: float, x: Tensor, steps: int = 2, lanes: int = 3, lr: float = 1.0, kind: str = "plain", pull: float = 0.0,
    momentum: float = 0.0,
) -> Training:  # fmt: skip
    """Lanes whose weights are numbers from `start` on; every step takes the samples 0, 1 and 2."""
    pick = torch.arange(lanes)[None, :, None].expand(steps, lanes, 1) % len(x)
    ones = torch.ones(steps, lanes)
    batches = StepBatches(pick, pick, ones[..., None], lr * ones, pick[..., 0])
    weights = [start + torch.arange(lanes * 1.0)[:, None]]
    terms = [10 + w for w in weights if pull]
    taken, pulls = torch.full((lanes,), steps), torch.full((lanes,), pull)
    return Training(Network(kind), x, [], weights, terms, pulls, batches, taken, momentum, looks_ahead=False)


def add_samples(graphs: StepGraphs, training: Training) -> list[Tensor]:
    """A stand-in for the kernels: each lane's weight grows by its learning rate times its samples."""
    grown = (training.batches.lr * training.x[training.batches.pick[..., 0]]).sum(0)
    return [weights + grown[:, None] for weights in training.starts]


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepGraphs, "run", add_samples)


def run_together(joint: JointTraining, *runs: Callable[[], object]) -> list[object]:
    """What the runs give back, each from its own thread; none begins before all are there."""
    ends: list[object] = [None] * len(runs)

    def go(number: int) -> None:
        try:
            with joint.take_part():
                ends[number] = runs[number]()
        except BaseException as error:
            ends[number] = error

    threads = [threading.Thread(target=go, args=(number,)) for number in range(len(runs))]
    with joint.turn:
        for thread in threads:
            thread.start()
        while len(joint.runs) < len(runs):
            time.sleep(0.001)
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a run waits for ever"
    return ends


def test_every_run_gets_its_own_lanes_whatever_its_samples_steps_and_rate():
    joint = JointTraining()
    trainings = [
        make_training(0.0, torch.tensor([1.0, 2.0, 3.0])),
        make_training(100.0, torch.tensor([10.0, 20.0]), steps=5, lanes=4),
        make_training(200.0, torch.tensor([1.0, 2.0, 3.0]), lr=0.5),
    ]
    expected = [add_samples(joint, each)[0] for each in trainings]
    got = run_together(joint, *(lambda each=each: joint.run(each)[0] for each in trainings))
    assert joint.joined == 3
    for own, wanted in zip(got, expected, strict=True):
        assert torch.equal(own, wanted)
    assert expected[1][:, 0].tolist() == [150.0, 201.0, 152.0, 203.0]  # 100 + 5 · 10, 101 + 5 · 20, …


def test_runs_that_train_otherwise_are_not_joined():
    joint, x = JointTraining(), torch.ones(3)
    kinds = [make_training(0.0, x, kind=kind) for kind in ("plain", "plain", "normalised")]
    ends = run_together(joint, *(lambda each=each: joint.run(each)[0].sum().item() for each in kinds))
    assert joint.joined == 2 and ends == [9.0] * 3


def test_runs_with_and_without_a_term_are_joined_but_not_those_with_other_momentum():
    joint, x = JointTraining(), torch.ones(3)
    trainings = [make_training(0.0, x), make_training(5.0, x, pull=0.5), make_training(0.0, x, momentum=0.9)]
    run_together(joint, *(lambda each=each: joint.run(each) for each in trainings))
    assert joint.joined == 2


def test_a_lane_without_a_term_has_one_of_zero():
    x = torch.arange(4.0)
    plain, pulled = make_training(0.0, x), make_training(5.0, x, pull=0.5)
    whole = join([plain, pulled], SharedPool())
    assert whole.terms[0][:6, 0].tolist() == [0.0, 0.0, 0.0, 15.0, 16.0, 17.0]
    assert whole.pull[:6].tolist() == [0.0, 0.0, 0.0, 0.5, 0.5, 0.5] and len(whole.pull) == LANES
    assert not join([plain, plain], SharedPool()).terms


def test_a_run_that_ends_or_fails_is_not_waited_for():
    joint, x, order = JointTraining(), torch.ones(3), []

    def train(name: str, rounds: int) -> str:
        for _ in range(rounds):
            joint.run(make_training(0.0, x))
            order.append(name)
        if name == "short":
            raise ValueError("it fails")
        return name

    ends = run_together(joint, lambda: train("long", 5), lambda: train("short", 2))
    assert ends[0] == "long" and isinstance(ends[1], ValueError)
    assert joint.joined == 4 and order.count("long") == 5 and not joint.runs


def test_a_run_that_trains_in_another_way_is_not_waited_for_and_lets_the_others_go_on():
    joint, x, order = JointTraining(), torch.ones(3), []

    def train(name: str, rounds: int, together: bool) -> None:
        for _ in range(rounds):
            joint.begin_round()
            if together:
                joint.run(make_training(0.0, x))
            order.append(name)

    run_together(joint, lambda: train("apart", 20, False), *[lambda: train("joint", 10, True)] * 2)
    assert order.count("apart") == 20 and order.count("joint") == 20 and joint.joined == 20
    assert "apart" in order[order.index("joint") :], "they take turns"
    assert order.index("joint") < 10


def test_one_run_goes_on_at_a_time():
    joint, inside = JointTraining(), []

    def go() -> bool:
        for _ in range(20):
            inside.append(1)
            assert len(inside) == 1
            time.sleep(0.0005)
            inside.pop()
            joint.run(make_training(0.0, torch.ones(3)))
        return True

    assert run_together(joint, *[go] * 4) == [True] * 4


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), RuntimeError("no such kernel")])
def test_where_all_at_once_fail_each_trains_by_itself(monkeypatch: pytest.MonkeyPatch, error: RuntimeError):
    def refuse_many(graphs: StepGraphs, training: Training) -> list[Tensor]:
        if len(training.taken) > 3:
            raise error
        return add_samples(graphs, training)

    monkeypatch.setattr(StepGraphs, "run", refuse_many)
    joint, x = JointTraining(), torch.ones(3)
    ends = run_together(joint, *[lambda: joint.run(make_training(0.0, x))[0].sum().item()] * 2)
    assert ends == [9.0, 9.0] and not joint.joined


def test_where_memory_is_short_half_as_many_train_together_from_then_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def refuse_many(graphs: StepGraphs, training: Training) -> list[Tensor]:
        if len(training.taken) > 40:
            raise torch.OutOfMemoryError("full")
        return add_samples(graphs, training)

    monkeypatch.setattr(StepGraphs, "run", refuse_many)
    joint, x = JointTraining(), torch.ones(3)

    def train() -> list[float]:
        return [joint.run(make_training(0.0, x, lanes=16))[0].sum().item() for _ in range(3)]

    alone = add_samples(joint, make_training(0.0, x, lanes=16))[0].sum().item()
    assert run_together(joint, *[train] * 5) == [[alone] * 3] * 5
    assert joint.joined == 2 * 4 and joint.most == 2, "two pairs in the second and in the third round"
    assert [each.getMessage() for each in caplog.records] == [
        "no room for 5 runs that train together; 2 at once from now on"
    ]


def test_an_error_reaches_the_run_whose_it_is_and_leaves_the_others():
    joint, x = JointTraining(), torch.ones(3)
    trainings = [make_training(0.0, x) for _ in range(3)]
    trainings[1].starts[0] = "no tensor"
    sound, wrong, other = run_together(
        joint, *(lambda each=each: joint.run(each)[0].sum().item() for each in trainings)
    )
    assert sound == other == 9.0 and isinstance(wrong, TypeError | AttributeError) and not joint.joined


def test_an_error_of_the_others_is_none_of_a_run_that_ends(monkeypatch: pytest.MonkeyPatch):
    class CompilationError(Exception):
        pass

    def refuse_many(graphs: StepGraphs, training: Training) -> list[Tensor]:
        if len(training.taken) > 3:
            raise CompilationError  # without a word
        return add_samples(graphs, training)

    def end_last() -> str:
        assert joint.turn.wait_for(lambda: len(joint._find_waiting()) == 2, 20)
        return "ended"

    monkeypatch.setattr(StepGraphs, "run", refuse_many)
    joint, x = JointTraining(), torch.ones(3)
    ends = run_together(joint, *[lambda: joint.run(make_training(0.0, x))[0].sum().item()] * 2, end_last)
    assert ends == [9.0, 9.0, "ended"]


def test_after_an_interrupt_nothing_is_trained_and_nobody_begins():
    def interrupt() -> None:
        assert joint.turn.wait_for(lambda: len(joint._find_waiting()) == 2, 20)
        joint.is_over = True
        joint.run(make_training(0.0, torch.ones(3)))

    joint = JointTraining()
    ends = run_together(joint, *[lambda: joint.run(make_training(0.0, torch.ones(3)))] * 2, interrupt)
    assert [type(end) for end in ends] == [KeyboardInterrupt] * 3 and not joint.joined
    with pytest.raises(KeyboardInterrupt), joint.take_part():
        pytest.fail("a run begins")
    assert not joint.runs and CURRENT.get() is None


def test_an_interrupt_stops_all_runs_where_they_train_next():
    joint, rounds = JointTraining(), []

    def go() -> None:
        while True:
            joint.run(make_training(0.0, torch.ones(3)))
            rounds.append(1)
            if len(rounds) == 7:
                threading.Thread(target=joint.stop).start()

    ends = run_together(joint, go, go)
    assert [type(end) for end in ends] == [KeyboardInterrupt] * 2 and not joint.runs


def test_while_a_run_waits_the_precision_is_that_of_the_server():
    joint, seen = JointTraining(), []
    matrices = torch.backends.cuda.matmul

    def train_in_tf32() -> bool:
        before, matrices.allow_tf32 = matrices.allow_tf32, True
        joint.run(make_training(0.0, torch.ones(3)))
        inside, matrices.allow_tf32 = matrices.allow_tf32, before
        return inside

    def look() -> None:
        for _ in range(3):
            seen.append(matrices.allow_tf32)
            joint.run(make_training(0.0, torch.ones(3)))

    assert run_together(joint, train_in_tf32, look)[0] is True
    assert seen == [False] * 3 and not joint.joined, "other precisions are other trainings"


class State:
    """A stand-in for weights and buffers."""

    def reset(self, training: Training) -> None: ...

    def train_on(self, batches: dict[str, Tensor]) -> dict[str, Tensor]:
        return {}


def test_graphs_of_one_precision_do_not_serve_the_other(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(TrainingState, "of", lambda training: State())
    monkeypatch.setattr(Training, "end", lambda *given: [])
    graphs, training = StepGraphs(graphs=CudaGraphs(4, warm_up=99)), make_training(0.0, torch.ones(3))
    for tf32, states in [(False, 1), (True, 2), (True, 2), (False, 2)]:
        with keep_precision(tf32):
            RUN(graphs, training)
        assert len(graphs.states) == states


def test_lanes_are_filled_up_by_ones_that_take_no_step():
    x = torch.arange(4.0)
    whole = join([make_training(0.0, x, steps=1), make_training(5.0, x, steps=3)], SharedPool())
    assert whole.starts[0].shape == (LANES, 1) and whole.batches.lr.shape == (3, LANES)
    assert whole.batches.lr.sum(0).tolist() == [1.0] * 3 + [3.0] * 3 + [0.0] * (LANES - 6)
    assert whole.taken.tolist() == [1] * 3 + [3] * 3 + [0] * (LANES - 6) and whole.x is x


def test_a_pool_is_made_anew_only_for_samples_it_lacks():
    pool, (a, b, c) = SharedPool(), (torch.full((n,), float(n)) for n in (2, 3, 4))
    whole, begins = pool.take([a, b, a])
    assert whole.tolist() == [2.0] * 2 + [3.0] * 3 and begins == [0, 2, 0]
    assert pool.take([b])[0] is whole
    assert pool.take([c, b])[1] == [5, 2] and len(pool.parts) == 3


def test_a_pool_serves_groups_in_turn_and_drops_what_nobody_asks_for():
    pool, (a, b, c, d) = SharedPool(), (torch.full((n,), float(n)) for n in (2, 3, 4, 5))
    for _ in range(2):  # two groups, each of which lacks a run of the other: were it made anew, graphs would be, too
        pool.take([a, b]), pool.take([b, c])
    whole = pool.take([a, b])[0]
    assert whole is pool.take([b, c])[0] and len(whole) == 9
    pool.take([d])
    assert len(pool.take([d])[0]) == 14, "what was asked for since it was made the last time"
    assert len(pool.take([torch.ones(1)])[0]) == 6


def test_engines_find_the_joint_training_of_their_thread():
    joint = JointTraining()
    assert type(find_step_graphs()) is StepGraphs
    with joint.take_part():
        assert find_step_graphs() is joint
    assert CURRENT.get() is None


@pytest.mark.parametrize("engine", [Sequential, Vectorised])
def test_a_round_of_every_engine_lets_the_others_go_on_and_can_be_interrupted(engine: type[Resident]):
    joint = JointTraining()
    with joint.take_part():
        (part,) = joint.runs.values()
        fed = engine(FedAvg(small_net()), tiny_population())
        fed.begin(0)
        assert not part.is_apart
        fed.begin(1)
        assert part.is_apart, "it has not trained with the others in the round before"
        joint.is_over = True
        with pytest.raises(KeyboardInterrupt):
            fed.begin(2)
