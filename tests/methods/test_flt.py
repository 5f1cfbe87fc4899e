import logging
from dataclasses import replace
from math import prod

import pytest
import torch

from kinfed import OwnSettings, from_arrays
from kinfed.client import Client, Reply, client_task
from kinfed.data import Change, Role
from kinfed.engines import Sequential, Vectorised
from kinfed.errors import ConfigError, RoleError
from kinfed.experiment import Experiment
from kinfed.federation import Offer
from kinfed.learning_tasks import Regression
from kinfed.methods import FLT
from kinfed.methods.signature_tasks import raise_flags
from kinfed.metrics import flt_parameters, method_bytes
from kinfed.models import encoder_of, make_model
from kinfed.params import Params
from kinfed.relatedness import Relatedness
from kinfed.signatures import PartMeans, Pretraining
from kinfed.signatures.encoder_centroids import LONGEST
from tests.methods.registry import KERNEL, make, population, signature
from tests.problems import fit, same_clusters, small_net, tiny_population


def started(flt, people=None, engine=Vectorised, **settings):
    fed = engine(flt, people or population(), **settings)
    return flt.init(fed), fed


def weights_of(state, client):
    """The first layer of the model that a client is served."""
    return state.served.models["1.weight"][state.served.assignment[client]]


def test_it_finds_the_planted_clusters_and_serves_one_model_each():
    state, fed = started(make("flt"))
    assert same_clusters(state.clusters, fed.true_clusters)
    assert len(state.served.contributors) == 2 and same_clusters(state.served.assignment, fed.true_clusters)


def test_it_says_so_when_most_clients_would_train_alone():
    strict = make(KERNEL, relatedness=Relatedness(threshold=1e-6))
    with pytest.warns(
        UserWarning,
        match=r"^12 of 12 clients are related to no other and train alone: .+ relatedness.threshold, or none",
    ):
        state, _ = started(strict)
    assert len(state.clusters.unique()) == 12


def test_it_says_so_when_a_threshold_relates_everybody():
    with pytest.warns(UserWarning, match=r"^relatedness.threshold = 2 relates all 12 clients, .* method = 'flt_paper'"):
        state, _ = started(make(KERNEL, relatedness=Relatedness(threshold=2.0)))
    assert len(state.clusters.unique()) == 1


def test_related_clients_are_averaged_by_their_samples():
    # by hand: model g = Σ over its group of n · (what the client trained, or the old model)
    flt = make("flt", stale="aggregated")
    state, fed = started(flt, fraction=0.25)
    after = flt.round(state, 0, fed)
    cohort = [i for i in range(12) if fed.ledger.up["train"][i] > 0]
    twin = Sequential(flt, population(), fraction=0.25)
    twin.calls = {"describe": 1, "sample": 1}
    first = flt.init(Sequential(flt, population()))
    replies = twin.run(flt.train, torch.tensor(cohort), flt.offer(first, torch.tensor(cohort), twin))
    for cluster in (0, 1):
        members = [i for i in range(12) if fed.true_clusters[i] == cluster]
        model, total = (
            state.served.models["1.weight"][state.served.assignment[members[0]]],
            float(fed.sizes[members].sum()),
        )
        wanted = sum(
            fed.sizes[i] / total * (replies.stack("params")["1.weight"][cohort.index(i)] if i in cohort else model)
            for i in members
        )
        torch.testing.assert_close(
            after.served.models["1.weight"][after.served.assignment[members[0]]], wanted, atol=1e-5, rtol=0
        )


@pytest.mark.xdist_group("umap")  # which takes long to compile: once
def test_the_ledger_equals_the_papers_formula():
    flt = make(KERNEL, relatedness=Relatedness(distance="matching"))
    _, fed = fit(flt, population=population(), rounds=4, fraction=0.5)
    network = flt.signature.network(torch.Size((1, 8, 8)))
    encoder = sum(w.numel() for w in encoder_of(network.init()).values())
    wanted = flt_parameters(12, encoder, 3, 8, 6, small_net().parameters(), 4)
    assert method_bytes(fed.ledger) == 4 * wanted


def test_tuning_costs_the_decoder_and_the_kernel_costs_the_shares():
    flt = make(KERNEL, signature=signature(tuning="own_copy", tuning_epochs=1))
    _, fed = started(flt)
    whole = sum(w.numel() for w in flt.signature.network(torch.Size((1, 8, 8))).init().values())
    assert fed.ledger.down["compute_signature"].tolist() == [4 * whole] * 12
    assert fed.ledger.up["compute_signature"].tolist() == [4 * 3 * (8 + 1)] * 12


@pytest.mark.filterwarnings("ignore:no clear clusters")  # by encoders of which each is another
def test_own_copies_start_from_the_same_weights_and_sequential_ones_do_not():
    own, _ = started(make(KERNEL, signature=signature(tuning="own_copy", tuning_epochs=1)))
    passed, fed = started(make(KERNEL, signature=signature(tuning="sequential", tuning_epochs=1)))
    assert not torch.allclose(own.known.centroids[5], passed.known.centroids[5])
    assert fed.ledger.up["tune_in_turn"].min() > fed.ledger.down["tune_in_turn"].min()


FALLING = {"tuning": "sequential", "tuning_epochs": 30, "tuning_batch_size": 64, "tuning_decay": 0.5}  # first code


def test_the_learning_rate_of_tuning_in_turn_falls_from_client_to_client():
    for client in range(4):  # by hand: 1e-3 · 0.5^⌊(30 · client + epoch) / 10⌋
        wanted = [1e-3 / 2 ** (3 * client)] * 10 + [5e-4 / 2 ** (3 * client)] * 10 + [2.5e-4 / 2 ** (3 * client)] * 10
        assert signature(**FALLING).rates_in_turn(client).tolist() == pytest.approx(wanted)
    two = signature(**FALLING | {"tuning_epochs": 2})  # MNIST: five clients have the same
    assert [float(two.rates_in_turn(client)[0]) for client in (0, 4, 5, 10)] == pytest.approx(
        [1e-3, 1e-3, 5e-4, 2.5e-4]
    )
    assert not len(signature(tuning="sequential").rates_in_turn(3))
    for wrong in ({"tuning_decay": 0.0}, {"tuning_decay": 2.0}, {"tuning_decay_epochs": 0}, {"tuning": "own_copy"}):
        with pytest.raises(ConfigError, match="tuning_decay"):
            signature(**FALLING | wrong)
    with pytest.raises(ConfigError, match="tuning_epochs"):
        signature(**FALLING | {"tuning_epochs": 0})


def test_no_step_of_adam_is_longer_than_what_an_encoder_that_stands_still_is_judged_by():
    wall = 3000  # by hand: gradients aₜ/bₜ of Cauchy and Schwarz make the ratio largest, √52.9
    gradients = (torch.tensor(0.9 / 0.999).double() ** torch.arange(wall - 1, -1, -1)).tolist()
    first = second = 0.0
    for g in gradients:
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
    ratio = first / (1 - 0.9**wall) / (second / (1 - 0.999**wall)) ** 0.5
    assert 7 < ratio < LONGEST


def test_an_encoder_stands_still_when_no_float_moves():
    falling, shape = signature(**FALLING), (1, 8, 8)
    weights = {name: torch.ones_like(w) for name, w in falling.network(shape).init().items()}
    rates = torch.tensor([3e-9, 2e-9])  # half of the gap from 1 to the float below it is 2^-25 = 2.98e-8 > 8 · 3e-9
    assert falling.stands_still(weights, rates, shape) and not falling.stands_still(weights, 2 * rates, shape)
    assert not falling.stands_still(weights, rates[:0], shape), "the rate does not fall"
    weights["encoder.0.bias"] = torch.zeros_like(weights["encoder.0.bias"])
    assert not falling.stands_still(weights, rates, shape), "a zero moves at any rate"
    colour = {name: torch.ones_like(w) for name, w in falling.network((3, 8, 8)).init().items()}
    assert not falling.stands_still(colour, rates, (3, 8, 8)), "running statistics move"
    assert replace(falling, own_statistics=True).stands_still(colour, rates, (3, 8, 8))


@pytest.mark.parametrize("engine", [Sequential, Vectorised])
def test_tuning_an_encoder_that_stands_still_gives_the_same_bits(engine):
    falling = signature(**FALLING)
    weights, rates = falling.network((1, 8, 8)).init(), torch.full((30,), 1e-14)
    flt = make(KERNEL, signature=falling)
    fed = engine(flt, population())
    assert falling.stands_still(weights, rates, (1, 8, 8)) and not falling.stands_still(weights, 1e9 * rates, (1, 8, 8))
    for factor, is_same in ((1, True), (1e9, False)):
        offer = Offer(shared={"encoder": weights, "rates": factor * rates})
        tuned = fed.run(flt.tune_in_turn, torch.tensor([3]), offer).stack("encoder")
        assert all(torch.equal(w[0], weights[name]) for name, w in tuned.items()) == is_same


@pytest.mark.filterwarnings("ignore:no clear clusters")
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8)])
def test_engines_agree_on_an_encoder_tuned_in_turn_until_it_stands_still(shape):
    falling = FALLING | {"tuning_epochs": 3, "tuning_decay": 1e-3, "tuning_decay_epochs": 1, "own_statistics": True}
    whole, brief = tiny_population((20,) * 9, shape=shape), Pretraining(epochs=1, least_steps=2)
    people = replace(whole, train=whole.train[:8], test=whole.test[:8], true_clusters=None, public=whole.train[8])
    own = signature(**falling, pretraining=brief)
    flt = FLT(small_net(inputs=prod(shape)), signature=own, relatedness=Relatedness())
    states, feds = zip(*(started(flt, people, engine) for engine in (Sequential, Vectorised)), strict=True)
    torch.testing.assert_close(states[0].known.centroids, states[1].known.centroids, atol=1e-4, rtol=0)
    for fed in feds:
        calls = [(task, clients) for _, task, clients, _, _ in fed.ledger.rounds]
        turns = calls.count(("tune_in_turn", 1))  # the rates of their first epochs are 1e-3, 1e-12, 1e-21, …
        assert 0 < turns < 4 and calls[turns:] == [("compute_signature", 8 - turns)]
        tuned = (fed.ledger.up["tune_in_turn"] > 0).nonzero()[:, 0].tolist()
        assert tuned != list(range(turns)), "the order is random"


@pytest.mark.parametrize("rule", ["nearest", "relate"])
def test_newcomers_join_their_kin(rule):
    roles = tuple(Role(holdout=i == 3, joins=2 if i in (0, 5) else 0) for i in range(12))
    people = population(roles=roles)
    flt = make("flt", newcomers=rule)
    fed = Vectorised(flt, people)
    experiment = Experiment.over(fed, rounds=4)
    experiment.run()
    state = experiment.state
    assert same_clusters(state.clusters, fed.true_clusters)
    assert not state.served.contributors[:, 3].any(), "a holdout client contributes to no model"
    assert state.served.contributors[:, [0, 5]].any(0).all(), "late clients contribute"
    assert torch.equal(state.served.assignment[3], state.served.assignment[1]) or rule == "relate"


def test_a_newcomer_starts_from_its_clusters_current_model():
    flt = make("flt")
    people = population(roles=tuple(Role(joins=9 if i == 0 else 0) for i in range(12)))
    state, fed = started(flt, people)
    state = flt.round(state, 0, fed)
    fed.begin(9)
    placed = flt.admit(state, torch.tensor([0]), fed)
    kin = 2  # the same planted group
    assert torch.equal(
        placed.served.models["1.weight"][placed.served.assignment[0]],
        state.served.models["1.weight"][state.served.assignment[kin]],
    )
    assert torch.equal(
        placed.served.models["1.weight"][placed.served.assignment[kin]],
        state.served.models["1.weight"][state.served.assignment[kin]],
    )


def test_a_newcomers_slot_holds_its_clusters_model_until_it_trains():
    flt = make("flt", stale="last_local")
    state, fed = started(flt, population(roles=tuple(Role(joins=9 if i == 0 else 0) for i in range(12))))
    state = flt.round(state, 0, fed)
    fed.begin(9)
    placed = flt.admit(state, torch.tensor([0]), fed)
    assert torch.equal(
        placed.served.last_trained["1.weight"][0], placed.served.models["1.weight"][placed.served.assignment[0]]
    )
    assert torch.equal(placed.served.last_trained["1.weight"][1:], state.served.last_trained["1.weight"][1:])


def changed_at(round: int, who: int, to: int):
    people = tiny_population((20,) * 12)
    return tiny_population(
        (20,) * 12,
        changes=(
            Change(round, torch.tensor([who]), (people.train[to],), (people.test[to],), people.true_clusters[[to]]),
        ),
    )


def test_changed_data_are_flagged_and_relatedness_is_found_anew():
    flt = make("flt", dynamic=True, recluster_share=0.05)
    fed = Vectorised(flt, changed_at(2, who=0, to=1))
    state = flt.init(fed)
    for t in range(2):
        fed.begin(t)
        state = flt.round(state, t, fed)
    assert fed.calls["describe"] == 1 and state.clusters[0] == state.clusters[2]
    fed.begin(2)
    state = flt.round(state, 2, fed)
    assert fed.calls["describe"] == 2 and state.clusters[0] == state.clusters[1] != state.clusters[2]
    assert not state.flags.any()
    fed.begin(3)
    flt.round(state, 3, fed)
    assert fed.calls["describe"] == 2, "an answered flag is not raised again"


def test_few_flags_do_not_trigger_and_a_flag_is_counted_once_per_client():
    flt = make("flt", dynamic=True, recluster_share=0.2)
    fed = Vectorised(flt, changed_at(1, who=0, to=1))
    state = flt.init(fed)
    for t in range(5):
        fed.begin(t)
        state = flt.round(state, t, fed)
    assert int(state.flags.sum()) == 1 and fed.calls["describe"] == 1


def test_relatedness_is_found_anew_every_so_many_rounds_but_not_at_the_first():
    flt = make("flt", dynamic=True, recluster_every=2)
    _, fed = fit(flt, population=population(), rounds=5)
    assert fed.calls["describe"] == 1 + 2  # after rounds 2 and 4


def test_a_static_run_raises_no_flags_and_sends_none():
    _, fed = fit(make("flt"), population=population(), rounds=2)
    assert fed.ledger.up["train"].sum() == 2 * 12 * 4 * small_net().parameters()


def test_more_clusters_than_clients_are_refused():
    with pytest.raises(ConfigError, match=r"clusters must be 1\.\.12, the clients that train, got 13"):
        started(make("flt", clusters=13))


def test_more_centroids_than_could_be_held_are_refused():
    with pytest.raises(ConfigError, match=r"k must be 1\.\.10000, got 1000000"):
        signature(k=1_000_000)


def test_the_number_of_clusters_can_be_given():
    state, fed = started(make("flt", case="clusters", clusters=2))
    assert same_clusters(state.served.assignment, fed.true_clusters)


def test_the_diagnosis_says_where_clusters_in_use_are_not_those_that_were_found():
    flt = make("flt", case="clusters", clusters=3)
    said = flt.diagnosis(started(flt)[0])
    assert said.startswith("3 clusters in use; all signatures together show 2 clusters, well separated")


def test_k_by_labels_uses_as_many_centroids_as_the_client_has_labels():
    flt = make(KERNEL, signature=signature(k=5, k_by_labels=True))
    state, _ = started(flt)
    assert (state.known.shares > 0).sum(1).tolist() == [3] * 12


def test_a_client_that_is_not_placed_cannot_be_served():
    flt = make("flt")
    state, fed = started(flt, population(roles=tuple(Role(holdout=i == 3) for i in range(12))))
    with pytest.raises(RoleError, match="3"):
        flt.offer(state, torch.tensor([3]), fed)


def test_the_log_says_how_many_clients_compute_signatures(caplog):
    with caplog.at_level("INFO", "kinfed"):
        started(make("flt"), population())
    assert "12 clients compute their signatures" in caplog.messages


def test_without_public_rows_the_error_says_what_to_do():
    from kinfed.signatures import Pretraining

    with pytest.raises(ConfigError, match=r"data\.public = 0\.1 \(in Python: OwnSettings\(public=0\.1\)\)"):
        started(make(KERNEL, signature=signature(pretraining=Pretraining("public"))), tiny_population())


@pytest.mark.parametrize("rule", ["nearest", "relate"])
def test_a_client_without_a_signature_stays_alone_and_hinders_no_newcomer(rule):
    people = population(roles=tuple(Role(joins=2 if i == 0 else 0) for i in range(12)))
    sick = people.x.float() / 255
    sick[people.train[3]] = torch.nan
    flt = make("flt", newcomers=rule)
    fed = Vectorised(flt, replace(people, x=sick))
    state = flt.init(fed)
    assert (state.clusters == state.clusters[3]).sum() == 1
    fed.begin(2)
    placed = flt.admit(state, torch.tensor([0]), fed)
    assert placed.clusters[0] == placed.clusters[2]
    assert torch.isfinite(placed.served.models["1.weight"]).all()


def test_many_newcomers_make_relatedness_be_found_anew_but_holdout_clients_do_not():
    for holdout, times in ((False, 2), (True, 1)):
        roles = tuple(Role(joins=2 if i < 3 else 0, holdout=holdout and i < 3) for i in range(12))
        flt = make("flt", dynamic=True, recluster_share=0.2)
        fed = Vectorised(flt, population(roles=roles))
        Experiment.over(fed, rounds=4).run()
        described = [clients for _, task, clients, _, _ in fed.ledger.rounds if task == "compute_signature"]
        assert described == [9, 3, 12][: times + 1], "at first, the newcomers, and all of them again"


def test_an_unseen_client_that_fits_no_cluster_is_logged_and_served_the_likeliest(caplog):
    people = population(roles=tuple(Role(holdout=i in (2, 5)) for i in range(12)))
    odd = people.x.clone()
    odd[people.train[5]] = 255 - odd[people.train[5]]  # dark stripes on white: no cluster has these
    flt = make("flt")
    state, fed = started(flt, replace(people, x=odd))
    with caplog.at_level(logging.INFO, "kinfed"):
        state = flt.admit(state, torch.tensor([2, 5]), fed)
    assert "1 of 2 unseen clients fit none of the 2 clusters: each is served the likeliest" in caplog.text
    fit = flt.judge_fit(state, torch.tensor([2, 5]), fed)
    assert fit.fits.tolist() == [True, False] and float(fit.p_values[1]) < 0.025 <= float(fit.p_values[0])
    assert state.clusters[2] == state.clusters[0] and state.clusters[5] in state.clusters[fed.clients]
    assert flt.diagnosis(state).endswith("; 1 of 2 clients that never train fit none of the clusters.")
    alone = flt.judge_fit(state, torch.tensor([2]), fed)
    torch.testing.assert_close(alone.p_values, fit.p_values[:1], msg="one that fits nowhere widens no cluster")
    apart = replace(state, clusters=state.clusters.index_fill(0, torch.tensor([0]), -1))
    itself, unseen = (flt.judge_fit(each, torch.tensor([0]), fed).p_values for each in (state, apart))
    torch.testing.assert_close(itself, unseen, msg="a member is judged by the others")


def test_a_threshold_does_not_judge_the_fit_of_unseen_clients():
    state, fed = started(make(KERNEL), population(roles=tuple(Role(holdout=i == 2) for i in range(12))))
    assert make(KERNEL).judge_fit(state, torch.tensor([2]), fed) is None


class Alarmed(FLT):
    """One of its clients says in every round that its data changed."""

    @client_task
    def train(self, client: Client, params: Params) -> Reply:
        reply = super().train(client, params)
        return reply._replace(send=reply.send | {"changed": client.train.size == 12})


def test_a_client_that_always_raises_its_flag_makes_the_others_recluster_less_and_less_often():
    flt = Alarmed(**vars(make("flt", dynamic=True, recluster_share=0.05)))
    state, fed = fit(flt, population=population(), rounds=7)
    assert fed.calls["describe"] == 1 + 2  # after rounds 0 and 5
    rounds, none = [], torch.zeros_like(state.flags)
    for t in range(7, 160):
        state = raise_flags(replace(state, flags=none), torch.tensor([2]), t)
        rounds += [t] if state.flags.any() else []
    assert rounds == [15, 35, 75, 155]
    both = raise_flags(replace(state, flags=none), torch.tensor([2, 4]), 160)
    assert both.flags.nonzero().tolist() == [[4]]  # others' flags count at once


def start_by_numbers(unit: float, holdout: tuple[int, ...], their_unit: float = 1.0, newcomers: str = "nearest"):
    """FLT's first state on clients whose targets are numbers, in two clusters; some are held out."""
    draw = torch.Generator().manual_seed(1)
    x, weights = torch.randn(2400, 30, generator=draw), torch.randn(30, generator=draw) / 30**0.5
    client = torch.arange(2400) % 24
    sign = torch.where(client % 2 == 1, -1.0, 1.0)
    y = unit * (sign * (x @ weights) + 0.3 * torch.randn(2400, generator=draw) + 2)
    y = torch.where(torch.isin(client, torch.tensor(holdout)), their_unit * y, y)
    people = from_arrays(x.numpy(), y.numpy(), client.numpy(), OwnSettings(task=Regression()))
    people = replace(people, roles=tuple(Role(holdout=i in holdout) for i in range(24)))
    by_numbers = PartMeans(embedding="random", labels=True, latent=64)
    flt = FLT(make_model("linear", (30,), 1, task=Regression()), signature=by_numbers, newcomers=newcomers)
    state, fed = started(flt, people)
    return flt, flt.admit(state, torch.tensor(holdout), fed), fed


@pytest.mark.parametrize("unit, newcomers", [(1e-3, "nearest"), (1.0, "relate"), (1e3, "nearest")])
def test_with_targets_that_are_numbers_clusters_do_not_hang_on_their_unit(unit, newcomers):
    flt, state, fed = start_by_numbers(unit, (22, 23), newcomers=newcomers)
    assert len({(int(c), i % 2) for i, c in enumerate(state.clusters)}) == 2 == state.clusters.unique().numel()
    assert bool(flt.judge_fit(state, torch.tensor([22, 23]), fed).fits.all())
    assert flt.diagnosis(state).startswith("2 clusters, well separated")


@pytest.mark.parametrize("their_unit, fits", [(1.0, True), (10.0, False)])
def test_an_unseen_client_whose_numbers_are_in_another_unit_fits_no_cluster(their_unit, fits):
    flt, state, fed = start_by_numbers(1.0, (22,), their_unit)
    assert bool(flt.judge_fit(state, torch.tensor([22]), fed).fits) == fits
    misfits = "1 of 1 clients that never train fit none of the clusters."
    assert flt.diagnosis(state).endswith(misfits) != fits and ("never train" in flt.diagnosis(state)) != fits
