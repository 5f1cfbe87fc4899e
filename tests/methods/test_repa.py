from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from sklearn.cluster import KMeans

from kinfed.data import Role
from kinfed.engines import Vectorised
from kinfed.errors import ConfigError, ModelError
from kinfed.metrics import method_bytes, repa_parameters
from kinfed.models import Model, encoder_of
from kinfed.params import select
from tests.methods.registry import make, population, statistics
from tests.problems import assert_close, assert_same_bits, fit, same_clusters, small_net

SHAPE = (1, 8, 8)
WIDTH = 384  # of an embedding


def started(repa, people=None, **settings):
    fed = Vectorised(repa, people or population(), **settings)
    return repa.init(fed), fed


def size(params) -> int:
    return sum(w.numel() for w in params.values())


@pytest.mark.parametrize("reconstruction", [0.0, 0.1, 1.0])
def test_it_finds_the_planted_clusters_whatever_the_encoder_was_taught(reconstruction):
    repa = make("repa", signature=statistics(reconstruction=reconstruction))
    state, fed = started(repa)
    assert same_clusters(state.served.assignment, fed.true_clusters)
    assert state.centres.shape == (2, 4 * WIDTH)


def test_every_statistic_finds_the_planted_clusters():
    for names in (("mean", "std"), ("var",), ("min", "max"), ("correlation",)):
        state, fed = started(make("repa", signature=statistics(statistics=names)))
        assert same_clusters(state.served.assignment, fed.true_clusters), names


def test_a_training_client_is_placed_again_where_it_was_clustered():
    repa = make("repa", clusters=4)
    state, fed = started(repa)
    blank = replace(state.served, assignment=torch.full_like(state.served.assignment, -1))
    again = repa.admit(replace(state, served=blank), fed.clients, fed)
    assert torch.equal(again.served.assignment, state.served.assignment) and torch.equal(
        again.served.contributors, state.served.contributors
    )


def test_the_clusters_are_scikit_learns():
    repa = make("repa", clusters=4)
    state, fed = started(repa)
    sent = torch.stack([repa.compute_signature(one, state.root).send["statistics"] for one in lone_clients(fed)])
    points = (sent / sent.norm(dim=1, keepdim=True)).double().numpy()
    wanted = KMeans(4, n_init=10, random_state=10).fit(points)
    assert state.served.assignment.tolist() == wanted.predict(points).tolist() == wanted.labels_.tolist()


def lone_clients(fed):
    from kinfed.engines.sequential import make_client

    return [make_client(fed, i, torch.tensor(0), {}) for i in range(fed.count)]


def test_strangers_get_their_kins_model_without_training_or_labels():
    people = population()
    y = people.y.clone()
    y[people.train[7]] = -1
    roles = tuple(Role(holdout=i == 2, joins=2 if i == 4 else 0, labelled=i != 7) for i in range(12))
    repa = make("repa")
    state, fed = fit(repa, population=replace(people, y=y, roles=roles), rounds=4)
    assert same_clusters(state.served.assignment, people.true_clusters)
    assert not state.served.contributors[:, [2, 7]].any(), "nobody hears a client that does not train"
    assert state.served.contributors[:, 4].any(), "a late client is heard"
    for task in ("train", "train_encoder"):
        assert fed.ledger.up[task][[2, 7]].tolist() == [0, 0]
    both = [fed.ledger.down["compute_signature"][i] + fed.ledger.up["compute_signature"][i] for i in (2, 7)]
    assert both == [4 * (size(state.root) + 4 * WIDTH)] * 2


def test_a_newcomer_is_served_its_clusters_model_and_moves_nobody():
    people = population(roles=tuple(Role(holdout=i == 0) for i in range(12)))
    repa = make("repa")
    state, fed = started(repa, people)
    assert state.served.assignment[0] == -1
    after = repa.admit(repa.round(state, 0, fed), torch.tensor([0]), fed)
    assert after.served.assignment[0] == state.served.assignment[2] and torch.equal(
        after.served.assignment[1:], state.served.assignment[1:]
    )


def test_clusters_start_from_the_same_model_and_average_their_own_clients():
    # by hand: model g = Σ over its participants of n · what the client trained / Σ n
    repa = make("repa")
    state, fed = started(repa)
    assert_same_bits(select(state.served.models, 0), small_net().init())
    assert_same_bits(select(state.served.models, 1), small_net().init())
    after = repa.round(state, 0, fed)
    twin = Vectorised(repa, population())
    replies = twin.run(repa.train, twin.clients, repa.offer(state, twin.clients, twin))
    for cluster in (0, 1):
        own = (state.served.assignment == cluster).nonzero()[:, 0]
        share = fed.sizes[own] / fed.sizes[own].sum()
        wanted = (share[:, None, None] * replies.stack("params")["1.weight"][own]).sum(0)
        torch.testing.assert_close(after.served.models["1.weight"][cluster], wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("fraction", "encoder_rounds"), [(1.0, 1), (0.5, 0)])
def test_one_cluster_is_fedavg(fraction, encoder_rounds):
    settings = {"population": population(), "rounds": 3, "fraction": fraction}
    repa, _ = fit(make("repa", clusters=1, signature=statistics(encoder_rounds=encoder_rounds)), **settings)
    fedavg, _ = fit(make("fedavg"), **settings)
    assert_close(select(repa.served.models, 0), fedavg.params)


def test_the_ledger_equals_the_papers_formula():
    repa = make("repa", signature=statistics(encoder_rounds=2))
    state, fed = fit(repa, population=population(), rounds=3, fraction=0.5)
    whole = size(repa.signature.network(repa.model, SHAPE).init())
    wanted = repa_parameters(12, size(state.root), 4 * WIDTH, 6, small_net().parameters(), 3)
    assert method_bytes(fed.ledger) == 4 * (wanted + 2 * 6 * whole * 2)


def test_a_head_that_the_loss_does_not_need_is_not_sent():
    parts = {"encoder": 78_688, "decoder": 78_705, "classifier": 384 * 64 + 64 + 64 * 3 + 3}
    for share, missing in ((0.0, "decoder"), (1.0, "classifier"), (0.5, "")):
        repa = make("repa", signature=statistics(reconstruction=share))
        _, fed = started(repa)
        wanted = sum(n for name, n in parts.items() if name != missing)
        assert fed.ledger.down["train_encoder"].tolist() == [4 * wanted] * 12


def test_an_encoder_can_be_handed_in(tmp_path):
    learnt, _ = started(make("repa"))
    save_file(learnt.root, tmp_path / "encoder.safetensors")
    repa = make("repa", signature=statistics(encoder=str(tmp_path / "encoder.safetensors")))
    state, fed = started(repa)
    assert_same_bits(state.root, learnt.root)
    assert torch.equal(state.served.assignment, learnt.served.assignment) and "train_encoder" not in fed.ledger.up


def test_an_encoder_that_does_not_fit_is_refused(tmp_path):
    save_file({"encoder.0.weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(ModelError, match=r"encoder\.0\.weight of shape \(16, 1, 3, 3\), got \(3,\)"):
        started(make("repa", signature=statistics(encoder=str(tmp_path / "other.safetensors"))))


def test_the_encoder_learns_by_federated_averaging():
    repa = make("repa", signature=statistics(encoder_rounds=3))
    network = repa.signature.network(repa.model, SHAPE)
    before, (state, _) = encoder_of(network.init()), started(repa)
    assert state.root.keys() == before.keys()
    assert all(not torch.equal(state.root[name], w) for name, w in before.items())


def test_the_encoder_sees_images_scaled_as_the_model_does():
    repa = make("repa")
    scaled = replace(repa, model=Model(repa.model.build, classes=3, mean=(0.5,), std=(0.5,)))
    assert scaled.signature.network(scaled.model, SHAPE).mean == (0.5,)


def test_more_clusters_than_training_clients_are_refused():
    people = population(roles=tuple(Role(holdout=i == 0) for i in range(12)))
    with pytest.raises(ConfigError, match=r"1\.\.11.+got 12"):
        started(make("repa", clusters=12), people)


def test_samples_that_are_no_images_have_an_encoder_too():
    for shape in ((64,), (9, 128), (3, 5, 7)):
        network = statistics().network(small_net(), shape)
        assert network.embed(network.init(), torch.zeros(2, *shape)).shape == (2, 64)
