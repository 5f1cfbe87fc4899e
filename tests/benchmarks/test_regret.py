"""The regret table: the methods of a row meet on the seeds that all of them have run."""

import argparse
import json

import pytest
import torch

from benchmarks import regret
from benchmarks.regret import GIVEN, PUBLIC, make_method, make_population, show, show_by_method, true_clusters
from benchmarks.regret_cases import CASES, Case, PlantedLabels
from kinfed.data.partitions import DisjointClasses
from kinfed.methods import METHODS


def test_methods_are_compared_on_the_seeds_that_all_have_and_references_count_in_no_regret(tmp_path):
    path = tmp_path / "regret.jsonl"
    runs = [("fedavg", 0, 90, 10), ("auto", 0, 88, 12), ("oracle", 0, 99, 10), ("fedavg", 1, 10, 10)]
    lines = [
        {"case": "mnist-iid", "method": m, "seed": s, "accuracy": a, "bytes_down": b, "bytes_up": b}
        for m, s, a, b in runs
    ]
    failed = {"case": "mnist-iid", "method": "auto", "seed": 1, "error": "out of memory"}
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, failed]))
    row = show(path, ["fedavg", "auto", "oracle"]).splitlines()[2]
    assert row == "| mnist-iid | 1 | **90.0** | 88.0 | 99.0 | 2.00 | 1.20 |"


def test_a_table_by_method_has_mean_regrets_references_last_and_no_mean_where_one_failed(tmp_path):
    path = tmp_path / "regret.jsonl"
    runs = {"mnist-iid": (80, 70, 90), "mnist-swap": (60, 70, 99)}
    lines = [
        {"case": case, "method": m, "seed": 0, "accuracy": accuracy}
        for case, row in runs.items()
        for m, accuracy in zip(("fedavg", "local", "oracle"), row, strict=True)
    ]
    lines.append({"case": "mnist-iid", "method": "ifca", "seed": 0, "accuracy": 75})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert show_by_method(path, ["oracle", "ifca", "local", "fedavg"]).splitlines()[2:] == [
        "| local | 70.0 | **70.0** | 5.00 |",
        "| fedavg | **80.0** | 60.0 | 5.00 |",
        "| ifca | 75.0 | – | – |",
        "| oracle | 90.0 | 99.0 | -19.50 |",
    ]


def test_the_least_error_is_the_best_and_regret_is_what_a_method_errs_beyond_it(tmp_path):
    path = tmp_path / "regret.jsonl"
    runs = [("fedavg", 3.7), ("local", 2.5), ("auto", 2.625), ("oracle", 1.9)]
    lines = [
        {"case": "friedman-columns", "method": m, "seed": 0, "mae": e, "bytes_down": 1, "bytes_up": 1} for m, e in runs
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    row = show(path, ["fedavg", "local", "auto", "oracle"]).splitlines()[2]
    assert row == "| friedman-columns | 1 | 3.70 | **2.50** | 2.62 | 1.90 | 0.12 | 1.00 |"
    assert show_by_method(path, ["fedavg", "local", "auto"]).splitlines()[2] == "| local | **2.50** | 0.00 |"


@pytest.mark.parametrize(
    "name", ["friedman-iid", "friedman-columns", "diabetes-iid", "diabetes-sexes", "diabetes-mirrored"]
)
def test_sources_of_a_table_are_dealt_out_to_as_many_clients_each(name):
    population = make_population(CASES[name], 0, "")
    clusters = true_clusters(population)
    assert population.y.is_floating_point() and len(clusters.bincount().unique()) == 1
    assert torch.cat(population.train).unique().numel() == sum(map(len, population.train)), (
        "no sample is at two clients"
    )
    assert (clusters.max() == 0) == name.endswith("iid")
    y = population.y[torch.cat(population.train)]
    task = CASES[name].task
    assert abs(float(y.mean()) - task.mean) < 0.6 * task.std and 0.8 < float(y.std()) / task.std < 1.2


def test_every_method_can_be_asked_for_and_is_given_the_number_of_clusters_if_it_needs_one():
    case = Case("digits", DisjointClasses(10, 5), train_samples=20, test_samples=10)
    population = make_population(case, 0, "")
    methods = {name: make_method(name, case, population, "", 0) for name in METHODS}
    given = {name: getattr(method, GIVEN.get(name, "clusters"), 0) for name, method in methods.items()}
    numbers = {name: number for name, number in given.items() if isinstance(number, int) and number}
    assert numbers == dict.fromkeys((*GIVEN, "ifca", "fesem", "repa"), 5)
    assert len(make_population(case, 0, "", PUBLIC["flis_dc"]).public) > 0


def test_what_failed_is_tried_again_and_what_ended_is_not(tmp_path, monkeypatch):
    out = tmp_path / "regret.jsonl"
    lines = [{"case": "mnist-iid", "seed": 0, "method": "auto", "error": "lost"},
             {"case": "mnist-iid", "seed": 0, "method": "fedavg", "accuracy": 90.0}]  # fmt: skip
    out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(regret, "make_population", lambda *given: None)
    monkeypatch.setattr(regret, "measure", lambda name, *given: {"accuracy": 91.0})
    options = argparse.Namespace(threads=1, methods=["auto", "fedavg"], out=out, data_dir="")
    regret.run_case(("mnist-iid", 0, options))
    assert [line["method"] for line in regret.read_lines(out)] == ["auto", "fedavg", "auto"]


def test_no_case_has_more_clusters_of_own_labels_than_there_are_labels():
    planted = [case.partition for case in CASES.values() if isinstance(case.partition, PlantedLabels)]
    assert planted and all(len(partition.sizes) <= 47 for partition in planted)
    assert "mnist-12-clients-alone" not in CASES and "fashion_mnist-5-clients-alone" in CASES


def test_with_few_draws_for_so_many_processes_each_method_of_a_draw_is_in_one_part():
    options = argparse.Namespace(seeds=[3], only=["mnist-iid", "mnist-swap"], jobs=2, methods=["a", "b", "c", "d"])
    jobs = [(name, seed, some.methods) for name, seed, some in regret.list_jobs(options)]
    parts = (["a", "d"], ["b"], ["c"])
    assert jobs == [(name, 3, part) for part in parts for name in ("mnist-iid", "mnist-swap")]
    options.jobs = 1
    assert [some.methods for _, _, some in regret.list_jobs(options)] == [["a", "b", "c", "d"]] * 2


def test_each_layer_of_a_small_network_is_shared_by_a_method_or_personal():
    case = Case("digits", DisjointClasses(10, 5), train_samples=20, test_samples=10)
    method = make_method("lg_fedavg", case, make_population(case, 0, ""), "", 0)
    assert [name for name in method.model.weights if method.is_shared(name)] == ["3.weight", "3.bias"]
