"""A server without any client's samples: clients enrol, reconnect, join late, and are known by their names."""

import json
import math
from functools import partial

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Message
from flwr.app.error import Error
from flwr.proto.node_pb2 import NodeInfo

from kinfed import checkpoint
from kinfed.aggregation import DEPLOYED
from kinfed.capabilities import FindsClusters, reason_for_labels
from kinfed.data.arrays import ServerSamples
from kinfed.engines.flower import DeployedFederation, network_federation
from kinfed.engines.flower.deployed import KEYS, RELEASES
from kinfed.engines.flower.node import ClientData, ClientNode
from kinfed.engines.flower.patience import Patience
from kinfed.engines.flower.simulation import select_data
from kinfed.engines.flower.transport import build_client_app, read_arrays, read_config, to_records
from kinfed.errors import CheckpointError, ConfigError, NetworkError, RoleError
from kinfed.experiment import Experiment
from kinfed.methods import FLT
from kinfed.metrics import FoundClusters
from kinfed.privacy import Privacy, SignaturePrivacy, TrainingPrivacy, find_epsilon
from kinfed.signatures import PartMeans
from tests.engines.flower.loopback import Loopback
from tests.methods.registry import make, population
from tests.problems import assert_close, same_clusters, small_net

POPULATION = population()
LABELS = ("flhc", "flis_dc", "pacfl", "clove", "feddrift", "fedsoft")  # methods that assign clients by these


class NamedNodes(Loopback):
    """Nodes whose config has a name, and what role the client of that name wants."""

    def __init__(self, method, clients=range(12), **more):
        super().__init__(0, **more)
        self.app = build_client_app(partial(self.load_node, method), lambda context, run: self.home)
        for client in clients:
            self.connect(client)

    def connect(self, client, node=None, **wishes):
        node = 100 + client if node is None else node
        self.online[node] = {"name": f"clinic {client:02}", "client": client, **wishes}
        return node

    def get_nodes(self):
        """A node's key is that of its clinic unless its config says `key`; registered names are in `registered`."""
        for node, config in self.online.items():
            key = str(config.get("key", config["client"])).encode()
            yield NodeInfo(node_id=node, public_key=key, name=config.get("registered", ""))

    @staticmethod
    def load_node(method, context, run):
        config = context.node_config
        data = partial(select_data, POPULATION, config["client"])
        if config.get("labelled", True):
            return ClientNode(config["name"], method, data, holdout=config.get("holdout", False))

        def unlabelled(round):
            x, y, *test = data(round)
            return ClientData(x, torch.full_like(y, -1), *test)

        return ClientNode(config["name"], method, unlabelled, labelled=False)


def make_server(method, nodes, max_clients=12, wait=12, known=None, timeout=0.5, seconds=60, **settings):
    public = POPULATION.public
    fed = DeployedFederation(
        method,
        ServerSamples(POPULATION.x[public], POPULATION.y[public], 3),
        max_clients,
        nodes,
        **({"patience": Patience(timeout)} | settings),
    )
    fed.load_state_dict(known or {})
    fed.wait_for_clients(wait, seconds)
    return fed


@pytest.mark.parametrize("name", ["fedavg", pytest.param("repa", marks=pytest.mark.on_demand), "flis_dc"])
def test_a_server_without_samples_gives_what_one_with_all_of_them_gives(name):
    method = make(name)
    fed = make_server(method, NamedNodes(method), fraction=0.5)
    ours = Experiment.over(fed, rounds=3)
    reference = Experiment(method, POPULATION, fraction=0.5, rounds=3, aggregation=DEPLOYED)
    summary, wanted = ours.run(), reference.run()
    assert fed.sizes.tolist() == [len(train) for train in POPULATION.train] and not fed.sees_samples
    assert summary["accuracy"] == pytest.approx(wanted["accuracy"], abs=1e-5)
    assert fed.ledger.rounds == reference.fed.ledger.rounds
    if isinstance(method, FindsClusters):
        assert torch.equal(method.cluster_assignment(ours.state), method.cluster_assignment(reference.state))
        found = FoundClusters.by(method, ours.state, fed)
        assert found.labels is None and "uniformity" not in summary and "clustering_error" not in summary
    assert summary["standard_error"] == pytest.approx(wanted["standard_error"])  # each sample is one client's


def crash():
    raise KeyboardInterrupt


def run_until_it_ends(method, nodes, folder, crashes, privacy, every):
    """The summary of four rounds whose server dies after these; its folder keeps what was released."""
    for number, at in enumerate((*crashes, 9)):
        known = checkpoint.read_engine_state(folder / "saved") if (folder / "saved").exists() else None
        fed = make_server(method, nodes, known=known)
        fed.privacy = privacy
        fed.settle(folder)
        experiment = Experiment.over(
            fed, rounds=4, checkpoint=folder / "saved", checkpoint_every=every, observers=[Events({at: crash})]
        )
        try:
            return experiment.run(resume=number > 0 and known is not None)
        except KeyboardInterrupt:
            continue


def test_rounds_that_a_crash_took_back_are_counted_as_released(tmp_path):
    method, privacy = make("fedavg"), Privacy(training=TrainingPrivacy(clip=1.0, noise=2.0))
    summary = run_until_it_ends(method, NamedNodes(method), tmp_path, (3, 3), privacy, every=2)
    assert json.loads((tmp_path / RELEASES).read_text()) == {"train": 3 + 1 + 2}  # rounds 1 to 3, 3 again, 3 and 4
    assert summary["training_epsilon"] == pytest.approx(find_epsilon(2.0, 1e-5, 6))


def test_signatures_that_a_crash_took_back_are_counted_as_released(tmp_path):
    private = SignaturePrivacy(epsilon=1.0)
    method = FLT(small_net(), signature=PartMeans(embedding="random", latent=8).protect(private))
    summary = run_until_it_ends(method, NamedNodes(method), tmp_path, (3, 1), Privacy(signature=private), every=4)
    released = json.loads((tmp_path / RELEASES).read_text())
    assert released == {f"compute_signature/clinic {i:02}": 3 for i in range(12)}
    assert summary["signature_epsilon"] == pytest.approx(private.spend(3)) and private.spend(3) > 1.7


def test_a_damaged_count_of_releases_ends_the_run(tmp_path):
    (tmp_path / RELEASES).write_text("[]")
    with pytest.raises(CheckpointError, match="how much privacy was spent"):
        make_server(make("fedavg"), NamedNodes(make("fedavg"))).settle(tmp_path)


class Events:
    """Clients that connect, or go, when a round is over."""

    def __init__(self, events):
        self.events, self.seen = events, []

    def on_start(self, rounds, done):
        pass

    def on_round(self, result):
        self.seen.append(result)
        self.events.get(result.round, lambda: None)()

    def on_end(self, summary):
        pass


@pytest.mark.parametrize("name", [pytest.param("flt", marks=pytest.mark.on_demand), "repa"])
def test_a_late_client_is_assigned_to_its_true_cluster_and_trains(name):
    method = make(name)
    nodes = NamedNodes(method, clients=range(10))
    watch = Events({1: lambda: nodes.connect(10), 2: lambda: nodes.connect(11, holdout=True)})
    fed = make_server(method, nodes, wait=10)
    assert fed.clients.tolist() == list(range(10)) and fed.present.tolist() == list(range(10))
    experiment = Experiment.over(fed, rounds=6, observers=[watch])
    experiment.run()
    assert fed.roles[10].joins == 2 and fed.roles[11].holdout  # it enrols in round 1, and enters in the next
    assert same_clusters(method.cluster_assignment(experiment.state), POPULATION.true_clusters)
    assert fed.ledger.up["train"][10] > 0 and fed.ledger.up["train"][11] == 0
    assert fed.ledger.up["evaluate"][11] > 0


def test_a_client_that_reconnects_as_another_node_is_the_same_client():
    method = make("scaffold")
    nodes = NamedNodes(method)
    watch = Events({1: lambda: nodes.online.pop(103), 3: lambda: nodes.connect(3, node=777)})
    fed = make_server(method, nodes)
    summary = Experiment.over(fed, rounds=6, observers=[watch]).run()
    assert fed.nodes[3] == 777 and fed.roster[3].name == "clinic 03" and len(fed.roster) == 12
    assert summary["replies_no_answer"] > 0
    assert fed.ledger.rounds[-1][2] == 12  # all are evaluated again


def test_a_second_node_of_a_name_that_is_connected_is_refused():
    method = make("fedavg")
    nodes = NamedNodes(method)
    fed = make_server(method, nodes)
    nodes.connect(3, node=777)
    fed.begin(1)
    fed.begin(2)
    assert fed.nodes[3] == 103 and 777 not in fed.nodes.values()


def test_there_are_at_most_max_clients():
    method = make("fedavg")
    fed = make_server(method, NamedNodes(method), max_clients=4, wait=4)
    fed.begin(1)
    assert sorted(fed.nodes) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["flt", pytest.param("repa", marks=pytest.mark.on_demand)])
def test_an_id_that_no_client_has_is_not_asked(name):
    method = make(name)
    fed = make_server(method, NamedNodes(method), max_clients=14)
    Experiment.over(fed, rounds=2).run()
    assert not fed.rejected and fed.present.tolist() == fed.real.tolist() == list(range(12))


def test_a_client_without_labels_gets_a_model_or_a_reason():
    for name in ("flt", "ifca"):
        method = make(name)
        nodes = NamedNodes(method, clients=range(11))
        nodes.connect(11, labelled=False)
        fed = make_server(method, nodes)
        if reason_for_labels(method):
            with pytest.raises(RoleError, match=r"\[11\] have no labelled training samples"):
                Experiment.over(fed, rounds=2)
        else:
            Experiment.over(fed, rounds=2).run()
            assert fed.ledger.up["evaluate"][11] > 0 and fed.ledger.up["train"][11] == 0


def test_a_restarted_server_recognises_its_clients(tmp_path):
    method = make("scaffold")
    nodes = NamedNodes(method, home=tmp_path)
    whole = Experiment.over(make_server(method, NamedNodes(method, home=tmp_path / "other"), fraction=0.5), rounds=4)
    summary = whole.run()
    first = Experiment.over(
        make_server(method, nodes, fraction=0.5), rounds=2, checkpoint=tmp_path / "saved", checkpoint_every=2
    )
    first.run()
    nodes.online = {900 - node: config for node, config in nodes.online.items()}  # other nodes, in another order
    fed = make_server(method, nodes, fraction=0.5, known=checkpoint.read_engine_state(tmp_path / "saved"))
    resumed = Experiment.over(fed, rounds=4, checkpoint=tmp_path / "saved")
    assert fed.roster == first.fed.roster and fed.nodes[0] == 800
    assert resumed.run(resume=True) == summary
    assert_close(resumed.state.params, whole.state.params)


def test_too_few_clients_are_an_error_that_says_how_many_enrolled():
    method = make("fedavg")
    with pytest.raises(NetworkError, match="3 of 5 clients enrolled"):
        fed = DeployedFederation(
            method, ServerSamples(POPULATION.x[:0], POPULATION.y[:0], 3), 5, NamedNodes(method, clients=range(3))
        )
        fed.wait_for_clients(5, 0.2)


def test_enrolment_sends_no_sample_and_no_label():
    replies = []

    def listen(request, reply):
        replies.append((dict(read_config(reply)), reply.content.array_records))
        return [reply]

    method = make("fedavg")
    make_server(method, NamedNodes(method, tamper=listen))
    assert all(set(config) == {"name", "number", "train", "test", "labelled", "holdout"} for config, _ in replies)
    assert not any(records["arrays"] for _, records in replies)


@pytest.mark.parametrize("name", ["flt", pytest.param("repa", marks=pytest.mark.on_demand)])
def test_a_late_client_that_does_not_reply_stops_no_other(name):
    def tamper(request, reply):
        config = read_config(request)
        return [] if config.get("client") == 11 and config["task"] not in ("evaluate", "train") else [reply]

    method = make(name)
    nodes = NamedNodes(method, clients=range(11), tamper=tamper)
    watch = Events({1: lambda: nodes.connect(11)})
    fed = make_server(method, nodes, wait=11, timeout=0.2)
    summary = Experiment.over(fed, rounds=4, observers=[watch]).run()
    assert summary["replies_no_answer"] > 0 and 11 in fed.roster


def change_config(task, client, **values):
    """Replies of a client with other values beside the tensors."""

    def tamper(request, reply):
        config = read_config(request)
        if config.get("task") != task or (task and config["client"] != client):
            return [reply]
        return [Message(to_records(dict(read_config(reply)) | values, read_arrays(reply)), reply_to=request)]

    return tamper


def change_enrolment(clinic, **values):
    """The enrolment of one clinic with other values."""

    def tamper(request, reply):
        own = dict(read_config(reply))
        return [Message(to_records(own | values, {}), reply_to=request)] if own.get("name") == clinic else [reply]

    return tamper


def test_nodes_that_take_longer_than_the_time_for_a_task_are_not_said_to_be_missing(caplog):
    def expire(request, reply):
        return [Message(Error(3, "expired"), reply_to=request)] if request.metadata.dst_node_id != 103 else [reply]

    method = make("fedavg")
    with pytest.raises(NetworkError) as ended:
        make_server(method, NamedNodes(method, tamper=expire), seconds=2)
    late = "cannot take part: no reply within engine.timeout: raise that, where a node takes longer to load torch"
    assert f"1 of 12 clients enrolled within 2 s: start the others, or wait for fewer; 11 {late}" in str(ended.value)
    assert f"node 100 {late}" in caplog.text and "Flower's error" not in caplog.text


@pytest.mark.parametrize(
    "values", [{"train": 10**12}, {"test": 10**12}, {"train": -1}, {"name": "x" * 10**6}, {"name": "two\nlines"},
               {"name": ""}, {"train": 2.5}, {"labelled": 1}],
)  # fmt: skip
def test_an_enrolment_with_a_value_out_of_range_is_refused(values, caplog):
    method = make("fedavg")
    fed = make_server(method, NamedNodes(method, tamper=change_enrolment("clinic 03", **values)), wait=11)
    fed.begin(1)
    assert 103 not in fed.nodes.values() and len(fed.roster) == 11
    assert sum("node 103 cannot take part: a value of its enrolment" in message for message in caplog.messages) == 1


def test_a_claim_of_10_to_the_12_samples_in_a_reply_is_rejected_and_its_client_excluded():
    method = make("fedavg")
    fed = make_server(method, NamedNodes(method, tamper=change_config("train", 3, train=10**12)))
    summary = Experiment.over(fed, rounds=4).run()
    assert fed.roster[3].train == len(POPULATION.train[3]) and fed.excluded == {3}
    assert summary["replies_out_of_range"] == 3 and summary["clients_excluded"] == 1


@pytest.mark.parametrize("name", ["fedavg", *(pytest.param(name, marks=pytest.mark.on_demand) for name in LABELS)])
def test_a_client_that_says_it_has_no_samples_any_more_is_not_used_and_ends_nothing(name, monkeypatch, caplog):
    """Alone in a round it would weigh 0 of 0, and be a client without a model for methods that need labels."""
    method = make(name)
    fed = make_server(method, NamedNodes(method, tamper=change_config("train", 3, train=0)), fraction=0.1)
    monkeypatch.setattr(fed, "sample_from", lambda ids: torch.tensor([3]))
    summary = Experiment.over(fed, rounds=2).run()
    assert summary["replies_no_training_samples"] >= 2 and "clients_excluded" not in summary
    assert summary["accuracy"] > 0 and fed.roster[3].train == len(POPULATION.train[3])
    assert "clinic 03 failed at 'train': its reply is not used: no training samples" in caplog.messages


@pytest.mark.parametrize("name", ["ifca", *(pytest.param(name, marks=pytest.mark.on_demand) for name in LABELS)])
def test_a_late_client_without_labels_ends_no_run_of_a_method_that_needs_them(name, caplog):
    method = make(name)
    nodes = NamedNodes(method, clients=range(11))
    fed = make_server(method, nodes, wait=11)
    Experiment.over(fed, rounds=3, observers=[Events({1: lambda: nodes.connect(11, labelled=False)})]).run()
    assert len(fed.roster) == 11
    assert f"node 111 cannot take part: it has no labelled training samples, but {method.needs_labels}" in caplog.text


def test_a_client_that_comes_back_without_its_samples_is_refused_and_keeps_its_model(caplog):
    method = make("flhc")
    nodes = NamedNodes(method)
    fed = make_server(method, nodes)

    def swap():
        del nodes.online[103]
        nodes.connect(3, node=777, labelled=False)

    Experiment.over(fed, rounds=4, observers=[Events({2: swap})]).run()
    assert "node 777 cannot take part: it has no labelled training samples any more" in caplog.text
    assert fed.roster[3].labelled


def test_how_many_samples_a_client_claims_takes_no_memory():
    method = make("fedavg")
    nodes = NamedNodes(method, tamper=change_enrolment("clinic 03", train=10**12))
    fed = make_server(method, nodes, max_samples=10**12)
    assert fed.sizes[3] == 10**12 and fed.train[3].untyped_storage().nbytes() == 8


def test_another_node_cannot_take_the_place_of_an_absent_clinic(tmp_path, caplog):
    method = make("fedavg")
    nodes = NamedNodes(method)
    fed = make_server(method, nodes)
    fed.settle(tmp_path)
    del nodes.online[103]
    nodes.connect(3, node=777, key="of somebody else")
    fed.begin(1)
    fed.begin(2)
    assert (
        3 not in fed.nodes
        and "node 777 cannot take part: 'clinic 03' belongs to the key of another node" in caplog.text
    )
    nodes.connect(3, node=778)  # the clinic itself, as another node
    fed.begin(3)
    fed.begin(4)
    assert fed.nodes[3] == 778


def test_names_belong_to_keys_after_a_restart_without_a_checkpoint(tmp_path):
    method = make("fedavg")
    make_server(method, NamedNodes(method)).settle(tmp_path)
    nodes = NamedNodes(method, clients=range(11))
    nodes.connect(11, node=777, key="of somebody else")
    fed = DeployedFederation(method, ServerSamples(POPULATION.x[:0], POPULATION.y[:0], 3), 12, nodes)
    fed.load_keys(tmp_path)
    fed.wait_for_clients(11, 60)
    assert 777 not in fed.nodes.values() and len(fed.bound) == 12


def test_one_key_takes_one_place():
    method = make("fedavg")
    nodes = NamedNodes(method, clients=range(3))
    fed = make_server(method, nodes, max_clients=6, wait=3)
    for client in (3, 4, 5):
        nodes.connect(client, key=1)  # one clinic under many names
    fed.begin(1)
    fed.begin(2)
    assert sorted(fed.roster) == [0, 1, 2]


def test_a_node_takes_part_under_the_name_that_its_key_was_registered_with(caplog):
    method = make("fedavg")
    nodes = NamedNodes(method, clients=range(3))
    nodes.connect(3, registered="clinic 03")
    nodes.connect(4, registered="clinic 05")
    fed = make_server(method, nodes, max_clients=6, wait=4)
    fed.begin(1)
    assert sorted(fed.nodes.values()) == [100, 101, 102, 103]
    assert "its key is registered as 'clinic 05', but its config says 'clinic 04'" in caplog.text


def test_a_node_that_cannot_take_part_is_asked_again_less_and_less_often(monkeypatch):
    method, now = make("fedavg"), [0.0]
    nodes = NamedNodes(method, clients=range(3))
    fed = make_server(method, nodes, max_clients=6, wait=3)
    monkeypatch.setattr(network_federation.time, "monotonic", lambda: now[0])
    nodes.connect(3, registered="clinic 05")
    asked = []
    for second in range(300):
        before, now[0] = len(nodes.sent), float(second)
        fed._enrol_nodes()
        asked += [second] * (len(nodes.sent) - before)
    assert asked[:6] == [0, 2, 5, 10, 19, 36]  # its reply is read a second later, then 1, 2, 4, … s pass
    assert asked[6:] == [69, 130, 191, 252]
    nodes.online[103]["registered"] = "clinic 03"
    for now[0] in range(300, 400):
        fed._enrol_nodes()
    assert 103 in fed.nodes.values()


def test_where_nodes_have_no_keys_names_are_not_bound():
    method = make("fedavg")
    nodes = NamedNodes(method)
    fed = make_server(method, nodes, binds_names=False)
    del nodes.online[103]
    nodes.connect(3, node=777, key="of another process")
    fed.begin(1)
    fed.begin(2)
    assert fed.nodes[3] == 777


def test_a_damaged_file_of_keys_is_refused(tmp_path):
    method = make("fedavg")
    fed = make_server(method, NamedNodes(method))
    for text in ("{", "[]", '{"clinic 00": 7}'):
        (tmp_path / KEYS).write_text(text)
        with pytest.raises(CheckpointError, match="damaged"):
            fed.load_keys(tmp_path)


def silence(client):
    return lambda request, reply: [] if read_config(request).get("client") == client else [reply]


def test_a_silent_node_costs_a_quorums_grace_and_is_asked_less_and_less_often(caplog):
    method = make("fedavg")
    nodes = NamedNodes(method, tamper=silence(3))
    patience = Patience(timeout=600.0, quorum=0.8, grace=0.05, max_rest=15)
    fed = make_server(method, nodes, patience=patience)
    with caplog.at_level("INFO", "kinfed"):
        summary = Experiment.over(fed, rounds=8).run()  # 16 tasks: it is asked the 1st, 3rd, 7th and 15th
    asked = [m for m in nodes.sent if read_config(m).get("client") == 3]
    assert len(asked) == summary["replies_no_answer"] == 4 and summary["replies_not_asked"] == 12
    left = [message for message in caplog.messages if "left out" in message]
    assert left == [f"clinic 03 did not reply to 'train' in time: left out of {tasks} tasks" for tasks in (1, 3, 7, 15)]


def test_a_node_whose_request_expires_is_silent_too(caplog):
    def expire(request, reply):
        is_silent = read_config(request).get("client") == 3
        return [Message(Error(3, "message unavailable"), reply_to=request) if is_silent else reply]

    method = make("fedavg")
    nodes = NamedNodes(method, tamper=expire)
    fed = make_server(method, nodes, patience=Patience(timeout=600.0, max_rest=15))
    with caplog.at_level("INFO", "kinfed"):
        summary = Experiment.over(fed, rounds=2).run()  # 4 tasks: it is asked the 1st and the 3rd
    assert summary["replies_no_answer"] == 2 and summary["replies_not_asked"] == 2 and "replies_failed" not in summary
    assert "clinic 03 did not reply to 'train' in time: left out of 3 tasks" in caplog.messages


def test_a_node_that_was_silent_takes_part_again():
    method, late = make("fedavg"), []

    def tamper(request, reply):
        config = read_config(request)
        is_first = config.get("client") == 3 and not late
        late.extend([config] if is_first else [])
        return [] if is_first else [reply]

    patience = Patience(timeout=600.0, quorum=0.8, grace=0.05, max_rest=15)
    fed = make_server(method, NamedNodes(method, tamper=tamper), patience=patience)
    summary = Experiment.over(fed, rounds=3).run()
    assert summary["replies_no_answer"] == 1 and summary["replies_not_asked"] == 1
    assert not fed.misses and fed.ledger.rounds[-1][2] == 12


def test_where_all_of_a_cohort_were_silent_they_are_asked():
    method = make("fedavg")
    fed = make_server(method, NamedNodes(method))
    fed.tasks, fed.resting = 1, {3: 9, 4: 9}
    assert fed._find_resting(torch.tensor([3, 4])) == set()
    assert fed._find_resting(torch.tensor([3, 4, 5])) == {3, 4}


def test_the_deadline_is_set_when_the_quorum_has_replied():
    patience = Patience(timeout=600.0, quorum=0.8, grace=30.0)
    assert patience.deadline(100.0, 110.0, asked=10, replied=7) == 700.0
    assert patience.deadline(100.0, 110.0, asked=10, replied=8) == 140.0  # grace
    assert patience.deadline(100.0, 150.0, asked=10, replied=8) == 200.0  # as long again
    assert patience.deadline(100.0, 680.0, asked=10, replied=9) == 700.0
    for wrong in ({"timeout": -math.inf}, {"quorum": 1.5}, {"grace": -1.0}, {"attempts": 0}, {"timeout": math.nan}):
        with pytest.raises(ConfigError):
            Patience(**wrong)
