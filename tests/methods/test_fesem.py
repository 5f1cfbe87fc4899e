import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kinfed.clustering.kmeans import server_kmeans
from kinfed.data import Role
from kinfed.engines import Vectorised
from kinfed.errors import ConfigError
from kinfed.federation import Replies
from kinfed.methods import FeSEM
from kinfed.metrics import fedavg_parameters, method_bytes
from kinfed.params import flatten, put, select
from tests.methods.planted import FOUR, LOCAL, net, renamed
from tests.methods.registry import make, population
from tests.problems import assert_close, fit, same_clusters, small_net


class Largest(TorchDispatchMode):
    """Watches how many numbers the largest tensor has that is made inside it."""

    numbers = 0

    def __torch_dispatch__(self, f, types, args=(), kwargs=None):
        made = f(*args, **(kwargs or {}))
        self.numbers = max(self.numbers, *(t.numel() for t in tree_leaves(made) if isinstance(t, torch.Tensor)), 0)
        return made


@pytest.mark.parametrize("stale", ["aggregated", "last_local", "exclude"])
def test_it_finds_clusters_that_swap_labels(stale):
    state, fed = fit(FeSEM(net(), LOCAL, clusters=4, stale=stale), population=renamed(FOUR), rounds=5)
    assert same_clusters(state.served.assignment, fed.true_clusters)


@pytest.mark.parametrize("assignment", ["kmeans", "nearest"])
def test_first_updates_part_clients_of_which_few_train_in_a_round(assignment):
    clients = renamed(FOUR, clients=24)
    one, many = (
        fit(FeSEM(net(), LOCAL, clusters=4, assignment=assignment, start=start), population=clients, rounds=5,
            fraction=0.25)[0].served.assignment
        for start in ("one_model", "updates")
    )  # fmt: skip
    assert same_clusters(many, clients.true_clusters) and not same_clusters(one, clients.true_clusters)


def test_first_clusters_are_of_directions_and_begin_with_the_mean_of_what_their_clients_trained(monkeypatch):
    fesem, clients = FeSEM(net(), LOCAL, clusters=2, start="updates"), renamed()
    fed, plain = Vectorised(fesem, clients), FeSEM(net(), LOCAL, clusters=2)
    run, sent = fed.run, {}

    def lengthen(task, cohort, offer):
        replies = run(task, cohort, offer)
        times = torch.ones(12).index_fill(0, torch.tensor([0]), 6.0)  # the first client's update is six times as long
        sent.update({n: w * times.view(-1, *[1] * (w.dim() - 1)) for n, w in replies.stack("update").items()})
        return Replies(replies.cohort, {"update": sent})

    monkeypatch.setattr(fed, "run", lengthen)
    state = fesem.init(fed)
    by_length, _ = server_kmeans(flatten(sent), 2, torch.zeros(0, 1), plain.seed)
    assert same_clusters(state.served.assignment, fed.true_clusters) and not same_clusters(by_length, fed.true_clusters)
    first = plain.init(fed).served.models["1.weight"][0]
    for cluster in (0, 1):
        members = state.served.assignment == cluster
        torch.testing.assert_close(state.served.models["1.weight"][cluster], first + sent["1.weight"][members].mean(0))


@pytest.mark.parametrize("assignment", ["kmeans", "nearest"])
@pytest.mark.parametrize(("stale", "over"), [("aggregated", "all_clients"), ("exclude", "participants")])
def test_one_cluster_is_fedavg(stale, over, assignment):
    settings = {"clusters": 1, "stale": stale, "assignment": assignment}
    fesem, _ = fit(make("fesem", **settings), population=population(), fraction=0.5)
    fedavg, _ = fit(make("fedavg", aggregate_over=over), population=population(), fraction=0.5)
    assert_close(select(fesem.served.models, 0), fedavg.params)


def test_a_round_by_hand_with_stale_slots():
    fesem = make("fesem", stale="aggregated")
    fed, twin = (Vectorised(fesem, population(), fraction=0.5) for _ in range(2))
    before = fesem.init(fed)
    after = fesem.round(before, 0, fed)
    cohort = twin.sample()
    fresh = twin.run(fesem.train, cohort, fesem.offer(before, cohort, twin)).stack("params")
    slots = put(
        select(before.served.models, before.served.assignment), cohort, fresh
    )  # the others still hold the first model
    labels, _ = server_kmeans(flatten(slots), 2, torch.zeros(0, 1), fesem.seed)
    assert torch.equal(after.served.assignment, labels)
    for c in (0, 1):
        share = (fed.sizes * (labels == c) / fed.sizes[labels == c].sum())[:, None, None]
        torch.testing.assert_close(after.served.models["1.weight"][c], (share * slots["1.weight"]).sum(0))


def test_the_next_k_means_starts_from_the_last_centres_so_clusters_keep_their_numbers():
    fesem = FeSEM(net(), LOCAL, clusters=4)
    fed = Vectorised(fesem, renamed(FOUR))
    state = fesem.round(fesem.init(fed), 0, fed)
    first = state.served.assignment
    for t in range(1, 5):
        state = fesem.round(state, t, fed)
        assert torch.equal(state.served.assignment, first)


@pytest.mark.parametrize("stale", ["aggregated", "last_local"])
def test_centres_are_the_plain_means_of_what_clients_hold(stale):
    fesem = make("fesem", stale=stale)
    fed, twin = (Vectorised(fesem, population(), fraction=0.5) for _ in range(2))
    before = fesem.init(fed)
    for t in range(2):
        cohort = twin.sample()
        fresh = twin.run(fesem.train, cohort, fesem.offer(before, cohort, twin)).stack("params")
        held = flatten(
            put(before.served.last_trained or select(before.served.models, before.served.assignment), cohort, fresh)
        )
        after = fesem.round(before, t, fed)
        labels, centres = server_kmeans(held, 2, flatten(before.centres), fesem.seed)
        assert torch.equal(after.served.assignment, labels)
        torch.testing.assert_close(flatten(after.centres), centres)
        before = after


def test_a_round_holds_no_model_of_clients_that_were_not_asked():
    fesem = make("fesem")
    fed = Vectorised(fesem, population(), fraction=0.25)
    state = fesem.init(fed)
    with Largest() as largest:
        fesem.round(state, 0, fed)
    assert largest.numbers < fed.count * small_net().parameters()


def test_nearest_is_the_papers_assignment_to_centres_from_different_inits():
    fesem = make("fesem", clusters=3, assignment="nearest")
    fed, twin = (Vectorised(fesem, population()) for _ in range(2))
    before = fesem.init(fed)
    assert len(before.served.models["1.weight"].flatten(1).unique(dim=0)) == 3
    after = fesem.round(before, 0, fed)
    trained = flatten(twin.run(fesem.train, twin.clients, fesem.offer(before, twin.clients, twin)).stack("params"))
    apart = (trained[:, None] - flatten(before.served.models)).square().sum(2)
    assert torch.equal(after.served.assignment, apart.argmin(1))


def test_late_and_holdout_clients_join_their_kin():
    roles = tuple(Role(holdout=i in (2, 3), joins=3 if i in (4, 5) else 0) for i in range(12))
    fesem = FeSEM(net(), LOCAL, clusters=2)
    state, fed = fit(fesem, population=renamed(roles=roles), rounds=8)
    assert same_clusters(state.served.assignment, fed.true_clusters)
    assert not state.served.contributors[:, [2, 3]].any() and state.served.contributors[:, [4, 5]].any(0).all()


def test_the_ledger_equals_the_formula():
    _, fed = fit(make("fesem"), population=population(), rounds=4, fraction=0.5)
    assert method_bytes(fed.ledger) == 4 * fedavg_parameters(6, small_net().parameters(), 4)


def test_a_start_from_updates_sends_one_more_model_each_way():
    _, fed = fit(make("fesem", start="updates"), population=population(), rounds=4, fraction=0.5)
    more = fedavg_parameters(12, small_net().parameters(), 1)
    assert method_bytes(fed.ledger) == 4 * (fedavg_parameters(6, small_net().parameters(), 4) + more)


def test_fewer_different_models_than_clusters_leave_some_clusters_as_they_are():
    state, _ = fit(make("fesem", clusters=9), population=population(), rounds=1, fraction=0.25)
    assert len(state.served.models["1.weight"]) == 9 and torch.isfinite(flatten(state.served.models)).all()


@pytest.mark.parametrize("clusters", [0, 13])
def test_more_clusters_than_clients_are_refused(clusters):
    with pytest.raises(ConfigError, match=r"1\.\.12|at least 1"):
        fit(make("fesem", clusters=clusters), population=population())
