"""A server that has nobody's rows: clients enrol, come back, come late, and are told apart by their names."""

from functools import partial

import pytest
import torch

pytest.importorskip("flwr")

from kinfed import checkpoint
from kinfed.capabilities import FindsClusters, reason_for_labels
from kinfed.engines.flower import Deployed, OwnRows
from kinfed.engines.flower.messages import client_app, facts_in
from kinfed.engines.flower.simulation import rows_of
from kinfed.engines.flower.site import Holding, Site
from kinfed.errors import NetworkError, RoleError
from kinfed.experiment import Experiment
from kinfed.metrics import FoundClusters
from tests.engines.flower.loopback import Loopback
from tests.methods.registry import make, population
from tests.problems import assert_close, same_clusters

PEOPLE = population()


class Town(Loopback):
    """Nodes whose config has a name, and what role the client of that name wants."""

    def __init__(self, method, people=range(12), **more):
        super().__init__(0, **more)
        self.app = client_app(partial(self.site, method), lambda context, run: self.home)
        for client in people:
            self.arrive(client)

    def arrive(self, client, node=None, **wishes):
        node = 100 + client if node is None else node
        self.online[node] = {"name": f"clinic {client:02}", "client": client, **wishes}
        return node

    @staticmethod
    def site(method, context, run):
        config = context.node_config
        rows = partial(rows_of, PEOPLE, config["client"])
        if config.get("labelled", True):
            return Site(config["name"], method, rows, holdout=config.get("holdout", False))

        def bare(round):
            x, y, *test = rows(round)
            return Holding(x, torch.full_like(y, -1), *test)

        return Site(config["name"], method, bare, labelled=False)


def served(method, town, seats=12, wait=12, known=None, **settings):
    public = PEOPLE.public
    fed = Deployed(method, OwnRows(PEOPLE.x[public], PEOPLE.y[public], 3), seats, town, **({"timeout": 0.5} | settings))
    fed.load_state_dict(known or {})
    fed.gather(wait, 5)
    return fed


@pytest.mark.parametrize("name", ["fedavg", "repa", "flis_dc"])
def test_a_server_without_rows_gives_what_one_with_all_of_them_gives(name):
    method = make(name)
    fed = served(method, Town(method), fraction=0.5)
    ours = Experiment.over(fed, rounds=3)
    reference = Experiment(method, PEOPLE, fraction=0.5, rounds=3)
    summary, wanted = ours.run(), reference.run()
    assert fed.sizes.tolist() == [len(rows) for rows in PEOPLE.train] and not fed.sees_samples
    assert summary["accuracy"] == pytest.approx(wanted["accuracy"], abs=1e-5)
    assert fed.ledger.rounds == reference.fed.ledger.rounds
    if isinstance(method, FindsClusters):
        assert torch.equal(method.cluster_assignment(ours.state), method.cluster_assignment(reference.state))
        found = FoundClusters.by(method, ours.state, fed)
        assert found.labels is None and "uniformity" not in summary and "clustering_error" not in summary
    assert summary["standard_error"] == pytest.approx(wanted["standard_error"])  # each row is one client's


class Later:
    """Clients who arrive, or go, when a round is over."""

    def __init__(self, events):
        self.events, self.seen = events, []

    def on_start(self, rounds, done):
        pass

    def on_round(self, result):
        self.seen.append(result)
        self.events.get(result.round, lambda: None)()

    def on_end(self, summary):
        pass


@pytest.mark.parametrize("name", ["flt", "repa"])
def test_who_comes_late_is_placed_with_its_kin_and_trains(name):
    method = make(name)
    town = Town(method, people=range(10))
    watch = Later({1: lambda: town.arrive(10), 2: lambda: town.arrive(11, holdout=True)})
    fed = served(method, town, wait=10)
    assert fed.clients.tolist() == list(range(10)) and fed.present.tolist() == list(range(10))
    experiment = Experiment.over(fed, rounds=6, observers=[watch])
    experiment.run()
    assert fed.roles[10].joins == 2 and fed.roles[11].holdout  # asked in round 1, there in the next
    assert same_clusters(method.cluster_assignment(experiment.state), PEOPLE.true_clusters)
    assert fed.ledger.up["train"][10] > 0 and fed.ledger.up["train"][11] == 0
    assert fed.ledger.up["evaluate"][11] > 0


def test_who_comes_back_as_another_node_is_the_same_client():
    method = make("scaffold")
    town = Town(method)
    watch = Later({1: lambda: town.online.pop(103), 3: lambda: town.arrive(3, node=777)})
    fed = served(method, town)
    summary = Experiment.over(fed, rounds=6, observers=[watch]).run()
    assert fed.nodes[3] == 777 and fed.roster[3].name == "clinic 03" and len(fed.roster) == 12
    assert summary["replies_no_answer"] > 0
    assert fed.ledger.rounds[-1][2] == 12  # all are evaluated again


def test_a_second_node_of_a_name_that_is_connected_is_not_let_in():
    method = make("fedavg")
    town = Town(method)
    fed = served(method, town)
    town.arrive(3, node=777)
    fed.begin(1)
    fed.begin(2)
    assert fed.nodes[3] == 103 and 777 not in fed.nodes.values()


def test_there_are_no_more_clients_than_seats():
    method = make("fedavg")
    fed = served(method, Town(method), seats=4, wait=4)
    fed.begin(1)
    assert sorted(fed.nodes) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["flt", "repa"])
def test_nobody_is_looked_for_in_an_empty_seat(name):
    method = make(name)
    fed = served(method, Town(method), seats=14)
    Experiment.over(fed, rounds=2).run()
    assert not fed.rejected and fed.present.tolist() == fed.real.tolist() == list(range(12))


def test_a_client_without_labels_gets_a_model_or_a_reason():
    for name in ("flt", "ifca"):
        method = make(name)
        town = Town(method, people=range(11))
        town.arrive(11, labelled=False)
        fed = served(method, town)
        if reason_for_labels(method):
            with pytest.raises(RoleError, match=r"\[11\] have no labelled training rows"):
                Experiment.over(fed, rounds=2)
        else:
            Experiment.over(fed, rounds=2).run()
            assert fed.ledger.up["evaluate"][11] > 0 and fed.ledger.up["train"][11] == 0


def test_a_restarted_server_knows_its_clients_again(tmp_path):
    method = make("scaffold")
    town = Town(method, home=tmp_path)
    whole = Experiment.over(served(method, Town(method, home=tmp_path / "other"), fraction=0.5), rounds=4)
    summary = whole.run()
    first = Experiment.over(
        served(method, town, fraction=0.5), rounds=2, checkpoint=tmp_path / "saved", checkpoint_every=2
    )
    first.run()
    town.online = {900 - node: config for node, config in town.online.items()}  # other nodes, in another order
    fed = served(method, town, fraction=0.5, known=checkpoint.read_engine_state(tmp_path / "saved"))
    resumed = Experiment.over(fed, rounds=4, checkpoint=tmp_path / "saved")
    assert fed.roster == first.fed.roster and fed.nodes[0] == 800
    assert resumed.run(resume=True) == summary
    assert_close(resumed.state.params, whole.state.params)


def test_too_few_clients_are_an_error_that_says_how_many_came():
    method = make("fedavg")
    with pytest.raises(NetworkError, match="3 of 5 clients came"):
        fed = Deployed(method, OwnRows(PEOPLE.x[:0], PEOPLE.y[:0], 3), 5, Town(method, people=range(3)))
        fed.gather(5, 0.2)


def test_what_enrolment_tells_is_no_row_and_no_label():
    heard = []

    def listen(letter, answer):
        heard.append((dict(facts_in(answer)), answer.content.array_records))
        return [answer]

    method = make("fedavg")
    served(method, Town(method, meddle=listen))
    assert all(set(facts) == {"name", "number", "train", "test", "labelled", "holdout"} for facts, _ in heard)
    assert not any(records["arrays"] for _, records in heard)


@pytest.mark.parametrize("name", ["flt", "repa"])
def test_a_newcomer_that_does_not_answer_stops_nobody(name):
    def meddle(letter, answer):
        facts = facts_in(letter)
        return [] if facts.get("client") == 11 and facts["task"] not in ("evaluate", "train") else [answer]

    method = make(name)
    town = Town(method, people=range(11), meddle=meddle)
    watch = Later({1: lambda: town.arrive(11)})
    fed = served(method, town, wait=11, timeout=0.2)
    summary = Experiment.over(fed, rounds=4, observers=[watch]).run()
    assert summary["replies_no_answer"] > 0 and 11 in fed.roster
