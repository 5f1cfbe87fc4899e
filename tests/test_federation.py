from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch

from kinfed.aggregation import Mean
from kinfed.client import Reply, client_task
from kinfed.data import Change, Role
from kinfed.engines import Sequential, Vectorised
from kinfed.errors import ConfigError, NetworkError
from kinfed.keys import base_key, choose, uniform
from kinfed.methods import FedAvg, Local
from kinfed.metrics.dry_runs import dry_run
from kinfed.ranges import Range
from kinfed.replies import EXCLUDED, Offer, Rejected
from kinfed.training import LocalTraining
from tests.problems import ENGINES, assert_close, fit, small_net, tiny_population


@dataclass(frozen=True)
class Probe:
    """Tasks that show what a client sees."""

    odd: float = torch.nan  # what a sick client answers

    def initial_memory(self):
        return {"seen": torch.tensor(0)}

    @client_task
    def look(self, client, number: torch.Tensor = None) -> Reply:
        seen = client.recall("seen") + 1
        return Reply(
            {"key": client.key.clone(), "size": client.train.size.clone(), "seen": seen, "since": client.since.clone()},
            keep={"seen": seen},
        )

    @client_task
    def look_again(self, client) -> Reply:
        return Reply({"key": client.key.clone()})

    @client_task
    def sick(self, client) -> Reply:
        value = torch.where(client.train.size == 23, torch.tensor([1.0, self.odd]), torch.ones(2))
        return Reply({"value": value, "count": client.train.size.clone()})

    @client_task(ranges={"part": Range(0, lambda facts: facts.train - 1)})
    def choose_sample(self, client) -> Reply:
        return Reply({"part": torch.where(client.train.size == 23, 23, 5)}, keep={"seen": client.recall("seen") + 1})


def probe(engine, **settings):
    return engine(Probe(), tiny_population(), **settings)


@pytest.mark.parametrize("engine", ENGINES)
def test_replies_come_in_the_order_of_the_cohort(engine):
    fed = probe(engine)
    cohort = torch.tensor([4, 1, 3])
    assert fed.run(fed.method.look, cohort)["size"].tolist() == [9, 23, 31]


@pytest.mark.parametrize("engine", ENGINES)
def test_keys_are_fixed_by_seed_task_call_and_client(engine):
    fed, twin, other = probe(engine), probe(engine), probe(engine, seed=1)
    all_of_them = fed.clients
    first = fed.run(fed.method.look, all_of_them)["key"]
    twin.run(twin.method.look_again, all_of_them)  # another task in between changes nothing
    assert torch.equal(twin.run(twin.method.look, all_of_them.flip(0))["key"].flip(0), first)
    assert len(set(first.tolist()) | set(other.run(other.method.look, all_of_them)["key"].tolist())) == 12
    assert not torch.equal(fed.run(fed.method.look, all_of_them)["key"], first)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_remembers_what_it_kept(engine):
    fed = probe(engine)
    fed.run(fed.method.look, torch.tensor([0, 2]))
    assert fed.run(fed.method.look, fed.clients)["seen"].tolist() == [2, 1, 2, 1, 1, 1]


@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_reply_that_is_not_finite_is_left_out_and_noted(engine, odd):
    fed = engine(Probe(odd), tiny_population())
    fed.begin(4)
    replies = fed.run(fed.method.sick, fed.clients)
    assert replies.cohort.tolist() == [0, 2, 3, 4, 5]
    assert replies["count"].tolist() == [7, 12, 31, 9, 18]
    assert fed.rejected == [(4, "sick", 1, "not finite")]


@pytest.mark.parametrize("engine", ENGINES)
def test_replies_of_which_none_can_be_used_are_named_once_with_the_reason(engine, caplog):
    fed = engine(Probe(), tiny_population())
    fed.begin(4)
    for _ in range(2):
        fed.run(fed.method.sick, torch.tensor([1]))
    (said,) = caplog.messages
    assert said.startswith("round 5: no reply to 'sick' could be used (not finite: 1); weights have diverged")


@pytest.mark.parametrize("engine", ENGINES)
def test_bytes_are_counted_per_task_client_and_round(engine):
    fed = probe(engine)
    fed.run(fed.method.look, torch.tensor([1, 3]), Offer(shared={"number": torch.zeros(10)}))
    fed.begin(1)
    fed.run(fed.method.look_again, torch.tensor([3]))
    assert fed.ledger.down["look"].tolist() == [0, 40, 0, 40, 0, 0]
    assert fed.ledger.up["look"].tolist() == [0, 32, 0, 32, 0, 0]  # four int64
    assert fed.ledger.up["look_again"].tolist() == [0, 0, 0, 8, 0, 0]
    assert fed.ledger.rounds == [(0, "look", 2, 80, 64), (1, "look_again", 1, 0, 8)]
    assert fed.ledger.total() == 152 and fed.ledger.total(without=("look",)) == 8


def test_each_row_of_an_offer_goes_to_the_client_it_is_for():
    @dataclass(frozen=True)
    class Echo:
        @client_task
        def echo(self, client, word: torch.Tensor) -> Reply:
            return Reply({"word": word.clone()})

    table = torch.tensor([10.0, 20.0, 30.0])
    for engine in ENGINES:
        fed = engine(Echo(), tiny_population())
        task = fed.method.echo
        assert fed.run(task, torch.tensor([5, 0, 2]), Offer(each={"word": table}))["word"].tolist() == [10, 20, 30]
        picked = Offer(each={"word": table}, pick=torch.tensor([2, 2, 0]))
        assert fed.run(task, torch.tensor([5, 0, 2]), picked)["word"].tolist() == [30, 30, 10]
        assert fed.ledger.down["echo"].tolist() == [8, 0, 8, 0, 0, 8]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_task_without_a_mark_is_refused(engine):
    class Unmarked(Probe):
        def look_again(self, client) -> Reply:
            return Reply({})

    fed = engine(Unmarked(), tiny_population())
    with pytest.raises(ConfigError, match="'look_again' is no client task: mark it with @client_task"):
        fed.run(fed.method.look_again, fed.clients)


def test_a_task_without_annotations_is_refused_where_it_is_defined():
    with pytest.raises(ConfigError, match=r"client task '.*\.train': annotate 'params' as Params"):

        class Bare:
            @client_task
            def train(self, client, params) -> Reply:
                return Reply({})


def test_a_sample_is_seeded_sorted_and_of_the_asked_size():
    fed, twin = (probe(Sequential, fraction=0.5, seed=3) for _ in range(2))
    drawn = [fed.sample().tolist() for _ in range(40)]
    assert drawn == [twin.sample().tolist() for _ in range(40)]
    assert all(len(set(d)) == 3 and d == sorted(d) for d in drawn)
    assert {client for d in drawn for client in d} == set(range(6))
    assert len(probe(Sequential, fraction=0.01).sample()) == 1


@pytest.mark.parametrize(("count", "wanted"), [(5, 2), (7, 7), (40_000, 300)])
def test_a_sample_has_the_least_uniform_numbers_and_the_first_of_equals(count, wanted):
    key = torch.tensor(base_key(count))
    order = uniform(key, count).argsort(stable=True)  # 24 bits: some of 40,000 numbers are equal
    assert choose(key, count, wanted).equal(order[:wanted].sort().values)


def test_clients_and_weights_are_listed_anew_only_when_somebody_comes_or_goes():
    roles = (Role(), Role(joins=2), Role(leaves=4), Role())
    fed = Vectorised(FedAvg(small_net()), replace(tiny_population((4, 5, 6, 7)), roles=roles))
    fed.aggregation, seen = Mean(sample_cap=1), []
    for t in range(5):
        fed.begin(t)
        seen.append((fed.clients, fed.present, fed.weights))
    assert [clients.tolist() for clients, *_ in seen] == [[0, 2, 3]] * 2 + [[0, 1, 2, 3]] * 2 + [[0, 1, 3]]
    assert [len({id(t) for t in seen}) for seen in zip(*seen, strict=True)] == [3, 3, 3]
    assert [weights.tolist() for *_, weights in seen[:2]] == [[4, 5, 6, 6]] * 2  # capped by the median of 4, 6 and 7
    fed.is_over = True
    assert fed.clients.tolist() == [0, 1, 3]
    fed.aggregation = Mean(sample_cap=0)
    assert fed.weights.tolist() == [4, 5, 6, 7]


def test_what_clients_remember_is_changed_in_place_but_in_a_dry_run():
    method = Local(small_net(), LocalTraining(1, 5, 0.1))
    fed = Vectorised(method, tiny_population())
    run = partial(fed.run, method.train, torch.tensor([1]))
    run()
    (name, memory), *_ = fed.memory.items()
    before = memory.clone()
    with dry_run(fed):
        run()
        assert not fed.memory[name].equal(before)
    assert fed.memory[name] is memory and memory.equal(before)
    run()
    assert fed.memory[name] is memory and not memory[1].equal(before[1]) and memory[0].equal(before[0])


def test_a_sample_can_be_drawn_from_some():
    fed, twin = (probe(Sequential, fraction=0.5) for _ in range(2))
    some = torch.tensor([1, 2, 4, 5])
    drawn = fed.sample_from(some)
    assert len(drawn) == 2 and torch.isin(drawn, some).all() and drawn.tolist() == sorted(drawn.tolist())
    assert len(fed.sample_from(some[:1])) == 1
    assert twin.sample_from(twin.clients).tolist() == probe(Sequential, fraction=0.5).sample().tolist()


def test_roles_decide_who_trains_and_who_is_served():
    roles = (Role(), Role(holdout=True), Role(joins=3), Role(labelled=False), Role(), Role())
    fed = Sequential(Probe(), tiny_population(roles=roles))
    assert fed.clients.tolist() == [0, 4, 5] and fed.present.tolist() == [0, 1, 3, 4, 5]
    fed.begin(3)
    assert fed.clients.tolist() == [0, 2, 4, 5] and fed.everyone.tolist() == list(range(6))


def test_changed_clients_hold_their_new_rows_from_that_round_on():
    population = tiny_population()
    change = Change(2, torch.tensor([0]), (population.train[1],), (population.test[1],), torch.tensor([1]))
    fed = Sequential(Probe(), tiny_population(changes=(change,)))
    fed.begin(1)
    assert fed.sizes[0] == 7
    fed.begin(2)
    assert fed.sizes[0] == 23 and fed.true_clusters.tolist() == [1, 1, 0, 1, 0, 1]
    assert fed.run(fed.method.look, fed.clients)["since"].tolist() == [2, 0, 0, 0, 0, 0]


def test_of_several_changes_the_latest_counts_however_they_are_listed():
    population = tiny_population()
    late, early = (
        Change(round, torch.tensor([0]), (population.train[i],), (population.test[i],)) for round, i in ((4, 1), (2, 2))
    )
    fed = Sequential(Probe(), tiny_population(changes=(late, early)))
    fed.begin(5)  # as a resumed run does
    assert fed.sizes[0] == 23 and int(fed.since[0]) == 4


def test_a_fraction_outside_of_the_unit_interval_is_refused():
    with pytest.raises(ConfigError, match="fraction"):
        probe(Sequential, fraction=0.0)


def test_fedavg_moves_two_models_per_participant_and_round():
    model = small_net()
    _, fed = fit(FedAvg(model), rounds=3, fraction=0.5)
    assert fed.ledger.total(without=("evaluate",)) == 2 * 3 * 4 * model.parameters() * 3


def test_local_training_moves_nothing():
    _, fed = fit(Local(small_net()), rounds=2)
    assert fed.ledger.total(without=("evaluate",)) == 0


def test_engines_keep_equal_ledgers():
    ledgers = [fit(FedAvg(small_net()), engine, fraction=0.5)[1].ledger for engine in ENGINES]
    assert ledgers[0].rounds == ledgers[1].rounds
    assert_close(ledgers[0].up, ledgers[1].up)


def test_an_offer_to_some_of_a_cohort_has_their_rows():
    models, some = torch.tensor([10.0, 11.0, 12.0]), torch.tensor([2, 0])
    assert Offer(each={"w": models}).to(some).pick.tolist() == [2, 0]
    assert Offer(each={"w": models}, pick=torch.tensor([1, 1, 2])).to(some).pick.tolist() == [2, 1]
    assert Offer(shared={"w": models}).to(some).pick is None


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_whose_numbers_are_out_of_range_is_excluded_after_three(engine, caplog):
    fed = probe(engine)
    for _ in range(4):
        replies = fed.run(fed.method.choose_sample, fed.clients)
        assert replies.cohort.tolist() == [0, 2, 3, 4, 5] and replies["part"].tolist() == [5] * 5
    assert [(r.client, r.reason) for r in fed.rejected] == [(1, "out of range")] * 3 + [(1, "excluded")]
    assert fed.run(fed.method.look, fed.clients)["seen"].tolist() == [5] * 5  # nothing of it is kept, nor asked for
    assert not len(fed.run(fed.method.look, torch.tensor([1]))["seen"])
    assert 1 not in fed.sample().tolist() and len(caplog.messages) == 1


def test_a_run_whose_clients_are_all_excluded_says_so():
    fed = probe(ENGINES[0])
    fed.rejected += [Rejected(0, "train", client, EXCLUDED) for client in fed.clients.tolist()]
    with pytest.raises(NetworkError, match="no client is left to train: all 6 were excluded"):
        fed.sample()


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_too_large_to_be_summed_up_are_not_used(engine):
    fed = engine(Probe(odd=1e13), tiny_population())
    assert fed.run(fed.method.sick, fed.clients).cohort.tolist() == [0, 2, 3, 4, 5]
    assert [r.reason for r in fed.rejected] == ["not finite"]
