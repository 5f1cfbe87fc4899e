"""The run folder: tables that survive being killed, folders that are not overwritten, checkpoints that must fit."""

import csv
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from kinfed import api, checkpoint
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.config import Config, assemble, load_config
from kinfed.errors import CheckpointError, ConfigError
from kinfed.methods import FedAvg
from kinfed.runs import Interrupted, RunWriter, free_folder, hold
from kinfed.runs.logs import CsvLog, EventLog
from kinfed.runs.reader import is_comparison
from kinfed.runs.writer import write_config, write_relatedness
from tests.problems import small_net, tiny_population

TINY = ["method=fedavg", "partition.clients=10", "fraction=0.5", "rounds=4", "checkpoint_every=2"]


def config(*settings: str) -> Config:
    return load_config(None, [*TINY, *settings])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = ("roles.holdout=0.2", "roles.unlabelled=0.1", "evaluation.every=2", "evaluation.adapt=true")
    return api.run(config(*settings), out=tmp_path_factory.mktemp("runs") / "one", quiet=True).path


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with open(folder / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_rounds_have_metrics_where_they_were_evaluated_and_bytes_always(finished: Path):
    rounds = table(finished, "rounds")
    assert [row["round"] for row in rounds] == ["1", "2", "3", "4"]
    assert [bool(row["accuracy"]) for row in rounds] == [False, True, False, True]
    weights = 64 * 200 + 200 + 200 * 10 + 10
    asked = 3  # half of the 7 who train
    assert [int(row["bytes_down"]) for row in rounds] == [4 * weights * asked * n for n in (1, 2, 3, 4)]
    assert [int(row["bytes_up"]) for row in rounds] == [4 * weights * asked * n for n in (1, 2, 3, 4)]


def test_clients_have_their_role_cluster_and_scores(finished: Path):
    clients = table(finished, "clients")
    assert len(clients) == 2 * 10
    assert sorted(row["role"] for row in clients[:10]) == ["holdout"] * 2 + ["trains"] * 7 + ["unlabelled"]
    assert [row["true_cluster"] for row in clients[:10]] == ["0", "0", "1", "1", "2", "2", "3", "3", "4", "4"]
    assert all(0 <= float(row["accuracy"]) <= 1 and int(row["test_samples"]) > 0 for row in clients)
    assert [row["client"] for row in clients[:10] if not row["accuracy_adapted"]] == [
        row["client"] for row in clients[:10] if row["role"] == "unlabelled"
    ]


def test_the_ledger_adds_up(finished: Path):
    by_round, by_client = table(finished, "ledger"), table(finished, "ledger_clients")
    for way in ("bytes_down", "bytes_up"):
        assert sum(int(row[way]) for row in by_round) == sum(int(row[way]) for row in by_client)
        training = sum(int(row[way]) for row in by_round if row["task"] == "train")
        assert (
            training
            == int(table(finished, "rounds")[-1][way])
            == json.loads((finished / "summary.json").read_text())[way]
        )
    assert {row["round"] for row in by_round if row["task"] == "evaluate"} == {"2", "4"}


def test_timing_and_events_tell_the_story(finished: Path):
    assert [row["round"] for row in table(finished, "timing")] == ["0", "1", "2", "3", "4"]
    events = [json.loads(line) for line in (finished / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["started", "ended"]


def test_equal_runs_write_equal_files(finished: Path, tmp_path: Path):
    again = api.run(load_config(finished / "config.toml"), out=tmp_path / "two", quiet=True).path
    for name in (
        "config.toml",
        "rounds.csv",
        "clients.csv",
        "clusters.csv",
        "ledger.csv",
        "ledger_clients.csv",
        "summary.json",
    ):
        assert (again / name).read_bytes() == (finished / name).read_bytes(), name


def test_a_log_is_cut_back_to_a_round_and_loses_half_written_lines(tmp_path: Path):
    log = CsvLog(tmp_path / "a.csv", ("round", "value"))
    log.rewrite([(1, 0.5), (2, float("nan"))])
    log.append([(10, "a,b"), (11, None)])
    with open(log.path, "a") as file:
        file.write("1,0.")  # killed in the middle of a line
    log.cut_after(10)
    assert log.path.read_text() == 'round,value\n1,0.5\n2,\n10,"a,b"\n'
    log.cut_after(1)
    assert log.path.read_text() == "round,value\n1,0.5\n"


def test_a_half_written_event_is_dropped(tmp_path: Path):
    log = EventLog(tmp_path / "events.jsonl")
    log.note("started")
    with open(log.path, "a") as file:
        file.write('{"time": ')
    log.repair()
    log.note("line\u2028separator")
    assert [json.loads(line)["event"] for line in log.path.read_text().split("\n")[:-1]] == [
        "started",
        "line\u2028separator",
    ]


def test_clusters_are_written_when_they_change(finished: Path, tmp_path: Path):
    folder = RunWriter(tmp_path, assemble(config()).fed, {})
    folder.on_start(4, 0)
    for round, clusters in enumerate([[0, 1], [0, 1], [1, 1], [1, 1]], start=1):
        folder.add_clusters(round, torch.tensor(clusters))
    rows = [(row["round"], row["client"], row["cluster"]) for row in table(tmp_path, "clusters")]
    assert rows == [("1", "0", "0"), ("1", "1", "1"), ("3", "0", "1"), ("3", "1", "1")]
    assert table(finished, "clusters") == []


def test_relatedness_is_written_without_pickle(tmp_path: Path):
    write_relatedness(tmp_path, NeighbourSets.of_clusters(torch.tensor([0, 1, 0])))
    with np.load(tmp_path / "relatedness.npz", allow_pickle=False) as arrays:
        assert np.array_equal(arrays["related"], np.array([[1, 0, 1], [0, 1, 0], [1, 0, 1]], dtype=bool))


def test_of_many_clients_each_set_of_relatives_is_written_once(tmp_path: Path):
    clusters = torch.arange(4001) % 2
    write_relatedness(tmp_path, NeighbourSets.of_clusters(clusters))
    with np.load(tmp_path / "relatedness.npz", allow_pickle=False) as arrays:
        assert arrays["sets"].shape == (2, 4001) and "related" not in arrays
        assert np.array_equal(arrays["sets"][arrays["set_of"][3]], clusters == 1)


@pytest.mark.parametrize(("name", "held"), [("compare.toml", "comparison"), ("sweep.toml", "sweep")])
@pytest.mark.parametrize("force", [False, True])
def test_a_run_is_not_written_among_the_tables_of_a_comparison_or_a_sweep(
    tmp_path: Path, name: str, held: str, force: bool
):
    (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=f"already holds a {held}: choose another --out"):
        api.run(config("rounds=1"), out=tmp_path, force=force, quiet=True)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_commands_in_messages_quote_paths_with_spaces(tmp_path: Path):
    folder = tmp_path / "ö  ä"
    api.run(config("rounds=1"), out=folder, quiet=True)
    with pytest.raises(ConfigError, match=r"go on with `kinfed resume '.*ö  ä'`, choose another"):
        api.run(config("rounds=1"), out=folder, quiet=True)
    (folder / "clients.csv").unlink()
    with pytest.raises(CheckpointError, match=r"`kinfed run '.*ö  ä/config.toml' --out '.*ö  ä' --force`"):
        api.load_run(folder)


def test_a_folder_that_holds_a_run_is_refused_unless_forced(finished: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="already holds a run: go on with `kinfed resume"):
        api.run(config(), out=finished, quiet=True)
    short = config("rounds=1")
    api.run(short, out=tmp_path, quiet=True)
    (tmp_path / "mine.txt").write_text("keep")
    api.run(short, out=tmp_path, force=True, quiet=True)
    assert len(table(tmp_path, "rounds")) == 1
    assert (tmp_path / "mine.txt").exists()


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", ["config.toml", "labels.csv", "wandb/notes", "nodes/client-00.toml"])
def test_what_no_run_wrote_is_not_removed(tmp_path: Path, name: str, force: bool):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine = 1")
    top = name.partition("/")[0]
    for write, settings in ((api.run, ["rounds=1"]), (api.compare, ["rounds=1", 'compare=["fedavg"]'])):
        with pytest.raises(ConfigError, match=rf" has {top}, which kinfed did not write and would replace"):
            write(config(*settings), out=tmp_path, force=force, quiet=True)
    assert (tmp_path / name).read_text() == "mine = 1" and [file.name for file in tmp_path.iterdir()] == [top]


def test_a_run_that_was_stopped_before_its_first_round_is_replaced(tmp_path: Path):
    short = config("rounds=1")
    write_config(tmp_path, short)
    (tmp_path / "events.jsonl").write_text("{}\n")
    api.run(short, out=tmp_path, quiet=True)
    assert len(table(tmp_path, "rounds")) == 1


def test_a_comparison_replaces_a_comparison_where_it_is_forced(tmp_path: Path):
    for rounds in (1, 2):
        compared = config(f"rounds={rounds}", 'compare=["fedavg"]')
        api.compare(compared, out=tmp_path, force=True, quiet=True)
        assert len(table(tmp_path / "fedavg-seed0", "rounds")) == rounds


def test_a_new_folder_gets_a_number_when_the_name_is_taken(tmp_path: Path):
    assert [free_folder(tmp_path / "a").name for _ in range(3)] == ["a", "a-2", "a-3"]


def test_bad_input_leaves_no_folder(tmp_path: Path):
    with pytest.raises(ConfigError):
        api.run(config("model=nowhere:net"), out=tmp_path / "run", quiet=True)
    with pytest.raises(ConfigError):
        api.compare(config('compare=["fedavg", "nothing"]'), out=tmp_path / "all", quiet=True)
    assert not list(tmp_path.iterdir())


def resume(folder: Path, **changes: object) -> None:
    resume_it = api.resume_comparison if is_comparison(folder) else api.resume
    resume_it(folder, quiet=True, **changes)


def test_a_checkpoint_of_another_config_is_refused_and_the_keys_are_named(tmp_path: Path):
    api.run(config(), out=tmp_path, quiet=True)
    text = (tmp_path / "config.toml").read_text()
    (tmp_path / "config.toml").write_text(text.replace("lr = 0.01", "lr = 0.5").replace("seed = 0", "seed = 9"))
    with pytest.raises(CheckpointError, match=r"another config: seed was 0, is 9; training.lr was 0.01, is 0.5"):
        resume(tmp_path)
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(CheckpointError, match="rounds was 4, is 3"):
        resume(tmp_path, rounds=3)


def test_a_refused_resume_leaves_what_a_run_has_found(tmp_path: Path):
    def write_samples(turn: int) -> None:
        rows = [f"{i / 40},{i % 7},{(i + turn) % 2},{i % 4}\n" for i in range(40)]
        (tmp_path / "own.csv").write_text("a,b,target,client\n" + "".join(rows))

    write_samples(0)
    path = api.run("fedavg", str(tmp_path / "own.csv"), rounds=2, out=tmp_path / "run", quiet=True, model="mlp_200",
                   partition={"name": "iid", "clients": 4}).path  # fmt: skip
    before = {name: (path / name).read_bytes() for name in ("summary.json", "config.toml")}
    write_samples(1)
    with pytest.raises(CheckpointError, match="was trained on other samples"):
        api.resume(path, rounds=4, quiet=True)
    assert {name: (path / name).read_bytes() for name in before} == before


def test_a_longer_run_goes_on_where_the_shorter_ended(tmp_path: Path):
    api.run(config(), out=tmp_path / "short", quiet=True)
    resume(tmp_path / "short", rounds=6)
    api.run(config("rounds=6"), out=tmp_path / "long", quiet=True)
    assert (tmp_path / "short" / "rounds.csv").read_bytes() == (tmp_path / "long" / "rounds.csv").read_bytes()
    assert (tmp_path / "short" / "summary.json").read_bytes() == (tmp_path / "long" / "summary.json").read_bytes()


@pytest.mark.parametrize("method", ["ifca", "flis_dc"])
def test_a_longer_run_places_those_who_join_after_training_once(tmp_path: Path, method: str):
    settings = (f"method={method}", "data.public=0.15", "roles.late=0.2", "roles.join_round=50")
    short, long = tmp_path / "short", tmp_path / "long"
    api.run(config(*settings), out=short, quiet=True)
    ended = (short / "summary.json").read_bytes()
    resume(short)
    assert (short / "summary.json").read_bytes() == ended
    assert [row["round"] for row in table(short, "ledger") if row["task"] == "choose"] == ["4"]
    resume(short, rounds=6)
    api.run(config(*settings, "rounds=6"), out=long, quiet=True)
    assert (short / "summary.json").read_bytes() == (long / "summary.json").read_bytes()
    for name in ("ledger", "ledger_clients"):
        both = [[row for row in table(folder, name) if row["task"] != "evaluate"] for folder in (short, long)]
        assert both[0] == both[1], name
    assert [row["round"] for row in table(short, "ledger") if row["task"] == "choose"] == ["6"]


@pytest.mark.parametrize("kept", [0, 7, 5000])
def test_a_truncated_checkpoint_is_an_error_that_says_so(tmp_path: Path, kept: int):
    api.run(config("rounds=1"), out=tmp_path, quiet=True)
    checkpoint = tmp_path / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
        resume(tmp_path)


def test_a_run_stopped_before_its_first_checkpoint_begins_again(finished: Path, tmp_path: Path):
    (tmp_path / "config.toml").write_bytes((finished / "config.toml").read_bytes())
    (tmp_path / "rounds.csv").write_text("round\n1,0.")
    resume(tmp_path)
    assert (tmp_path / "rounds.csv").read_bytes() == (finished / "rounds.csv").read_bytes()


def test_a_folder_whose_tables_are_gone_is_refused(tmp_path: Path):
    api.run(config("rounds=1"), out=tmp_path, quiet=True)
    (tmp_path / "rounds.csv").unlink()
    with pytest.raises(CheckpointError, match=r"rounds\.csv is missing.*--force"):
        resume(tmp_path)


def test_a_comparison_goes_on_without_running_again_what_ended(tmp_path: Path):
    both = config('compare=["fedavg", "local"]', "seeds=[0, 1]", "rounds=2")
    api.compare(both, out=tmp_path, quiet=True)
    table_before = (tmp_path / "compare.csv").read_text()
    (tmp_path / "local-seed1" / "summary.json").unlink()
    kept = (tmp_path / "fedavg-seed0" / "checkpoint.safetensors").stat().st_mtime_ns
    resume(tmp_path)
    assert (tmp_path / "fedavg-seed0" / "checkpoint.safetensors").stat().st_mtime_ns == kept
    assert (tmp_path / "compare.csv").read_text().splitlines()[1].split(",")[:4] == table_before.splitlines()[1].split(
        ","
    )[:4]
    assert checkpoint.read_about(tmp_path / "local-seed1" / "checkpoint.safetensors")["round"] == 2
    with pytest.raises(ConfigError, match="already holds a comparison"):
        api.compare(both, out=tmp_path, quiet=True)


def test_trees_signatures_and_labels_are_written_at_the_end(tmp_path: Path):
    quick = [f"methods.flt_kernel.signature.pretraining.{key}=1" for key in ("epochs", "least_steps")]
    threshold = "methods.flt_kernel.relatedness.threshold=0.3"
    quick.append("methods.flt_kernel.signature.tuning=none")
    settings = config("method=flt_kernel", "rounds=1", "data.public=0.1", threshold, *quick)
    path = api.run(settings, out=tmp_path, quiet=True).path
    with np.load(path / "tree.npz", allow_pickle=False) as tree:
        assert tree["merges"].shape == (9, 4) and sorted(tree["members"]) == list(range(10))
        assert float(tree["height"]) == np.nextafter(0.3, 1)  # a merge at the threshold is made
    with np.load(path / "signatures.npz", allow_pickle=False) as seen:
        assert seen["points"].shape == (10, 10)  # 128 numbers a client in as many directions as ten clients have
    labels = table(path, "labels")
    assert sum(int(row["samples"]) for row in labels) == sum(len(rows) for rows in assemble(settings).fed.train)


def test_confusion_matrices_of_clusters_add_up_to_the_accuracy(tmp_path: Path):
    for name, settings in {"a": ["method=ifca"], "b": ["method=ditto"]}.items():
        result = api.run(config("rounds=2", *settings), out=tmp_path / name, quiet=True)
        with np.load(result.path / "confusion.npz", allow_pickle=False) as found:
            clusters, counts = found["clusters"], found["counts"]
        assert (clusters.tolist() == [-1]) == (name == "b") and counts.shape == (len(clusters), 10, 10)
        right = np.trace(counts.sum(0)) / counts.sum()
        assert right == pytest.approx(result.summary["accuracy_val"])  # every test sample counts the same
    without = api.run(config("rounds=1", "evaluation.metrics=main"), out=tmp_path / "c", quiet=True).path
    assert not (without / "confusion.npz").exists()


def test_methods_without_signatures_write_them_on_demand_and_nothing_else_changes(tmp_path: Path):
    without = api.run(config("rounds=2"), out=tmp_path / "a", quiet=True).path
    looked_at = api.run(config("rounds=2", "evaluation.signatures=all"), out=tmp_path / "b", quiet=True).path
    assert not (without / "signatures.npz").exists() and (looked_at / "signatures.npz").exists()
    for name in ("rounds.csv", "clients.csv", "ledger.csv", "summary.json"):
        assert (without / name).read_bytes() == (looked_at / name).read_bytes()


def test_two_processes_cannot_write_one_run(tmp_path: Path):
    folder = api.run(config(), out=tmp_path / "one", quiet=True).path
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with hold(folder):  # as another process would
        with pytest.raises(ConfigError, match="another process is at work"):
            api.resume(folder, rounds=6, quiet=True)
        with pytest.raises(ConfigError, match="another process is at work"):
            api.run(config("training.lr=0.001"), out=folder, force=True, quiet=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    api.resume(folder, rounds=6, quiet=True)
    assert len(table(folder, "rounds")) == 6


def test_a_run_that_cannot_go_on_keeps_what_it_has(tmp_path: Path):
    folder = api.run(config(), out=tmp_path / "one", quiet=True).path
    (folder / "rounds.csv").unlink()
    with pytest.raises(CheckpointError, match=r"rounds\.csv is missing"):
        api.resume(folder, rounds=6, quiet=True)
    assert (folder / "summary.json").exists() and load_config(folder / "config.toml").rounds == 4


@pytest.mark.parametrize("name", ["rounds.csv", "clients.csv"])
def test_a_table_that_is_no_text_is_named(tmp_path: Path, name: str):
    folder = api.run(config(), out=tmp_path / "one", quiet=True).path
    (folder / name).write_bytes(b'round\n"1\r2\x00,\r3\n' * 3)
    with pytest.raises(CheckpointError, match=r"rounds\.csv|clients\.csv"):
        api.resume(folder, rounds=6, quiet=True)


def test_clusters_that_are_no_numbers_are_named(tmp_path: Path):
    folder = api.run(config("method=ifca"), out=tmp_path / "one", quiet=True).path
    path = folder / "clusters.csv"
    path.write_text(path.read_text().replace(",0\n", ",x\n").replace(",1\n", ",x\n"))
    with pytest.raises(CheckpointError, match=r"clusters\.csv is damaged"):
        api.resume(folder, rounds=6, quiet=True)


def test_a_file_of_tensors_that_is_no_checkpoint_is_told(tmp_path: Path):
    folder = api.run(config(), out=tmp_path / "one", quiet=True).path
    save_file({"w": torch.zeros(3)}, folder / "checkpoint.safetensors")
    with pytest.raises(CheckpointError, match="not a checkpoint of kinfed's"):
        api.resume(folder, quiet=True)
    (folder / "checkpoint.safetensors").unlink()
    (folder / "checkpoint.safetensors").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read: it is a folder, a pipe or a device"):
        api.resume(folder, quiet=True)


QUICK_FLT = (
    "method=flt_kernel", "rounds=1", "data.public=0.1", "methods.flt_kernel.signature.tuning=none",
    "methods.flt_kernel.signature.latent=8", "methods.flt_kernel.signature.pretraining.epochs=1",
    "methods.flt_kernel.signature.pretraining.least_steps=1",
)  # fmt: skip
FOUND = {
    "relatedness.npz",
    "tree.npz",
    "signatures.npz",
    "confusion.npz",
    "labels.csv",
    "summary.json",
    "ledger_clients.csv",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was not killed."""
    return api.run(config(*QUICK_FLT), out=tmp_path_factory.mktemp("whole") / "run", quiet=True).path


@pytest.mark.xdist_group("findings")  # one process makes the run that was not killed
@pytest.mark.parametrize("killed_at", ["write_labels", "write_relatedness", "write_tree", "write_arrays"])
def test_a_run_killed_while_it_writes_its_findings_has_them_all_after_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: str, whole: Path
):
    def kill(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    settings = config(*QUICK_FLT)
    with monkeypatch.context() as patch, pytest.raises(Interrupted, match="resume with: kinfed resume"):
        patch.setattr(f"kinfed.runs.writer.{killed_at}", kill)
        api.run(settings, out=tmp_path / "killed", quiet=True)
    assert not (tmp_path / "killed" / "summary.json").exists()
    api.resume(tmp_path / "killed", quiet=True)
    assert {path.name for path in (tmp_path / "killed").iterdir()} == {path.name for path in whole.iterdir()} > FOUND
    arrays = {name for name in FOUND if name.endswith("npz")}
    for name in FOUND - arrays:
        assert (tmp_path / "killed" / name).read_bytes() == (whole / name).read_bytes(), name
    for name in arrays:
        with np.load(tmp_path / "killed" / name) as killed, np.load(whole / name) as other:
            assert all(np.array_equal(killed[key], other[key]) for key in other.files), name


def test_findings_of_late_clients_are_those_of_a_run_that_was_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = config(*QUICK_FLT, "rounds=2", "roles.late=0.2", "roles.join_round=50")
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr("kinfed.runs.writer.write_relatedness", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        api.run(settings, out=tmp_path / "killed", quiet=True)
    api.resume(tmp_path / "killed", quiet=True)
    whole = api.run(settings, out=tmp_path / "whole", quiet=True).path
    for name in ("summary.json", "ledger.csv", "ledger_clients.csv", "clusters.csv"):
        assert (tmp_path / "killed" / name).read_bytes() == (whole / name).read_bytes(), name
    with np.load(tmp_path / "killed" / "relatedness.npz") as killed, np.load(whole / "relatedness.npz") as other:
        assert np.array_equal(killed["related"], other["related"])


def test_a_folder_of_an_older_kinfed_is_refused_in_one_line(finished: Path, tmp_path: Path):
    old = tmp_path / "old"
    shutil.copytree(finished, old)
    (old / "config.toml").write_text((old / "config.toml").read_text().split("\n", 1)[1])  # it named no format
    for read in (api.load_run, api.resume, api.report):
        with pytest.raises(CheckpointError, match=r"an older kinfed \(format 1, wanted 2\): run it again"):
            read(old)


def test_a_checkpoint_of_an_older_kinfed_is_refused_in_one_line(tmp_path: Path):
    save_file({"w": torch.zeros(3)}, tmp_path / "old", metadata={"about": "{}", "tree": "{}"})
    with pytest.raises(CheckpointError, match=r"older kinfed \(format 1, wanted 2\)"):
        checkpoint.read_about(tmp_path / "old")


def test_a_method_s_own_error_surfaces_once_and_is_noted(tmp_path: Path):
    method = Broken(small_net())
    with pytest.raises(ZeroDivisionError, match="mine"):
        api.run(method, tiny_population(), out=tmp_path, quiet=True)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(event["event"], event.get("message")) for event in events] == [("started", None), ("failed", "mine")]
    assert CALLS == [0]


CALLS: list[int] = []


@dataclass(frozen=True)
class Broken(FedAvg):
    def round(self, state, t, fed):
        CALLS.append(t)
        raise ZeroDivisionError("mine")
