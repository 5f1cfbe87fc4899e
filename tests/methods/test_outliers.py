"""One client with a forged signature, update or prediction forms no cluster, and moves none."""

import pytest
import torch

from kinfed.aggregation import DEPLOYED, MEAN
from kinfed.clustering.hierarchy import Hierarchy, components
from kinfed.engines import Vectorised
from kinfed.errors import NetworkError
from kinfed.methods import FLHC, FLISHC
from kinfed.methods.signature_tasks import drop_bridges
from kinfed.methods.split_tree import SplitRule
from kinfed.metrics import count_unused
from kinfed.params import from_flat, to_flat
from kinfed.replies import LONG_UPDATE, OUTLYING, Offer, Replies, measure_changes
from kinfed.runs.writer import name_event
from kinfed.signatures import EmbeddingStatistics, Signatures
from tests.methods.planted import LOCAL, net, renamed
from tests.methods.registry import KERNEL, make, population, statistics
from tests.problems import same_clusters

LIAR, HONEST = 3, torch.tensor([i for i in range(12) if i != 3])


def forge(fed, number=1e6, seed=0):
    """The federation whose fourth client sends noise of this size for all that it computes; and its rule."""
    honest, draw = fed._run, torch.Generator().manual_seed(seed)

    def lie(tensor, at):
        noise = number * torch.randn(tensor[at].shape, generator=draw)
        return tensor.index_put((at,), noise.to(tensor.dtype)) if tensor.is_floating_point() else tensor

    def run(name, cohort, keys, offer):
        send, keep = honest(name, cohort, keys, offer)
        at = cohort == LIAR
        forged = {
            n: lie(t, at) if torch.is_tensor(t) else {k: lie(v, at) for k, v in t.items()} for n, t in send.items()
        }
        return forged, keep

    fed._run = run
    return fed


def find(method, rule, people, forged=True, round=None):
    """The clusters of all clients after `init`, or after this round, with or without the liar."""
    fed = Vectorised(method, people)
    fed.aggregation = rule
    fed = forge(fed) if forged else fed
    state = method.init(fed)
    state = state if round is None else method.round(state, round, fed)
    return method.cluster_assignment(state).cpu(), fed


def encoder_once() -> EmbeddingStatistics:
    return statistics(encoder_rounds=0)  # the liar is to forge its signature alone


@pytest.mark.parametrize("name", ["flt", KERNEL])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_forged_signature_changes_no_cluster_of_flt_and_its_client_trains_alone(name):
    found, _ = find(make(name), DEPLOYED, population())
    assert same_clusters(found[HONEST], population().true_clusters[HONEST])
    assert int((found == found[LIAR]).sum()) == 1


def test_an_outlying_client_is_named_once_in_the_log_and_the_events(caplog):
    method = make("repa", signature=encoder_once())
    _, fed = find(method, DEPLOYED, population())
    assert count_unused(fed.rejected) == {"clients_outlying": 1}
    assert [(entry.client, name_event(entry)) for entry in fed.rejected] == [(LIAR, "outlying client")]
    named = "far from all others in what they sent, so that they form no cluster: client 3 (1 of 12 clients)"
    assert [m for m in caplog.messages if "far from all others" in m] == [named]


def test_a_forged_signature_changes_no_cluster_of_repa():
    method, people = make("repa", signature=encoder_once()), population()
    usual, _ = find(method, MEAN, people, forged=False)
    robust, _ = find(method, DEPLOYED, people)
    assert same_clusters(usual, people.true_clusters)
    assert same_clusters(robust[HONEST], usual[HONEST])
    assert robust[LIAR] in robust[HONEST]  # K-Means has two models, and it is served one of them


def test_the_same_signature_makes_repas_clusters_one_for_who_believes_everybody():
    found, _ = find(make("repa", signature=encoder_once()), MEAN, population())
    assert len(found[HONEST].unique()) == 1


def test_a_forged_update_changes_no_cluster_of_flhc():
    method = FLHC(net(), LOCAL, rounds_before=0, hierarchy=Hierarchy(metric="cosine", linkage="average"))
    usual, _ = find(method, MEAN, renamed(), forged=False, round=0)
    robust, _ = find(method, DEPLOYED, renamed(), round=0)
    assert same_clusters(robust[HONEST], usual[HONEST])
    assert int((robust == robust[LIAR]).sum()) == 1


def test_who_sends_the_mean_of_all_descriptors_joins_no_clusters_of_flux():
    def find_clusters(rule):
        method = make("flux", rounds_before=0, radius=1.5)
        fed = Vectorised(method, population())
        honest, fed.aggregation = fed._run, rule

        def run(name, cohort, keys, offer):
            send, keep = honest(name, cohort, keys, offer)
            if name == "compute_moments":
                mean = send["moments"][cohort != LIAR].mean(0)
                send = {"moments": send["moments"].index_put((cohort == LIAR,), mean)}
            return send, keep

        fed._run = run
        return method.cluster_assignment(method.form_clusters(method.init(fed), fed))[HONEST]

    assert same_clusters(find_clusters(DEPLOYED), population().true_clusters[HONEST])
    assert len(find_clusters(MEAN).unique()) == 1


def test_forged_predictions_change_no_cluster_of_flis():
    people = population()
    method = make("flis_hc")
    usual, _ = find(method, MEAN, people, forged=False)
    robust, _ = find(method, DEPLOYED, people)
    assert isinstance(method, FLISHC)
    assert same_clusters(robust[HONEST], usual[HONEST])


PARITY = torch.arange(12) % 2  # of clients whose losses and updates differ by it


def send_losses(cohort, offer):
    own = torch.stack([0.1 + PARITY, 1.1 - PARITY], 1)[cohort] + 0.01 * cohort[:, None]
    return {"losses": own.index_fill(0, (cohort == LIAR).nonzero()[:, 0], 1e6)}


def send_alike(cohort, offer):
    """Two liars send the same: that no model fits them."""
    own = torch.stack([0.1 + PARITY, 1.1 - PARITY], 1)[cohort] + 0.01 * cohort[:, None]
    liars = torch.isin(cohort, torch.tensor([LIAR, LIAR + 1]))
    return {"losses": own.masked_scatter(liars[:, None], torch.tensor([500.0, 600.0] * int(liars.sum())))}


def test_two_that_send_the_same_losses_take_no_model_of_clove_from_the_others():
    def find_clusters(rule):
        method = make("clove")
        fed = Vectorised(method, population())
        honest, fed.aggregation = fed._run, rule
        fed._run = lambda asked, cohort, keys, offer: (
            (send_alike(cohort, offer), {}) if asked == "compute_losses" else honest(asked, cohort, keys, offer)
        )
        return method.cluster_assignment(method.init(fed))[others]

    others = torch.tensor([i for i in range(12) if i not in (LIAR, LIAR + 1)])
    assert same_clusters(find_clusters(DEPLOYED), PARITY[others])
    assert len(find_clusters(MEAN).unique()) == 1


def test_a_client_that_alone_joins_two_clusters_forms_none(caplog):
    points = (10.0 * PARITY + 0.1 * torch.arange(12)).index_fill(0, torch.tensor([LIAR]), 5.5)
    known, clients = Signatures(points[:, None, None], torch.ones(12, 1)), torch.arange(12)

    def cluster(known):
        return components(torch.cdist(known.means(), known.means()) <= 5.0)

    fed = Vectorised(make("fedavg"), population())
    assert len(cluster(known).unique()) == 1 and drop_bridges(known, clients, fed, cluster) == (known, clients)
    fed.aggregation = DEPLOYED
    left, kept = drop_bridges(known, clients, fed, cluster)
    assert kept.tolist() == HONEST.tolist() == left.exist().nonzero()[:, 0].tolist()
    assert "between clusters, which are found without them: client 3 (1 of 12 clients)" in caplog.messages
    honest = known.of(HONEST)
    assert drop_bridges(honest, HONEST - (HONEST > LIAR).long(), fed, cluster)[0] is honest, "two clusters stay two"


def test_a_client_without_whom_clusters_become_one_is_no_bridge_between_them():
    known, clients = Signatures(torch.arange(6.0)[:, None, None] ** 2, torch.ones(6, 1)), torch.arange(6)
    fed = Vectorised(make("fedavg"), population())
    fed.aggregation = DEPLOYED

    def cluster(known):
        return torch.tensor([0, 0, 0, 1, 2, 3]) if len(known.shares) == 6 else torch.zeros(5, dtype=torch.long)

    assert drop_bridges(known, clients, fed, cluster)[1] is clients


def send_weights(cohort, offer):
    def change(name, start):
        step = torch.ones(len(cohort), *start.shape[1:])
        step[:, :1] += (0.6 * PARITY - 0.3)[cohort].view(-1, *[1] * (start.dim() - 1))
        step[cohort == LIAR] = torch.arange(start[0].numel()).view(start.shape[1:]) % 2 * 2e6 - 1e6
        return start[offer.pick] + 0.1 * step

    return from_flat({name: change(name, start) for name, start in to_flat(offer.each).items()})


@pytest.mark.parametrize(("name", "task", "send"), [
    ("clove", "compute_losses", send_losses), ("fesem", "train", send_weights),
])  # fmt: skip
def test_a_forged_reply_takes_no_cluster_of_clove_and_fesem_from_the_others(name, task, send):
    def find_clusters(rule):
        method = make(name)
        fed = Vectorised(method, population())
        honest, fed.aggregation = fed._run, rule
        fed._run = lambda asked, cohort, keys, offer: (
            (send(cohort, offer), {}) if asked == task else honest(asked, cohort, keys, offer)
        )
        found = method.cluster_assignment(method.round(method.init(fed), 0, fed))[HONEST]
        assert {entry.client for entry in fed.rejected if entry.reason == OUTLYING} <= {LIAR}
        assert (rule is DEPLOYED) == any(entry.reason == OUTLYING for entry in fed.rejected)
        return found

    assert same_clusters(find_clusters(DEPLOYED), PARITY[HONEST])
    assert len(find_clusters(MEAN).unique()) == 1  # who believes everybody gives the liar a cluster of its own


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedem", "ifca", "flsc", "flis_dc", "cfl", "feddrift"])
def test_who_changes_far_more_than_the_others_is_named_once_where_somebody_may_lie(name, caplog):
    def name_liars(rule):
        method = make(name)
        fed = forge(Vectorised(method, population()), number=100.0)
        fed.aggregation, state = rule, method.init(fed)
        for round in range(2):
            state = method.round(state, round, fed)
        return [(entry.client, name_event(entry)) for entry in fed.rejected if entry.reason == LONG_UPDATE], fed

    found, fed = name_liars(DEPLOYED)
    assert found == [(LIAR, "long update")] and name_liars(MEAN)[0] == []
    assert count_unused(fed.rejected)["clients_with_long_update"] == 1
    says = "what they changed is over 10 times as long as usual: client 3 (1 of 12 clients)"
    assert [m for m in caplog.messages if "as long as usual" in m] == [says]


def test_a_change_is_measured_from_what_the_client_was_offered_or_the_nearest_of_several():
    def sent(**fields):
        return Replies(torch.tensor([1, 5]), {name: {"w": torch.tensor(rows)} for name, rows in fields.items()})

    there, three = torch.tensor([True, False, True]), {"w": torch.tensor([[0.0, 0.0], [9.0, 9.0], [3.0, 0.0]])}
    trained, one = sent(params=[[3.0, 4.0], [3.0, 2.0]]), {"w": torch.tensor([3.0, 0.0])}
    assert measure_changes(Offer(each={"params": three}), there, trained).tolist() == [5.0, 2.0]
    assert measure_changes(Offer(each={"params": three}, pick=torch.tensor([2, 1, 0])), there, trained).tolist() == [
        4.0,
        13**0.5,
    ]
    assert measure_changes(Offer(shared={"params": one}), there, trained).tolist() == [4.0, 2.0]
    assert measure_changes(Offer(shared={"models": three}), there, trained).tolist() == [4.0, 2.0]
    update = sent(step=[[3.0, 4.0], [0.0, 0.0]], change=[[12.0, 0.0], [0.0, 1.0]])
    assert measure_changes(Offer(shared={"params": one}), there, update).tolist() == [13.0, 1.0]
    assert measure_changes(Offer(), there, Replies(torch.tensor([1, 5]), {"hits": torch.ones(2)})).tolist() == [0, 0]


def test_one_long_update_does_not_keep_cfl_from_splitting_by_shares_of_the_longest():
    method = make("cfl", rule=SplitRule(relative=True, mean_below=0.9, some_above=0.1), after=1)
    fed = forge(Vectorised(method, population()), number=1e6)
    fed.aggregation = DEPLOYED
    state = method.round(method.init(fed), 0, fed)
    assert float(state.tree.longest) < 100


BY_SIGNATURES = {"flt", KERNEL, "pca_km_hc", "repa", "pacfl", "fedclust", "fedgroup", "flux", "flhc", "flis_hc"}


@pytest.mark.parametrize("name", sorted(BY_SIGNATURES))
def test_without_any_finite_signature_a_method_says_so(name):
    more = {"signature": encoder_once()} if name == "repa" else {"rounds_before": 0} if name in ("flux", "flhc") else {}
    method = make(name, **more)
    fed = Vectorised(method, population())
    honest = fed._run

    def run(name, cohort, keys, offer):
        send, keep = honest(name, cohort, keys, offer)
        return from_flat({n: t.float() * torch.nan for n, t in to_flat(send).items()}), keep

    fed._run = run
    with pytest.raises(NetworkError, match="no client sent a finite signature"):
        method.round(method.init(fed), 0, fed)
