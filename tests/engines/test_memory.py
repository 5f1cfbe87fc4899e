"""What an engine does where memory does not suffice."""

import warnings
import weakref
from contextlib import contextmanager, nullcontext

import pytest
import torch

from kinfed.client import FAST_PATH
from kinfed.engines import Sequential, Vectorised, blocks, vectorised
from kinfed.engines.blocks import LEAST, BlockSizes, Retry, bytes_of_activations, bytes_of_weights
from kinfed.federation import Offer
from kinfed.methods import FedAvg
from kinfed.models import Model
from kinfed.params import bytes_of, join_in_order, repeat
from kinfed.training import LocalTraining
from tests.problems import assert_close, fit, small_net, tiny_population
from tests.zoo import ZOO

LOCAL, CLIENTS = LocalTraining(epochs=1, batch_size=5, lr=0.05), 24


class Crowded(Vectorised):
    """An engine on which so many clients fit into a block."""

    room = 4
    tried: list[int]

    def _run_block(self, name, cohort, keys, offer, block):
        self.tried = [*getattr(self, "tried", []), len(block.order)]
        if len(block.order) > self.room:
            raise torch.OutOfMemoryError("pretended")
        return super()._run_block(name, cohort, keys, offer, block)


def crowded(room: int = 4) -> tuple[FedAvg, Crowded]:
    method = FedAvg(small_net(), LOCAL)
    fed = Crowded(method, tiny_population((6,) * CLIENTS), block=CLIENTS, workers=1)
    fed.room = room
    return method, fed


def test_blocks_are_halved_until_they_fit_and_stay_so_where_nobody_else_has_the_memory():
    method, fed = crowded()
    state = method.round(method.init(fed), 0, fed)
    assert fed.tried[:3] == [24, 12, 6] and set(fed.tried[3:]) == {3} and fed.block_sizes.found["train"] == 3
    for round in range(20):
        method.round(state, round + 1, fed)
    assert max(fed.tried[3:]) == 3
    assert_close(state.params, fit(method, Sequential, fed.population, 1)[0].params)


def test_only_where_the_smallest_block_fails_do_clients_train_sequentially():
    method, fed = crowded(room=LEAST - 1)
    with pytest.warns(UserWarning, match="pretended: clients train sequentially"):
        method.round(method.init(fed), 0, fed)
    assert fed.tried == [24, 12, 6, 3]


def test_a_block_that_never_ended_is_no_warm_up():
    method, fed = crowded(room=LEAST - 1)
    fed.graphs.calls["train", "shapes"] = 1  # of the block that failed: the next call would be captured
    with pytest.warns(UserWarning, match="sequentially"):
        method.round(method.init(fed), 0, fed)
    assert not fed.graphs.calls


def test_blocks_grow_again_after_others_had_the_memory_and_it_is_said_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(blocks, "is_crowded", lambda device: True)
    method, fed = crowded(room=12)
    with pytest.warns(UserWarning, match="GPU memory is full, since other processes use it, too") as said:
        state = method.round(method.init(fed), 0, fed)
    assert len(said) == 1 and fed.block_sizes.found["train"] == 12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for round in range(8):
            state = method.round(state, round + 1, fed)  # after the eighth call larger blocks are tried, in vain
        assert fed.tried.count(24) == 2 and fed.block_sizes.found["train"] == 12
        fed.room = CLIENTS
        for round in range(16):
            state = method.round(state, round + 9, fed)
    assert fed.tried[-1] == 24 and fed.block_sizes.found["train"] == 24


def test_the_pause_before_larger_blocks_doubles():
    retry = Retry(pause=1)
    retry.start_again()
    assert [retry.note_success() for _ in range(3)] == [False, True, True]


@pytest.mark.parametrize("room", [4, LEAST - 1])
def test_what_failed_is_out_of_memory_before_less_is_tried(room: int):
    method, fed = crowded(room)
    held: list[weakref.ref[torch.Tensor]] = []
    run_block = fed._run_block

    def allocate(name, cohort, keys, offer, block):
        assert all(ref() is None for ref in held)
        large = torch.zeros(len(block.order))
        held[:] = [weakref.ref(large)]
        answer = run_block(name, cohort, keys, offer, block)
        held.clear()
        return answer

    fed._run_block = allocate
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method.round(method.init(fed), 0, fed)


def test_replies_of_all_clients_are_outside_the_limit_of_a_block(monkeypatch: pytest.MonkeyPatch):
    limited: list[bool] = []

    @contextmanager
    def keep_to_limit(device):
        limited.append(True)
        try:
            yield
        finally:
            limited.pop()

    def join(orders, stacks):
        assert not limited
        return join_in_order(orders, stacks)

    monkeypatch.setattr(vectorised, "keep_to_limit", keep_to_limit)
    monkeypatch.setattr(vectorised, "join_in_order", join)
    method, fed = crowded(room=12)
    run_block = fed._run_block
    fed._run_block = lambda *given: run_block(*given) if limited else pytest.fail("a block without a limit")
    method.round(method.init(fed), 0, fed)
    assert fed.tried == [24, 12, 12]


def test_of_models_that_all_may_choose_from_a_client_trains_one():
    model = small_net()
    params = model.init()
    size, three = bytes_of(params), repeat(params, 3)
    assert bytes_of_weights(Offer(shared={"params": params}), model) == 12 * size
    assert bytes_of_weights(Offer(each={"params": three}), model) == 12 * size
    assert bytes_of_weights(Offer(shared={"models": three}), model) == (12 + 2) * size
    others = Offer(shared={"point": torch.zeros(5), "encoder": {"other": torch.zeros(2, 2)}})
    assert bytes_of_weights(others, model) == bytes_of_weights(others, None) == 12 * 36


def test_activations_of_samples_that_no_training_takes_count():
    fed, nothing = Vectorised(FedAvg(small_net(), LOCAL), tiny_population((6,) * CLIENTS)), Offer()
    assert fed._bytes_each("train", nothing) == 2**20, "a CPU's blocks are small"
    fed.on_gpu = True
    width = max(fed._table(part).bounds.width for part in ("train", "test"))
    assert fed._bytes_each("train", nothing) == 2**20 + bytes_of_activations(fed.x, width)
    fed.reads["train",] = {FAST_PATH}
    assert fed._bytes_each("train", nothing) == 2**20
    numbers = width * fed.x[0].numel()
    assert bytes_of_activations(fed.x, width) == 4 * numbers * blocks.ACTIVATIONS
    assert bytes_of_activations(fed.x.long(), width) == 4 * numbers * blocks.OF_TOKEN


def test_a_block_has_as_many_clients_as_memory_takes_and_all_workers_as_many_blocks():
    sizes = BlockSizes(torch.device("cpu"))
    assert sizes.choose("train", 100, 1, 1) == 25 and sizes.choose("train", 100, 3, 1) == 17, "at most 32"
    assert sizes.choose("train", 100, 1, blocks.FREE // 10) == 10 and sizes.choose("train", 100, 1, blocks.FREE) == 2
    sizes.halve("train", 24)
    assert sizes.choose("train", 100, 1, 1) == 12 and sizes.choose("evaluate", 100, 1, 1) == 25
    assert BlockSizes(torch.device("cpu"), given=50).choose("train", 20, 1, blocks.FREE) == 20


def test_a_block_that_autograd_trains_is_no_graph_after_the_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    method = FedAvg(Model(ZOO["layer norm"], classes=3), LOCAL)
    fed = Vectorised(method, tiny_population((6,) * CLIENTS), block=8)
    asked: list[object] = []
    fed.on_gpu = True  # all is there on a CPU but the capture
    fed.graphs.run = lambda key, function, inputs: asked.append(key[0]) or function(inputs)
    fed.training_graphs.graphs.warm_up = 10**9
    method.round(method.init(fed), 0, fed)
    assert asked == ["train"]
