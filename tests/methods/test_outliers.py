"""One client with a forged signature, update or prediction forms no cluster, and moves none."""

import pytest
import torch

from kinfed.aggregation import DEPLOYED, MEAN
from kinfed.clustering.hierarchy import Hierarchy
from kinfed.engines import Vectorised
from kinfed.errors import NetworkError
from kinfed.experiment import Experiment
from kinfed.methods import FLHC, FLISHC
from kinfed.params import from_flat, to_flat
from kinfed.runs.writer import name_event
from kinfed.signatures import EmbeddingStatistics
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
    assert Experiment.over(fed, rounds=1)._count_unused() == {"clients_outlying": 1}
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
        return method.cluster_assignment(method.round(method.init(fed), 0, fed))[HONEST]

    assert same_clusters(find_clusters(DEPLOYED), PARITY[HONEST])
    assert len(find_clusters(MEAN).unique()) == 1  # who believes everybody gives the liar a cluster of its own


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
