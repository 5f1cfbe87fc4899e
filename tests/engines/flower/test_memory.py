"""A client's memory stays with it, and server and client agree on its version whichever of them fails."""

import pytest
import torch

pytest.importorskip("flwr")

from kinfed import checkpoint
from kinfed.engines.flower.node import DataVersion, FolderMemory
from kinfed.engines.flower.transport import ContextMemory, read_config
from kinfed.experiment import Experiment
from tests.engines.flower.loopback import Loopback, make_flower
from tests.methods.registry import make, population
from tests.problems import assert_close, assert_same_bits, rows_of_memory


class Killed(Exception):
    """The server's process has gone."""


class KilledAfter:
    def __init__(self, rounds):
        self.rounds = rounds

    def on_start(self, rounds, done):
        pass

    def on_round(self, result):
        if result.round == self.rounds:
            raise Killed

    def on_end(self, summary):
        pass


def states(experiment):
    tensors = {}
    checkpoint.take_apart(experiment.state, "state", tensors)
    return tensors


def experiment(name, grid, rounds=5, **more):
    method = make(name)
    return Experiment.over(make_flower(method, population(), grid, fraction=0.5), rounds=rounds, **more)


def load_memories(grid, experiment):
    """The memory of every client, by client."""
    fed, memories = experiment.fed, {}
    for client, version in enumerate(fed.memory["version"].tolist()):
        home = grid.home or fed.memory_folder
        store = FolderMemory(home / fed.token / f"client-{client}") if home else ContextMemory(
            grid.contexts[100 + client].state, fed.token
        )  # fmt: skip
        memories[client] = store.load(version) if version else None
    return memories


@pytest.mark.parametrize("name", ["scaffold", "lg_fedavg", "flis_hc"])
def test_memories_are_those_of_the_vectorised_engine(name):
    grid, method = Loopback(12), make(name)
    ours = experiment(name, grid, rounds=3)
    reference = Experiment(method, population(), fraction=0.5, rounds=3)
    ours.run()
    reference.run()
    for client, memory in load_memories(grid, ours).items():
        if memory is not None:
            assert_close(memory, rows_of_memory(reference.fed, client))
    assert set(ours.fed.memory) == {"version"}  # the server has none of it


@pytest.mark.parametrize("at_home", [True, False])
def test_a_killed_server_goes_on_from_its_checkpoint_with_the_same_memories(at_home, tmp_path):
    name = "scaffold"
    home = tmp_path / "nodes" if at_home else None
    whole, grid = Loopback(12), Loopback(12, home=home)
    reference = experiment(name, whole)
    summary = reference.run()
    killed = experiment(name, grid, checkpoint=tmp_path / "saved", checkpoint_every=2, observers=[KilledAfter(3)])
    with pytest.raises(Killed):
        killed.run()  # clients have trained a third time, the checkpoint knows of two
    if at_home:
        grid.contexts.clear()
    resumed = experiment(name, grid, checkpoint=tmp_path / "saved", checkpoint_every=2)
    assert resumed.run(resume=True) == summary
    assert_same_bits(states(resumed), states(reference))
    again, before = load_memories(grid, resumed), load_memories(whole, reference)
    for client in before:
        assert_same_bits(again[client] or {}, before[client] or {})


def test_memory_saved_for_a_reply_that_was_lost_is_not_used():
    def lose(what):
        def tamper(request, reply):
            config = read_config(request)
            is_it = config.get("task") == "train" and config["round"] == 1 and config["client"] % 2
            return [] if is_it else [reply]

        return tamper if what == "reply" else None

    class Deaf(Loopback):
        """The same clients never get the requests."""

        def _deliver(self, message):
            config = read_config(message)
            if config.get("task") == "train" and config["round"] == 1 and config["client"] % 2:
                message.metadata.__dict__["_message_id"] = str(next(self.ids))
                return message.metadata.message_id
            return super()._deliver(message)

    lost, never = experiment("scaffold", Loopback(12, lose("reply"))), experiment("scaffold", Deaf(12))
    assert lost.run()["replies_no_answer"] == never.run()["replies_no_answer"] > 0
    assert_same_bits(states(lost), states(never))


def test_a_restarted_node_finds_its_memory_in_its_own_folder(tmp_path):
    class Forgetful(Loopback):
        def _deliver(self, message):
            self.contexts.clear()  # a new process for every task
            return super()._deliver(message)

    reference, ours = experiment("scaffold", Loopback(12)), experiment("scaffold", Forgetful(12, home=tmp_path))
    assert ours.run() == reference.run()
    assert_same_bits(states(ours), states(reference))
    files = list(tmp_path.rglob("*.safetensors"))
    assert files and len(files) <= 2 * 12  # the accepted version, and the one before it until the client learns of it


def test_a_client_that_lost_its_memory_begins_anew_and_that_is_counted():
    class Forgetful(Loopback):
        def _deliver(self, message):
            if read_config(message).get("round") == 3:
                self.contexts.clear()
            return super()._deliver(message)

    summary = experiment("scaffold", Forgetful(12)).run()
    assert summary["replies_forgot"] > 0 and summary["rejected_replies"] == 0


def test_a_folder_loads_only_complete_files(tmp_path):
    memory = FolderMemory(tmp_path / "deep" / "one")
    assert memory.load(3) is None
    for version in (3, 4, 5):
        memory.save(version, {"a": torch.full((2,), float(version))})
    memory.keep_only({3, 5})
    assert memory.load(4) is None and memory.load(5)["a"].tolist() == [5.0, 5.0]
    (tmp_path / "deep" / "one" / "memory-5.safetensors").write_bytes(b"half")
    assert memory.load(5) is None and memory.load(3)["a"].tolist() == [3.0, 3.0]


def test_a_folder_keeps_a_tensor_that_a_client_has_twice(tmp_path):
    memory, w = FolderMemory(tmp_path), torch.arange(4.0)
    memory.save(1, {"first": w, "best": w, "half": w[2:]})
    kept = memory.load(1)
    assert torch.equal(kept["first"], w) and torch.equal(kept["best"], w) and torch.equal(kept["half"], w[2:])


def test_new_samples_are_of_a_later_round_than_the_last_task_with_the_old_ones():
    first = DataVersion("a", 3, 0)
    assert first.advance("a", 5) == DataVersion("a", 5, 0)
    assert first.advance("b", 5) == DataVersion("b", 5, 5)
    assert first.advance("b", 3) == DataVersion("b", 3, 4)  # they changed within the round
    assert DataVersion("b", 3, 4).advance("b", 9) == DataVersion("b", 9, 4)
