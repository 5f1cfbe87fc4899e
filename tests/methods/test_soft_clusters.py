"""FedRC, FedSoft and FLSC by hand: label shares, proximal centres, and models that clients share."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from kinfed.data import Role
from kinfed.engines import Vectorised
from kinfed.engines.sequential import make_client
from kinfed.errors import ConfigError
from kinfed.methods import FedRC
from kinfed.methods.cluster_models import draw_models
from kinfed.methods.fedsoft import average_centres
from kinfed.methods.mixtures import expect, share_labels
from kinfed.params import select
from kinfed.training import LocalTraining
from tests.methods.planted import LOCAL, net, renamed
from tests.methods.registry import make, population
from tests.problems import assert_close as assert_models_close
from tests.problems import fit

ONE_STEP = LocalTraining(epochs=1, batch_size=10**6, lr=0.1, momentum=0.0)
CPU = torch.device("cpu")


def test_fedrc_divides_likelihoods_by_the_share_of_the_label():
    method, people = make("fedrc"), population()
    models, labels = draw_models(method.model, 2, CPU), torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]])
    client = make_client(Vectorised(method, people), 0, torch.tensor(3), {"shares": torch.tensor([0.25, 0.75])})
    found = expect(client, method.model, models, -labels.log())
    x, y = people.x[people.train[0]], people.y[people.train[0]]
    likely = torch.stack([method.model.logits(select(models, m), x).softmax(1)[range(len(y)), y] for m in (0, 1)])
    joint = torch.tensor([[0.25], [0.75]]) * likely / labels[:, y]
    assert_close(found.weights, joint / joint.sum(0))
    for label in range(3):
        assert_close(found.masses[:, label], found.weights[:, y == label].sum(1) / len(y))


def test_fedrc_knows_the_labels_of_its_components_and_no_share_is_below_the_floor():
    state, fed = fit(make("fedrc", floor=0.3), population=population(), rounds=1)
    sizes, y = fed.sizes, torch.cat([fed.y[rows] for rows in fed.train])
    assert state.labels.shape == (2, 3) and bool((state.labels >= 0.1 - 1e-6).all())
    free, _ = fit(make("fedrc", floor=1e-6), population=population(), rounds=1)
    assert_close(free.labels.sum(1), torch.ones(2))
    one, _ = fit(make("fedrc", components=1, floor=1e-6), population=population(), rounds=1)
    assert_close(one.labels[0], torch.bincount(y, minlength=3) / sizes.sum())


def test_a_component_that_got_no_sample_has_even_shares_of_labels():
    masses = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.2, 0.1, 0.1, 0.0], [1e-9, 3e-9, 0.0, 0.0]])
    expected = torch.tensor([[0.25] * 4, [0.5, 0.25, 0.25, 0.0], [0.25, 0.75, 0.0, 0.0]])
    assert_close(share_labels(masses), expected)


def test_fedrc_finds_exchanged_labels():
    people = renamed()
    state, fed = fit(FedRC(net(), LOCAL, components=2), population=people, rounds=8)
    found = []
    for i in range(12):
        client = make_client(fed, i, torch.tensor(0), select(fed.memory, i))
        offer = {"models": state.models, "labels": state.labels}
        found.append(int(fed.method.personalise(client, offer)["shares"].argmax()))
    assert len(set(zip(found, people.true_clusters.tolist(), strict=True))) == 2


def test_fedsoft_counts_on_which_samples_a_centre_is_best():
    method, people = make("fedsoft"), population()
    models, client = draw_models(method.model, 2, CPU), make_client(Vectorised(method, people), 0, torch.tensor(3), {})
    x, y = people.x[people.train[0]], people.y[people.train[0]]
    losses = torch.stack(
        [
            torch.nn.functional.cross_entropy(method.model.logits(select(models, s), x), y, reduction="none")
            for s in (0, 1)
        ]
    )
    wanted = torch.tensor([(losses.argmin(0) == s).float().mean() for s in (0, 1)])
    shares = method.estimate(client, models).send["shares"]
    assert_close(shares, wanted, atol=2e-4, rtol=0)
    assert float(shares.sum()) == pytest.approx(1) and float(shares.min()) > 0


def test_a_centre_of_fedsoft_that_diverged_is_best_on_no_sample():
    method, people = make("fedsoft"), population()
    models, client = draw_models(method.model, 2, CPU), make_client(Vectorised(method, people), 0, torch.tensor(3), {})
    broken = {name: torch.stack([w[0] * torch.nan, w[1]]) for name, w in models.items()}
    shares = method.estimate(client, broken).send["shares"]
    assert float(shares[0]) < 1e-3 and float(shares[1]) > 0.99


def test_fedsoft_pulls_a_client_to_the_mean_of_its_centres_and_keeps_its_model():
    people = population(roles=tuple(Role(holdout=i > 0) for i in range(12)))
    free, held = (make("fedsoft", local=ONE_STEP, pull=pull, clusters=1) for pull in (0.0, 4.0))
    models, shares = draw_models(held.model, 1, CPU), torch.tensor([1.0])
    own = held.model.init(7)
    memory = {f"own/{name}": w for name, w in own.items()} | {"has_trained": torch.tensor(True)}
    client = make_client(Vectorised(held, people), 0, torch.tensor(3), memory)
    ends = [method.train(client, models, shares) for method in (free, held)]
    centre = average_centres(models, shares)
    wanted = {name: w - 0.1 * 4.0 * (own[name] - centre[name]) for name, w in ends[0].send["params"].items()}
    assert_models_close(ends[1].send["params"], wanted)
    assert_models_close(ends[1].keep["own"], wanted)
    used = held.personalise(client, {"models": models, "shares": shares})
    assert_models_close(used, own)


def test_fedsofts_centres_weigh_clients_by_shares_and_samples():
    state, fed = fit(make("fedsoft", every=9), population=population(), rounds=1)
    own = {name.removeprefix("own/"): w for name, w in fed.memory.items() if name.startswith("own/")}
    weights = (state.shares * fed.sizes[:, None]).T
    weights = weights / weights.sum(1, keepdim=True)
    assert_models_close(state.models, {name: torch.einsum("sc,c...->s...", weights, w) for name, w in own.items()})


def test_flsc_with_one_model_each_is_ifca():
    soft, hard = (make(name, clusters=2, **more) for name, more in (("flsc", {"overlap": 1}), ("ifca", {})))
    (one, _), (other, _) = (fit(method, population=population(), rounds=2) for method in (soft, hard))
    assert_models_close(one.models, other.models)
    assert torch.equal(one.choices[:, 0], other.choices)


def test_flsc_trains_the_mean_of_the_selected_models_and_counts_in_all_of_them():
    roles = tuple(Role(holdout=i > 0) for i in range(12))
    method = replace(make("flsc", local=ONE_STEP, clusters=1, overlap=1), clusters=3, overlap=2)
    people = population(roles=roles)
    fed = Vectorised(method, people)
    models = draw_models(method.model, 3, CPU)
    client = make_client(fed, 0, torch.tensor(3), {})
    reply = method.train(client, models)
    best = reply.send["choices"]
    start = {name: (w[best[0]] + w[best[1]]) / 2 for name, w in models.items()}
    gradient = method.model.gradient(start, next(client.batches(1, 10**6))).weights
    assert_models_close(reply.send["params"], {name: w - 0.1 * gradient[name] for name, w in start.items()})
    losses = [float(method.model.loss(select(models, m), next(client.batches(1, 10**6)))) for m in range(3)]
    assert best.tolist() == sorted(range(3), key=losses.__getitem__)[:2]


def test_a_client_that_names_one_model_of_flsc_twice_counts_once_in_it():
    method, people = make("flsc", clusters=2, overlap=2), population()
    fed, sizes = Vectorised(method, people), torch.tensor([len(own) for own in people.train]).float()

    def reply(name, cohort, keys, offer):
        sent = {
            name: torch.zeros_like(w[:1]).repeat(12, *[1] * (w.dim() - 1)) for name, w in offer.shared["models"].items()
        }
        for w in sent.values():
            w[3] = 1.0
        return {"params": sent, "choices": torch.tensor([[0, 1]] * 3 + [[0, 0]] + [[0, 1]] * 8)}, {}

    fed._run = reply
    models = method.round(method.init(fed), 0, fed).models
    for w in models.values():
        assert_close(w[0], torch.full_like(w[0], float(sizes[3] / sizes.sum())))
        assert_close(w[1], torch.zeros_like(w[1]))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("flsc", {"clusters": 2, "overlap": 3}),
        ("flsc", {"overlap": 0}),
        ("fedsoft", {"every": 0}),
        ("fedsoft", {"pull": -1.0}),
        ("fedrc", {"floor": 0.0}),
        ("fedrc", {"components": 0}),
    ],
)
def test_impossible_settings_are_refused(name, wrong):
    with pytest.raises(ConfigError, match=next(reversed(wrong))):
        make(name, **wrong)


def test_flsc_says_of_no_unseen_client_what_it_selects_of_random_models():
    roles = tuple(Role(holdout=i == 2, joins=2 if i == 5 else 0) for i in range(12))
    method = make("flsc")
    fed = Vectorised(method, population(roles=roles))
    state = method.admit(method.init(fed), torch.tensor([2]), fed)
    assert bool((state.choices[2] == -1).all())
    fed.begin(2)
    late = method.admit(state, torch.tensor([5]), fed)
    assert (
        late.choices[5].tolist()
        == fed.run(method.choose, torch.tensor([5]), method.offer(state, None, fed))["choices"][0].tolist()
    )
