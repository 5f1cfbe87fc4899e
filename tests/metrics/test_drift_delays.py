"""When a change of clients' samples is noticed, and when they have recovered, by hand."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from kinfed import api
from kinfed.config import load_config
from kinfed.data import Change, Population, Role
from kinfed.engines import Vectorised
from kinfed.experiment import Experiment
from kinfed.federation import Federation
from kinfed.methods.oracle import Oracle, OracleState
from kinfed.metrics import DriftEvent, DriftLog, average_delays, fits_cluster
from tests.problems import small_net, tiny_population


def test_a_client_fits_where_most_others_of_its_cluster_are_of_its_true_one():
    true = torch.tensor([0, 0, 1, 1, 1, 0])
    assert fits_cluster(torch.tensor([0, 0, 0, 1, 1, 2]), true, 5), "alone"
    assert not fits_cluster(torch.tensor([0, 0, 0, 1, 1, 2]), true, 2), "both others are of another"
    assert not fits_cluster(torch.tensor([0, 1, 0, 0, 1, 1]), true, 0), "half is not most"
    assert fits_cluster(torch.tensor([7, 1, 7, 7, 7, 1]), true, 3), "two of three; names do not matter"
    assert not fits_cluster(torch.tensor([0, 0, -1, 1, 1, 2]), true, 2), "not assigned"


def test_delays_are_means_and_one_that_never_ends_counts_until_the_next():
    log = DriftLog(
        (
            DriftEvent(2, 0, 0.9, noticed=3, recovered=2),
            DriftEvent(2, 1, 0.8),  # changes again in round 6: 4 rounds
            DriftEvent(6, 1, None, noticed=6),  # at once; it was not scored before
        )
    )
    found = log.measure(10, has_clusters=True)
    assert found == pytest.approx(
        {"drift_delay": (1 + 4 + 0) / 3, "drift_delay_share": 2 / 3,
         "drift_recovery": (0 + 4) / 2, "drift_recovery_share": 1 / 2}
    )  # fmt: skip
    assert set(log.measure(10, has_clusters=False)) == {"drift_recovery", "drift_recovery_share"}
    assert not DriftLog().measure(10, has_clusters=True) and not average_delays("x", [])
    assert DriftLog.read(log.state_dict()) == log


def moving() -> Population:
    """Six clients of two clusters; before round 2 client 0 goes over to the other cluster, with samples of client 1."""
    people = tiny_population()
    return replace(
        people, changes=(Change(2, torch.tensor([0]), people.train[1:2], people.test[1:2], torch.tensor([1])),)
    )


@dataclass(frozen=True)
class SlowOracle(Oracle):
    """It hears of a change one round late."""

    def round(self, state: OracleState, t: int, fed: Federation) -> OracleState:
        known = fed.true_clusters
        fed.true_clusters = tiny_population().true_clusters if t < 3 else known
        state = super().round(state, t, fed)
        fed.true_clusters = known
        return state


@pytest.mark.parametrize(("method", "delay"), [(Oracle, 0), (SlowOracle, 1)])
def test_a_run_measures_the_delay_of_its_method(method, delay):
    experiment = Experiment.over(Vectorised(method(small_net()), moving()), rounds=5)
    summary = experiment.run()
    assert summary["drift_delay"] == delay and summary["drift_delay_share"] == 1
    (event,) = experiment.drift_log.events
    assert (event.round, event.client, event.noticed) == (2, 0, 2 + delay) and event.before is not None
    changed = [metrics.get("accuracy_changed") for _, metrics in experiment.history]
    assert changed[:2] == [None, None] and changed[4] == pytest.approx(float(experiment.scores.main[0]))


def test_a_client_that_has_left_is_neither_asked_nor_scored_nor_counted():
    people = moving()
    people = replace(people, roles=(Role(leaves=2), *[Role()] * 5))
    experiment = Experiment.over(Vectorised(Oracle(small_net()), people), rounds=4)
    summary = experiment.run()
    assert not experiment.drift_log.events and "drift_delay" not in summary
    assert [row[2] for row in experiment.fed.ledger.rounds if row[1] == "evaluate"] == [6, 6, 5, 5]
    assert experiment.scores.main.isnan().tolist() == [True] + [False] * 5


def test_a_client_that_leaves_unnoticed_counts_until_then():
    people = replace(moving(), roles=(Role(leaves=3), *[Role()] * 5))
    summary = Experiment.over(Vectorised(SlowOracle(small_net()), people), rounds=8).run()
    assert summary["drift_delay"] == 1 and summary["drift_delay_share"] == 0
    assert summary["drift_recovery"] <= 1


def test_a_client_that_joins_as_its_samples_change_has_had_no_others():
    people = replace(moving(), roles=(Role(joins=2), *[Role()] * 5))
    experiment = Experiment.over(Vectorised(SlowOracle(small_net()), people), rounds=4)
    summary = experiment.run()
    assert not experiment.drift_log.events and "drift_delay" not in summary
    assert all("accuracy_changed" not in metrics for _, metrics in experiment.history)


def test_changes_after_the_last_round_are_warned_of():
    with pytest.warns(UserWarning, match="change before round 2 .* only 2"):
        Experiment.over(Vectorised(Oracle(small_net()), moving()), rounds=2).run()


DRIFTING = ["method=ifca", "data.name=digits", "partition.name=iid", "partition.clients=6", "rounds=4", "fraction=1.0",
            "checkpoint_every=1", "data.train_samples=40", "drift.name=label_swap", "drift.pairs=[[0, 1]]",
            "drift.change_rounds=[1, 3]", "drift.concepts=[[0, 0], [0, 1], [1, 0]]"]  # fmt: skip


@pytest.mark.parametrize("rounds", [1, 2])  # the first change comes after the first of them
def test_a_resumed_run_measures_the_same(tmp_path: Path, rounds: int):
    api.run(load_config(None, [*DRIFTING, f"rounds={rounds}"]), out=tmp_path / "short", quiet=True)
    api.resume(tmp_path / "short", rounds=4, quiet=True)
    api.run(load_config(None, DRIFTING), out=tmp_path / "long", quiet=True)
    for name in ("rounds.csv", "clients.csv", "clusters.csv", "drift.csv", "summary.json"):
        assert (tmp_path / "short" / name).read_bytes() == (tmp_path / "long" / name).read_bytes(), name
    lines = (tmp_path / "long" / "drift.csv").read_text().splitlines()
    assert lines[0] == "round,client,score_before,noticed,recovered" and len(lines) == 1 + 3 + 6
