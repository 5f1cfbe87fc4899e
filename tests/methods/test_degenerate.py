"""Every registered method has a setting in which it is FedAvg. A new method must be added here, or a test fails."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kinfed.clustering.hierarchy import Hierarchy
from kinfed.methods import METHODS, FedAvg
from kinfed.models import Gradient, Model
from kinfed.params import Params, select
from kinfed.relatedness import Relatedness
from kinfed.training import LocalTraining
from tests.methods.registry import KERNEL, LOCAL, SHORT, make, population, statistics
from tests.methods.test_identities_one_model import SecondHalf
from tests.problems import assert_close, fit, norm_net, small_net, tiny_population

SEVERAL = population()
TWELVE = tiny_population((20,) * 12)
ALIKE = replace(
    TWELVE, train=TWELVE.train[:11], test=TWELVE.test[:11], true_clusters=None, public=TWELVE.test[11]
)  # equal sizes
ONE = replace(SEVERAL, train=SEVERAL.train[:1], test=SEVERAL.test[:1], true_clusters=SEVERAL.true_clusters[:1])


def ends(method, people, rounds=3) -> Params:
    """The model that the first client is served, or holds, after some rounds with half of the clients."""
    state, fed = fit(method, population=people, rounds=rounds, fraction=0.5)
    if hasattr(state, "params"):
        return state.params
    served = getattr(state, "served", state)
    if hasattr(served, "models"):
        return select(served.models, 0)
    own = {name.removeprefix("params/"): w[0] for name, w in fed.memory.items()}
    return own | getattr(state, "shared", {})


def is_fedavg(name: str, people=SEVERAL, rounds=3, local=LOCAL, **settings) -> Callable[[], tuple[Params, Params]]:
    return lambda: (
        ends(make(name, local=local, **settings), people, rounds),
        ends(make("fedavg", local=local), people, rounds),
    )


def half_of_each_pair() -> tuple[Params, Params]:
    meta = make("per_fedavg", local=LocalTraining(2, 10, 0.7, momentum=0.9), alpha=1e-12, beta=0.05)
    half = FedAvg(SecondHalf(small_net().build, classes=3), LocalTraining(2, 20, 0.05, momentum=0))
    return ends(meta, ALIKE), ends(half, ALIKE)


class FixedHead(Model):
    """Its last layer is not trained."""

    def compute_gradient(self, params, batch):
        weights, buffers = super().compute_gradient(params, batch)
        return Gradient({name: 0 * g if name.startswith("3.") else g for name, g in weights.items()}, buffers)


def is_fedavg_of_the_body(name: str, **settings) -> Callable[[], tuple[Params, Params]]:
    """What it averages is what FedAvg makes of a network whose last layer is not trained."""

    def both() -> tuple[Params, Params]:
        body, _ = fit(make(name, local=SHORT, **settings), population=SEVERAL, fraction=0.5)
        whole = ends(FedAvg(FixedHead(small_net().build, classes=3), SHORT), SEVERAL)
        return body.shared, {name: w for name, w in whole.items() if name in body.shared}

    return both


def steps_of_the_envelope() -> tuple[Params, Params]:
    one_step = make("pfedme", local=replace(SHORT, lr=0.1), pull=5.0, inner_steps=1, inner_lr=0.1)
    return ends(one_step, SEVERAL), ends(make("fedavg", local=replace(SHORT, lr=0.05, momentum=0.0)), SEVERAL)


def one_client_with_norms() -> tuple[Params, Params]:
    return ends(make("fedbn", local=SHORT), ONE), ends(FedAvg(norm_net(), SHORT), ONE)


IDENTITIES: dict[str, Callable[[], tuple[Params, Params]]] = {
    "fedavg": is_fedavg("fedavg", ONE, aggregate_over="all_clients"),
    "fedavg_ft": is_fedavg("fedavg_ft"),  # before it is tuned
    "fedprox": is_fedavg("fedprox", mu=0.0),
    "fednova": is_fedavg("fednova", ALIKE),
    "scaffold": is_fedavg("scaffold", ALIKE, rounds=1),
    "lg_fedavg": is_fedavg("lg_fedavg", shared_tensors=4),
    "fedper": is_fedavg("fedper", ONE),
    "per_fedavg": half_of_each_pair,
    "ditto": is_fedavg("ditto", local=SHORT),  # what is sent
    "apfl": is_fedavg("apfl", local=SHORT),
    "pfedme": steps_of_the_envelope,
    "fedala": is_fedavg("fedala", local=SHORT, mixing_lr=0.0),
    "fedrep": is_fedavg_of_the_body("fedrep", head_epochs=0),
    "fedbabu": is_fedavg_of_the_body("fedbabu"),
    "fedbn": one_client_with_norms,
    "local": is_fedavg("local", ONE),
    "auto": is_fedavg("auto", compare=0.0, merge=0.0, judge=0.0, average=0.0),
    "flt": is_fedavg(KERNEL, relatedness=Relatedness(threshold=1e9), stale="exclude"),
    "pca_km_hc": is_fedavg("pca_km_hc", threshold=1e9, stale="exclude"),
    "ifca": is_fedavg("ifca", clusters=1),
    "fesem": is_fedavg("fesem", clusters=1, stale="exclude"),
    "cfl": is_fedavg("cfl", ALIKE, after=99),
    "flhc": is_fedavg("flhc", hierarchy=Hierarchy(threshold=1e9)),
    "flis_dc": is_fedavg("flis_dc", beta=0.0, rounds=1),  # later on clients start from one of its equal models
    "flis_hc": is_fedavg("flis_hc", beta=0.0),
    "repa": is_fedavg("repa", clusters=1, signature=statistics(encoder_rounds=0)),
    "pacfl": is_fedavg("pacfl", threshold=1e9),
    "wd": is_fedavg("wd", clusters=1, rounds_before=0),
    "fedclust": is_fedavg("fedclust", hierarchy=Hierarchy(threshold=1e9)),
    "fedgroup": is_fedavg("fedgroup", clusters=1),
    "clove": is_fedavg("clove", clusters=1),
    "stocfl": is_fedavg("stocfl", threshold=-1.0, pull=0.0),
    "flux": is_fedavg("flux", rounds_before=99),
    "feddrift": is_fedavg("feddrift", first="one", delta=1.0),
    "centralised": is_fedavg("centralised", local=LocalTraining(1, 10**6, 0.05)),  # one step on all samples
    "fedem": is_fedavg("fedem", components=1),
    "fedrc": is_fedavg("fedrc", components=1),
    "fedsoft": is_fedavg("fedsoft", ONE, clusters=1, pull=0.0),
    "flsc": is_fedavg("flsc", clusters=1, overlap=1),
    "oracle": is_fedavg("oracle", replace(SEVERAL, true_clusters=None)),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.filterwarnings("ignore:.* looks for clusters after", "ignore:.* which is FedAvg")
def test_a_degenerate_setting_is_fedavg(name):
    assert name in IDENTITIES, f"say in {__name__} in which setting '{name}' is FedAvg"
    got, wanted = IDENTITIES[name]()
    assert_close(got, wanted, atol=1e-6)
