"""What clients remember stays with them, and both sides agree on it whatever happens to one of them."""

import pytest
import torch

pytest.importorskip("flwr")

from kinfed import checkpoint
from kinfed.engines.flower.memory import InFolder, Seen
from kinfed.engines.flower.messages import InContext, facts_in
from kinfed.experiment import Experiment
from tests.engines.flower.loopback import Loopback, wired
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
    return Experiment.over(wired(method, population(), grid, fraction=0.5), rounds=rounds, **more)


def remembered(grid, experiment):
    """What all clients remember, by client."""
    fed, memories = experiment.fed, {}
    for client, version in enumerate(fed.memory["version"].tolist()):
        home = grid.home or fed.home
        store = InFolder(home / fed.token / f"client-{client}") if home else InContext(
            grid.contexts[100 + client].state, fed.token
        )  # fmt: skip
        memories[client] = store.recall(version) if version else None
    return memories


@pytest.mark.parametrize("name", ["scaffold", "lg_fedavg", "flis_hc"])
def test_memories_are_those_of_the_vectorised_engine(name):
    grid, method = Loopback(12), make(name)
    ours = experiment(name, grid, rounds=3)
    reference = Experiment(method, population(), fraction=0.5, rounds=3)
    ours.run()
    reference.run()
    for client, memory in remembered(grid, ours).items():
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
    again, before = remembered(grid, resumed), remembered(whole, reference)
    for client in before:
        assert_same_bits(again[client] or {}, before[client] or {})


def test_what_a_client_kept_for_a_reply_that_never_came_is_not_gone_on_from():
    def lose(what):
        def meddle(letter, answer):
            facts = facts_in(letter)
            is_it = facts.get("task") == "train" and facts["round"] == 1 and facts["client"] % 2
            return [] if is_it else [answer]

        return meddle if what == "answer" else None

    class Deaf(Loopback):
        """The same clients never get the letters."""

        def _deliver(self, message):
            facts = facts_in(message)
            if facts.get("task") == "train" and facts["round"] == 1 and facts["client"] % 2:
                message.metadata.__dict__["_message_id"] = str(next(self.ids))
                return message.metadata.message_id
            return super()._deliver(message)

    lost, never = experiment("scaffold", Loopback(12, lose("answer"))), experiment("scaffold", Deaf(12))
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
    assert files and len(files) <= 2 * 12  # the accepted one, and the one before it until the client hears of that


def test_a_client_that_lost_its_memory_begins_anew_and_that_is_counted():
    class Forgetful(Loopback):
        def _deliver(self, message):
            if facts_in(message).get("round") == 3:
                self.contexts.clear()
            return super()._deliver(message)

    summary = experiment("scaffold", Forgetful(12)).run()
    assert summary["replies_forgot"] > 0 and summary["rejected_replies"] == 0


def test_a_folder_keeps_what_is_whole(tmp_path):
    memory = InFolder(tmp_path / "deep" / "one")
    assert memory.recall(3) is None
    for version in (3, 4, 5):
        memory.keep(version, {"a": torch.full((2,), float(version))})
    memory.forget_but({3, 5})
    assert memory.recall(4) is None and memory.recall(5)["a"].tolist() == [5.0, 5.0]
    (tmp_path / "deep" / "one" / "memory-5.safetensors").write_bytes(b"half")
    assert memory.recall(5) is None and memory.recall(3)["a"].tolist() == [3.0, 3.0]


def test_rows_are_of_a_later_round_than_the_last_task_that_had_others():
    first = Seen("a", 3, 0)
    assert first.again("a", 5) == Seen("a", 5, 0)
    assert first.again("b", 5) == Seen("b", 5, 5)
    assert first.again("b", 3) == Seen("b", 3, 4)  # they changed within the round
    assert Seen("b", 3, 4).again("b", 9) == Seen("b", 9, 4)
