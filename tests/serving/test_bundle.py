"""A run's bundle serves unseen clients as the run itself served its held-out clients."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kinfed import checkpoint
from kinfed.capabilities import reason_for_labels
from kinfed.config import load_config, make_population
from kinfed.errors import BundleError, DataError, RoleError
from kinfed.methods import METHODS
from kinfed.serving import Bundle, export, load
from kinfed.serving.assignment import OutputFolder
from kinfed.serving.client_files import assign_client
from kinfed.serving.run_export import export_run
from tests.problems import assert_same_bits

pytestmark = pytest.mark.xdist_group("serving")  # one process makes the runs
TUNES = ("fedavg_ft", "per_fedavg", "pfedme", "fedbabu")  # a client trains what it is served, in an order of its own
MIXES = ("fedem", "fedrc")  # a client with labels mixes the components by them
ALIKE = ("fedprox", "fednova", "ditto", "apfl", "fedala", "fedbn", "fedrep", "pacfl", "stocfl", "fedgroup", "flux",
         "flsc", "fedrc", "fedclust", "wd", "clove")  # served as others that run always  # fmt: skip
SERVED = [
    pytest.param(method, marks=[pytest.mark.on_demand] if method in ALIKE else [])
    for method in METHODS
    if method not in ("local", "oracle", *TUNES)
]


def population_of(run: Path):
    return make_population(load_config(run / "config.toml"))


def unseen(run: Path) -> list[dict[str, str]]:
    """What the run's table says of its holdout clients after the last round."""
    with open(run / "clients.csv", newline="") as file:
        table = list(csv.DictReader(file))
    return [row for row in table if row["round"] == table[-1]["round"] and row["role"] == "holdout"]


@pytest.mark.parametrize("method", SERVED)
def test_unseen_clients_get_from_the_bundle_what_they_got_in_the_run(method, runs, folder_of, tmp_path):
    run = runs(method)
    list(export_run(run, OutputFolder(tmp_path / "bundle")))
    population, clients = population_of(run), unseen(run)
    assert len(clients) == 4
    for row in clients:
        labelled = method in MIXES or bool(reason_for_labels(METHODS[method]))
        folder = folder_of(population, int(row["client"]), labelled)
        list(assign_client(tmp_path / "bundle", folder, OutputFolder(folder / "model"), False, None))
        written = json.loads((folder / "model" / "assignment.json").read_text())
        assert written["test_accuracy"] == pytest.approx(float(row["accuracy"]), abs=1e-6)
        assert written["test_samples"] == int(row["test_samples"])
        if method not in ("ifca", "flis_dc", "flsc"):  # their unseen clients select a model whenever they are served
            assert written["cluster"] == (int(row["cluster"]) if row["cluster"] else None)


@pytest.mark.parametrize("method", TUNES)
def test_an_unseen_client_without_labels_gets_the_common_model_and_one_with_labels_tunes_it(method, runs):
    run = runs(method)
    bundle, population = export(run), population_of(run)
    state, _ = checkpoint.load_served(run / "checkpoint.safetensors", bundle.method)
    client = int(unseen(run)[0]["client"])
    x, y = population.x[population.train[client]], population.y[population.train[client]]
    served = getattr(state, "params", None) or bundle.method.initial_memory() | state.shared
    assert_same_bits(bundle.assign(x).params, served)
    assert not bundle.assign(x, y).params["1.weight"].equal(served["1.weight"])
    assert_same_bits(bundle.assign(x, y).params, bundle.assign(x, y).params)


def test_a_method_without_models_for_unseen_clients_says_why(runs):
    with pytest.raises(RoleError, match="no model for unseen clients"):
        export(runs("local"))
    with pytest.raises(RoleError, match="all trained from the start"):
        export(runs("flhc", "roles.holdout=0"))
    with pytest.raises(RoleError, match="all trained from the start"):
        export(runs("flis_hc", "roles.holdout=0"))


def tensors_of(bundle: Bundle) -> dict:
    tensors: dict = {}
    checkpoint.take_apart(bundle.state, "state", tensors)
    return tensors


def test_a_bundle_has_one_model_for_each_cluster_and_nothing_of_unseen_clients(runs):
    bundle = export(runs("flt"))
    tensors = tensors_of(bundle)
    clusters = len(bundle.about["clusters"])
    assert len(tensors["state.served.models.1.weight"]) == clusters
    assert len(bundle.sizes) == sum(cluster["clients"] for cluster in bundle.about["clusters"]) == 11
    assert len(tensors["state.known.centroids"]) == 12  # the clients that trained, and a blank
    assert not tensors["state.known.centroids"][-1].any()


@pytest.mark.parametrize("method", ["repa", "flis_hc", "scaffold"])
def test_a_bundle_comes_back_as_it_was_written(method, runs, tmp_path):
    bundle = export(runs(method))
    bundle.save(tmp_path)
    again = load(tmp_path)
    assert_same_bits(tensors_of(again), tensors_of(bundle))
    assert again.method.local == bundle.method.local and again.about["clusters"] == bundle.about["clusters"]
    assert again.server_samples.equal(bundle.server_samples) and bool(len(again.server_samples)) == (
        method == "flis_hc"
    )
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors"}


@pytest.mark.parametrize("samples", [torch.zeros(3, 9, dtype=torch.uint8), torch.zeros(3, 1, 8, 8)])
def test_a_bundle_whose_samples_of_the_server_are_no_clients_samples_is_refused(runs, tmp_path, samples):
    replace(export(runs("flis_hc")), server_samples=samples).save(tmp_path)
    with pytest.raises(BundleError, match="unlike those of clients"):
        load(tmp_path)


@pytest.mark.parametrize("method", ["flt", "repa", "pca_km_hc", "auto"])
def test_the_distances_say_how_sure_a_cluster_is(method, runs):
    run = runs(method)
    bundle, population = export(run), population_of(run)
    mine = bundle.assign(population.x[population.train[0]])
    first, second = (mine.distances[cluster] for cluster in mine.nearest[:2])
    assert mine.cluster == mine.nearest[0] and len(mine.distances) == len(bundle.about["clusters"])
    assert mine.margin == pytest.approx(1 - first / second) and 0 < mine.margin <= 1
    assert export(runs("fedavg")).assign(population.x[:3]).summary()["margin"] is None


def test_a_client_with_some_labels_is_refused_and_so_are_test_samples_without(runs):
    population, bundle = population_of(runs("flt")), export(runs("flt"))
    own = population.train[0]
    x, y = population.x[own], population.y[own].clone()
    y[2] = -1
    with pytest.raises(
        DataError, match=rf"the client's samples: 1 of {len(y)} have no label .*, the first is sample 2"
    ):
        bundle.assign(x, y)
    with pytest.raises(DataError, match=r"its test samples: .* have no label"):
        bundle.assign(x, None, (x, y))


def test_folders_are_paths_or_text(runs, tmp_path):
    export(str(runs("flt"))).save(str(tmp_path / "bundle"))
    assert load(str(tmp_path / "bundle")).config.method == "flt"


def test_samples_too_large_to_be_assigned_by_are_told_so_and_nothing_of_training(runs, caplog):
    bundle = export(runs("flt"))
    bundle = replace(bundle, kind=replace(bundle.kind, dtype="float32"), server_samples=bundle.server_samples.float())
    huge = torch.full((5, *bundle.kind.shape), 1e38)
    with pytest.raises(DataError, match=r"its samples, of up to 1e\+38, is not finite; give samples in the un"):
        bundle.assign(huge)
    assert "training.lr" not in caplog.text
