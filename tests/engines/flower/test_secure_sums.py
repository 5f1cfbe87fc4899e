"""Secure aggregation: the same models as without it, also when a client drops out, and no client's model is seen."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Message

from kinfed.aggregation import MEAN, Median
from kinfed.client_tasks import compute_update
from kinfed.engines import Vectorised
from kinfed.engines.flower.messages import RefusedRequest, pack, unpack
from kinfed.engines.flower.network_federation import NetworkFederation
from kinfed.engines.flower.secure_sums import (
    KEY,
    NEIGHBOURS,
    SCALE,
    SEALED,
    SHARE,
    TOO_FEW,
    SumSession,
    count_needed,
    create_shares,
    find_peers,
    quantise,
    try_combine,
)
from kinfed.engines.flower.transport import read_arrays, read_config, to_records
from kinfed.errors import ConfigError, NetworkError
from kinfed.experiment import Evaluation, Experiment
from kinfed.methods import METHODS, FedAvg
from kinfed.privacy import Privacy
from kinfed.training import LocalTraining
from tests.engines.flower.loopback import Loopback, make_flower
from tests.engines.flower.test_deployed import NamedNodes, make_server
from tests.methods.registry import make, population
from tests.problems import assert_close, small_net, tiny_population

SECURE = Privacy(secure_aggregation=True, min_cluster=2)
FEDAVG = FedAvg(small_net(), LocalTraining(epochs=1, batch_size=5, lr=0.05))
PEOPLE = tiny_population((7, 23, 12, 31))


class Transcript(Loopback):
    """A grid that writes down all that the server receives, and loses the replies of one client to some tasks."""

    def __init__(self, nodes, silent=-1, at=()):
        super().__init__(nodes, tamper=self.note)
        self.received, self.silent, self.at = [], silent, at

    def note(self, request, reply):
        config = read_config(request)
        if config.get("client") == self.silent and config.get("task") in self.at:
            return []
        self.received.append((config.get("task"), config.get("client"), unpack(read_arrays(reply))))
        return [reply]


def run(method, people, privacy=SECURE, rounds=2, grid=None, **settings):
    """The experiment after some rounds over this grid."""
    fed = make_flower(method, people, grid or Transcript(len(people.train)), **settings)
    fed.privacy = privacy
    experiment = Experiment.over(fed, rounds=rounds, evaluation=Evaluation(every=rounds))
    experiment.run()
    return experiment


def models_of(state):
    """Whatever weights a state serves."""
    for name in ("params", "shared", "models"):
        if hasattr(state, name):
            return getattr(state, name)
    return state.served.models


@pytest.mark.parametrize(
    "name, settings",
    [
        ("fedavg", {}),
        ("fednova", {}),
        ("fedper", {}),
        ("ifca", {}),
        ("pca_km_hc", {"clusters": 2}),
        pytest.param("repa", {}, marks=pytest.mark.on_demand),
        pytest.param("fedem", {}, marks=pytest.mark.on_demand),
        pytest.param("fedrc", {}, marks=pytest.mark.on_demand),
    ],
)
def test_models_are_those_without_it(name, settings):
    method, people = make(name, **settings), population() if name in ("pca_km_hc", "repa") else PEOPLE
    plain, secure = (run(method, people, privacy).state for privacy in (Privacy(), SECURE))
    assert_close(models_of(secure), models_of(plain), atol=1e-6)


class SecretiveNodes(NamedNodes):
    """Nodes of a deployment that show no model."""

    @staticmethod
    def load_node(method, context, run):
        return replace(NamedNodes.load_node(method, context, run), privacy=SECURE)


def test_a_deployed_server_gets_sums_too():
    runs = []
    for kind, privacy in ((NamedNodes, Privacy()), (SecretiveNodes, SECURE)):
        fed = make_server(FEDAVG, kind(FEDAVG, range(4)), 4, 4)
        fed.privacy, fed.aggregation = privacy, MEAN
        runs.append(Experiment.over(fed, rounds=1))
        runs[-1].run()
    assert_close(models_of(runs[1].state), models_of(runs[0].state), atol=1e-6)


@pytest.mark.parametrize("stage", ["train", "share_keys", "mask"])
def test_a_client_that_drops_out_is_left_out_of_the_sum(stage):
    secure = run(FEDAVG, PEOPLE, grid=Transcript(4, silent=2, at=(stage,)), rounds=1)
    plain = run(FEDAVG, PEOPLE, Privacy(), grid=Transcript(4, silent=2, at=("train",)), rounds=1)
    assert_close(models_of(secure.state), models_of(plain.state), atol=1e-6)


def test_a_client_that_drops_out_at_the_end_is_summed():
    secure = run(FEDAVG, PEOPLE, grid=Transcript(4, silent=2, at=("unmask",)), rounds=1)
    assert_close(models_of(secure.state), models_of(run(FEDAVG, PEOPLE, Privacy(), rounds=1).state), atol=1e-6)


def test_the_server_receives_no_single_update():
    grid, plain = Transcript(4), Transcript(4)
    run(FEDAVG, PEOPLE, grid=grid, rounds=1)
    run(FEDAVG, PEOPLE, Privacy(), grid=plain, rounds=1)
    names = {task: set(tensors) for task, _, tensors in grid.received}
    assert names == {
        None: set(),  # enrolment
        "train": {"public_keys"},
        "share_keys": {"sealed"},
        "mask": {"masked"},
        "unmask": {"shares"},
        "evaluate": {"metric", "samples", "loss"},
        "evaluate_all": {"values", "known"},
    }
    own = {c: quantise(t, len(PEOPLE.train[c])) for task, c, t in plain.received if task == "train"}
    masked = {client: t["masked"] for task, client, t in grid.received if task == "mask"}
    assert own.keys() == masked.keys() == {0, 1, 2, 3}
    for client, vector in masked.items():
        assert not (vector == own[client]).any()
        for other in masked.keys() - {client}:  # nor does a difference of two cancel their masks
            assert not (vector - masked[other] == own[client] - own[other]).any()
    share = torch.stack([vector.double() / 2**63 for vector in masked.values()])
    assert abs(float(share.mean())) < 0.05 and abs(float(share.std()) - 3**-0.5) < 0.02  # uniform in [-1, 1)


def test_a_client_opens_one_kind_of_share_of_each_neighbour():
    people, sessions, public = range(3), {}, {}
    for client in people:
        held, public[client] = SumSession.begin({"w": torch.tensor([float(client)])}, 10)
        sessions[client] = SumSession(held, client, 2)
    sealed, near = {}, find_peers([*people])
    for client in people:
        keys = torch.stack([public[peer] for peer in near[client]])
        held, send = sessions[client].share_keys({"peers": torch.tensor(near[client]), "keys": keys})
        sessions[client], sealed[client] = SumSession(held, client, 2), send["sealed"]
    everyone = torch.ones(2, dtype=torch.bool)
    for client in people:
        delivered = torch.stack([sealed[peer][near[peer].index(client)] for peer in near[client]])
        held, _ = sessions[client].mask({"sealed": delivered, "shared": everyone})
        sessions[client] = SumSession(held, client, 2)
    opened = sessions[0].unmask({"came": everyone})[1]["shares"]
    assert opened.shape == (3, SHARE) and delivered.shape == (2, SEALED)
    assert torch.equal(opened[:2], sessions[0].held["shares"][:, :SHARE])  # of seeds, and never both kinds
    one_left = torch.tensor([True, False])
    opened = sessions[0].unmask({"came": one_left})[1]["shares"]
    assert torch.equal(opened[1], sessions[0].held["shares"][1, SHARE:])


def begin_sum(grid):
    """A federation after one round."""
    return run(FEDAVG, PEOPLE, grid=grid, rounds=1).fed


def test_a_sum_is_opened_once():
    grid = Transcript(4)
    fed = begin_sum(grid)
    request = next(m for m in grid.sent if read_config(m).get("task") == "unmask")
    grid.back = []
    grid._deliver(request)
    assert "refusal" in read_config(grid.back[0]) and fed.count == 4


@pytest.mark.parametrize("name", ["accepted", "durable"])
def test_a_server_cannot_make_clients_keep_what_opens_a_sum(name, monkeypatch):
    honest = NetworkFederation._request_config

    def keep_secrets(fed, client, key):  # the first task is call 1, and its secrets are version -1
        return {**honest(fed, client, key), **({name: -1} if fed.task[0] == "unmask" else {})}

    monkeypatch.setattr(NetworkFederation, "_request_config", keep_secrets)
    fed = begin_sum(Transcript(4))
    assert [r.reason for r in fed.rejected if r.task == "unmask"] == ["refused"] * 4


def test_a_client_refuses_what_would_show_its_model():
    fed = begin_sum(Transcript(4))
    replies = fed.run(compute_update, fed.clients, FEDAVG.offer(FEDAVG.init(fed), fed.clients, fed))
    assert not len(replies.cohort)
    assert [r.reason for r in fed.rejected if r.task == "compute_update"] == ["refused"] * 4


def tamper(name, change, last_round=99):
    """A grid on which client 1 sends something else as the field `name`."""

    def lie(request, reply):
        config, tensors = dict(read_config(reply)), unpack(read_arrays(reply))
        if name not in tensors or config["client"] != 1 or read_config(request)["round"] > last_round:
            return [reply]
        return [Message(to_records(config, pack({name: change(tensors[name])})), reply_to=request)]

    return Loopback(4, tamper=lie)


def test_a_client_that_lies_spoils_the_sum_and_no_model(caplog):
    grid = tamper("masked", lambda vector: vector // 3)
    assert_close(models_of(run(FEDAVG, PEOPLE, grid=grid, rounds=1).state), FEDAVG.model.init())
    assert "is not of the samples that they have" in caplog.text


def push(vector, size):
    """A vector of the same number of samples and other weights."""
    return vector + torch.cat([torch.full((len(vector) - 1,), size), torch.zeros(1, dtype=torch.long)])


@pytest.mark.on_demand
def test_one_lie_of_the_right_samples_stays_in_the_model():  # docs/security.md says so
    found = [
        run(FEDAVG, PEOPLE, grid=tamper("masked", lambda v, by=by: push(v, by), 0), rounds=20).summary()["accuracy"]
        for by in (0, 2**16 * int(SCALE))
    ]
    assert found[0] == 1.0 and found[1] == pytest.approx(0.349, abs=0.001)
    with pytest.raises(NetworkError, match="too large to be summed"):
        run(FEDAVG, PEOPLE, grid=tamper("masked", lambda v: push(v, 2**31 * int(SCALE)), 0), rounds=20)


def test_damaged_shares_of_one_client_are_left_out(caplog):
    secure = run(FEDAVG, PEOPLE, grid=tamper("shares", lambda shares: shares // 3), rounds=1)
    assert_close(models_of(secure.state), models_of(run(FEDAVG, PEOPLE, Privacy(), rounds=1).state), atol=1e-6)
    assert "a share of client 0 that client 1 opened is damaged" in caplog.text


def test_a_client_whose_public_keys_nobody_can_use_is_left_out_of_the_sum_and_then_excluded(caplog):
    secure = run(FEDAVG, PEOPLE, grid=tamper("public_keys", torch.zeros_like), rounds=4)
    plain = run(FEDAVG, PEOPLE, Privacy(), grid=Transcript(4, silent=1, at=("train",)), rounds=4)
    assert_close(models_of(secure.state), models_of(plain.state), atol=1e-6)
    assert secure.summary()["replies_out_of_range"] == 3 and secure.fed.excluded == {1}
    assert "client 1 sent a public key that nobody can use" in caplog.text


def seal_damaged(monkeypatch, whose, peers=(0, 1, 2, 3)):
    """Lets one client seal damaged shares for some neighbours."""
    seal = SumSession.seal

    def damage(self, peer, public, shares):
        is_damaged = self.client == whose and peer in peers
        return seal(self, peer, public, bytes(255 - byte for byte in shares) if is_damaged else shares)

    monkeypatch.setattr(SumSession, "seal", damage)


@pytest.mark.parametrize("kind", ["nobody can open them", "they do not fit"])
def test_a_client_that_seals_damaged_shares_is_excluded(kind, monkeypatch, caplog):
    grid = tamper("sealed", lambda sealed: sealed // 3) if kind == "nobody can open them" else None
    if grid is None:
        seal_damaged(monkeypatch, 1)
    secure = run(FEDAVG, PEOPLE, grid=grid, rounds=4)
    assert secure.summary()["replies_out_of_range"] == 3 and secure.fed.excluded == {1}
    unsummed = [(entry.round, entry.client) for entry in secure.fed.rejected if entry.reason == TOO_FEW]
    assert unsummed == [(round, client) for round in range(3) for client in range(4)]  # in the last round three are
    first = FEDAVG.model.init()
    assert any(not torch.equal(w, first[name]) for name, w in models_of(secure.state).items())
    assert "shares of client 1 are damaged" in caplog.text


def test_shares_of_what_is_no_key_are_damaged():
    shares = create_shares(bytes(KEY), 3, 4)
    assert try_combine(shares) == bytes(KEY) and len(create_shares(bytes(47), 3, 4)[0]) == len(shares[0])
    assert try_combine(create_shares(bytes(47), 3, 4)) is None  # it would be no AES key, and end the run


def test_one_damaged_share_for_a_neighbour_is_left_out(monkeypatch):
    seal_damaged(monkeypatch, 1, peers=(2,))
    secure = run(FEDAVG, PEOPLE, rounds=1)
    assert_close(models_of(secure.state), models_of(run(FEDAVG, PEOPLE, Privacy(), rounds=1).state), atol=1e-6)
    assert not [entry for entry in secure.fed.rejected if entry.is_offence]


def test_nobody_is_blamed_where_shares_of_several_clients_are_damaged():
    def lie(request, reply):
        config, tensors = dict(read_config(reply)), unpack(read_arrays(reply))
        if "shares" not in tensors or config["client"] > 1:
            return [reply]
        return [Message(to_records(config, pack({"shares": tensors["shares"] // 3})), reply_to=request)]

    fed = run(FEDAVG, PEOPLE, grid=Loopback(4, tamper=lie), rounds=1).fed
    assert [entry.reason for entry in fed.rejected] == [TOO_FEW] * 4


def test_a_run_goes_on_after_rounds_without_a_sum_and_ends_after_five():
    everyone_silent = Loopback(4, tamper=lambda q, r: [] if read_config(q).get("task") == "share_keys" else [r])
    short = Evaluation(every=9)
    for rounds in (4, 5):
        fed = make_flower(FEDAVG, PEOPLE, everyone_silent)
        fed.privacy = SECURE
        experiment = Experiment.over(fed, rounds=rounds, evaluation=short)
        if rounds < 5:
            experiment.run()
            assert_close(models_of(experiment.state), FEDAVG.model.init())
        else:
            with pytest.raises(NetworkError, match="no secure sum of 5 tasks in a row"):
                experiment.run()


def test_too_few_clients_are_not_summed():
    experiment = run(FEDAVG, PEOPLE, Privacy(secure_aggregation=True, min_cluster=5), rounds=1)
    assert_close(models_of(experiment.state), FEDAVG.model.init())
    assert experiment.summary()["replies_too_few_to_sum"] == 4 and TOO_FEW == "too few to sum"


def test_a_client_does_not_believe_a_server_that_wants_a_sum_of_few():
    held, _ = SumSession.begin({"w": torch.zeros(1)}, 1)
    _, other = SumSession.begin({"w": torch.zeros(1)}, 1)
    with pytest.raises(RefusedRequest, match="2 clients, wanted 3"):
        SumSession(held, 0, 3).share_keys({"peers": torch.tensor([1]), "keys": other[None]})


def test_numbers_that_do_not_fit_are_refused():
    for wrong in (torch.nan, torch.inf, 1e9):
        with pytest.raises(RefusedRequest):
            quantise({"w": torch.tensor([wrong])}, 1)


def test_fixed_point_holds_samples_times_weights_and_the_samples():
    assert quantise({"w": torch.tensor([0.5, -2.0])}, 3).tolist() == [1.5 * SCALE, -6 * SCALE, 3 * SCALE]


def test_neighbours_are_mutual_and_bounded():
    peers = find_peers(range(100))
    assert all(len(near) == NEIGHBOURS and client not in near for client, near in peers.items())
    assert all(client in peers[other] for client, near in peers.items() for other in near)
    assert {client: set(near) for client, near in find_peers([4, 7, 9]).items()} == {4: {7, 9}, 7: {4, 9}, 9: {4, 7}}


def test_more_than_half_of_the_shares_are_needed():
    assert [count_needed(shares) for shares in (2, 3, 4, 33)] == [2, 2, 3, 17]


SUMMED = {"fedavg", "fedavg_ft", "fedprox", "fednova", "fedper", "lg_fedavg", "per_fedavg", "flt", "pca_km_hc", "repa",
          "ifca", "ditto", "apfl", "pfedme", "fedala", "fedrep", "fedbabu", "fedbn", "clove",
          "feddrift", "oracle", "pacfl", "flux", "fedem", "fedrc"}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_need_more_than_sums_say_so_in_one_line(name):
    fed = make_flower(make(name), population(), Transcript(12))
    fed.privacy = SECURE
    if name in SUMMED:
        Experiment.over(fed, rounds=3)
        return
    with pytest.raises(ConfigError, match="needs more than sums over clients") as error:
        Experiment.over(fed, rounds=3)
    assert "\n" not in str(error.value)


def test_engines_of_one_process_refuse_it():
    fed = Vectorised(FEDAVG, PEOPLE)
    fed.privacy = SECURE
    with pytest.raises(ConfigError, match=r"engine.name = 'flower'"):
        Experiment.over(fed, rounds=1)


def test_rules_that_compare_updates_are_refused():
    fed = make_flower(FEDAVG, PEOPLE, Transcript(4))
    fed.privacy, fed.aggregation = SECURE, Median()
    with pytest.raises(ConfigError, match=r"set aggregation.name = 'mean'"):
        Experiment.over(fed, rounds=1)


def test_metrics_that_ask_for_updates_are_refused():
    fed = make_flower(FEDAVG, PEOPLE, Transcript(4))
    fed.privacy = SECURE
    with pytest.raises(ConfigError, match="each client's update"):
        Experiment.over(fed, rounds=1, evaluation=Evaluation(signatures="all"))
