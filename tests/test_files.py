"""Files from elsewhere: nothing is imported uninvited, damage is noticed, a full disk loses nothing."""

import errno
import json
import os
import random
import shutil
import struct
import time
import zipfile
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from kinfed import api, checkpoint, files, registry, serving
from kinfed.config import DEMO, load_config, set_value
from kinfed.engines.flower.node import FolderMemory
from kinfed.errors import BundleError, CheckpointError, DataError, FileError, KinfedError, UntrustedCode
from kinfed.models import AutoEncoder, make_autoencoder
from kinfed.report.vega import Chart
from kinfed.runs.reader import read_runs
from kinfed.serving.assignment import OutputFolder
from kinfed.serving.bundle import TENSORS, check_counts
from kinfed.serving.run_export import export_run
from kinfed.signatures.pretraining import Pretraining, from_file
from kinfed.trackers.backends import Subject

SHORT = ["method=repa", "rounds=2", "partition.clients=10", "methods.repa.clusters=2",
         "methods.repa.signature.encoder_rounds=1", "data.public=0.1"]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return api.run(load_config(DEMO, SHORT), out=tmp_path_factory.mktemp("run"), quiet=True).path


@pytest.fixture(scope="module")
def bundle(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return api.load_run(run).export(tmp_path_factory.mktemp("bundle"), force=True)


def flip_bit(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["bundle.json", "bundle.safetensors"])
def test_a_bundle_with_one_flipped_bit_is_refused(bundle: Path, tmp_path: Path, name: str):
    rng, copy = random.Random(name), tmp_path / "copy"
    for _ in range(40):
        shutil.copytree(bundle, copy, dirs_exist_ok=True)
        flip_bit(copy / name, rng)
        with pytest.raises(BundleError):
            serving.load(copy)
    shutil.copytree(bundle, copy, dirs_exist_ok=True)
    serving.load(copy)


def test_a_checkpoint_with_one_flipped_bit_is_refused(run: Path, tmp_path: Path):
    rng, copy = random.Random(0), tmp_path / "copy.safetensors"
    method = serving.load(api.load_run(run).export(tmp_path / "bundle")).method
    for _ in range(40):
        shutil.copy(run / "checkpoint.safetensors", copy)
        flip_bit(copy, rng)
        with pytest.raises(CheckpointError):
            checkpoint.load_served(copy, method)
    shutil.copy(run / "checkpoint.safetensors", copy)
    checkpoint.load_served(copy, method)


def test_bits_that_a_flip_of_letters_would_hide_are_covered(bundle: Path, tmp_path: Path):
    """1e-05 and 1E-05 are the same number: the digest is one of bytes."""
    copy = shutil.copytree(bundle, tmp_path / "copy")
    text = (copy / "bundle.json").read_text()
    (copy / "bundle.json").write_text(text.replace('"lr"', '"\\u006cr"', 1))
    with pytest.raises(BundleError, match="its digest is that of other content"):
        serving.load(copy)


def encoder() -> AutoEncoder:
    return make_autoencoder("conv_ae", (1, 8, 8), 4)


def test_an_encoder_with_one_flipped_bit_is_refused(tmp_path: Path):
    path, rng = tmp_path / "encoder.safetensors", random.Random(1)
    files.save_tensors(path, encoder().init())
    whole = path.read_bytes()
    for _ in range(40):
        path.write_bytes(whole)
        flip_bit(path, rng)
        with pytest.raises(DataError, match="cannot read the encoder"):
            from_file(path, encoder().init(), torch.device("cpu"))


def test_a_damaged_encoder_of_the_cache_is_trained_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    train = Pretraining("digits", epochs=1, least_steps=1, samples=50)
    public = torch.zeros(0, 1, 8, 8, dtype=torch.uint8)
    weights = {name: w.clone() for name, w in train(encoder(), public).items()}  # not those of the file that changes
    (path,) = tmp_path.rglob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    again = train(encoder(), public)
    assert all(again[name].equal(w) for name, w in weights.items())


def forge(path: Path, name_part: str, value: float) -> None:
    """Puts a number into the first tensor of such a name, under a digest that is right."""
    tensors, metadata = files.load_tensors(path)
    name = next(name for name in sorted(tensors) if name_part in name and tensors[name].is_floating_point())
    tensors[name].view(-1)[0] = value
    files.save_tensors(path, tensors, metadata)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_not_exported(run: Path, tmp_path: Path, value: float):
    copy = shutil.copytree(run, tmp_path / "run")
    forge(copy / "checkpoint.safetensors", "weight", value)
    with pytest.raises(CheckpointError, match="holds a NaN or an infinity"):
        api.load_run(copy).export(tmp_path / "bundle")


def test_a_bundle_of_weights_that_are_not_finite_is_refused(bundle: Path, tmp_path: Path):
    copy = shutil.copytree(bundle, tmp_path / "bundle")
    forge(copy / "bundle.safetensors", "weight", float("nan"))
    table = json.loads((copy / "bundle.json").read_text())
    digest = files.digest_content(files.load_tensors(copy / "bundle.safetensors")[0], {})
    text = json.dumps(table | {"digest": files.BLANK, "tensors": digest})
    (copy / "bundle.json").write_text(files.seal_text(text))
    with pytest.raises(BundleError, match="holds a NaN or an infinity"):
        serving.load(copy)


@pytest.mark.parametrize("name", ["clients.csv", "clusters.csv", "timing.csv", "rounds.csv"])
def test_a_missing_table_is_noticed(run: Path, tmp_path: Path, name: str):
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / name).unlink()
    for use in (
        api.load_run,
        lambda f: api.resume(f, rounds=3, quiet=True),
        lambda f: api.export_run(f, tmp_path / "b"),
    ):
        with pytest.raises(CheckpointError, match=f"{name} is missing"):
            use(copy)


def test_clients_of_an_evaluated_round_that_are_missing_are_noticed(run: Path, tmp_path: Path):
    copy = shutil.copytree(run, tmp_path / "run")
    lines = (copy / "clients.csv").read_text().splitlines(keepends=True)
    (copy / "clients.csv").write_text("".join(line for line in lines if not line.startswith("1,")))
    with pytest.raises(CheckpointError, match=r"clients\.csv has no client of round 1, which was evaluated"):
        api.resume(copy, rounds=3, quiet=True)


CODE = (
    "open('ran', 'w').close()\nfrom kinfed.methods import FedAvg as Mine\ndef net(shape, classes): raise SystemExit\n"
)


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with code that leaves a trace when it is imported."""
    (tmp_path / "makers_code.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "INVITED", set())
    return tmp_path


OWN_CODE = {
    "method": {"method": "makers_code:Mine"},
    "methods": {"methods": {"makers_code:Mine": {}}},
    "model": {"model": "makers_code:net"},
    "partition": {"partition": {"name": "makers_code:Mine"}},
    "shift": {"shift": {"name": "makers_code:Mine"}},
    "signature": {"method": "flt", "methods": {"flt": {"signature": {"name": "makers_code:Mine"}}}},
    "typo": {"method": "makers_code:Mine", "rouns": 3},
}


@pytest.mark.parametrize("part", OWN_CODE)
def test_a_bundle_imports_nothing_uninvited(bundle: Path, maker: Path, part: str):
    config = json.loads((bundle / "bundle.json").read_text())["config"]
    with pytest.raises(BundleError):
        serving.load(rewrite(bundle, maker / "bundle", config=config | OWN_CODE[part]))
    assert not (maker / "ran").exists()


def rewrite(bundle: Path, folder: Path, **parts: object) -> Path:
    """A copy of the bundle with other parts, under a digest that is right."""
    copy = shutil.copytree(bundle, folder)
    table = json.loads((copy / "bundle.json").read_text()) | {"digest": files.BLANK, **parts}
    (copy / "bundle.json").write_text(files.seal_text(json.dumps(table)))
    return copy


@pytest.mark.parametrize(
    "key",
    [
        "training.epochs",
        "training.adapt_epochs",
        "training.steps",
        "methods.repa.clusters",
        "methods.repa.signature.encoder_rounds",
        "methods.repa.signature.training.epochs",
    ],
)
def test_a_bundle_with_a_count_that_would_take_for_ever_is_refused_unless_it_is_trusted(
    bundle: Path, tmp_path: Path, key: str
):
    config = json.loads((bundle / "bundle.json").read_text())["config"]
    forged = rewrite(bundle, tmp_path / "forged", config=set_value(config, key.split("."), 10**9))
    with pytest.raises(BundleError, match=rf"{key} is 1,000,000,000, at most [\d,]+ is allowed.*--trust$"):
        serving.load(forged)
    assert serving.load(forged, trust=True).config.method == "repa"


def test_a_bundle_may_hold_large_numbers_that_cost_nothing(bundle: Path, tmp_path: Path):
    config = json.loads((bundle / "bundle.json").read_text())["config"]
    large = set_value(set_value(config, ["training", "batch_size"], 10**9), ["seed"], 10**9)
    assert serving.load(rewrite(bundle, tmp_path / "large", config=large)).method.local.batch_size == 10**9


@pytest.mark.parametrize(
    ("model", "samples", "said"),
    [
        ("mlp_200", {"shape": [1, 600, 600]}, "has 72,002,210 weights, at most 67,108,864 are allowed"),
        ("resnet18", {"shape": [1, 500, 500]}, "has 64,000,000 bytes in an output, at most 33,554,432 are allowed"),
        ("char_lstm", {"shape": [10**6], "dtype": "int64"}, "a sample has 1,000,000 token ids, at most 65,536"),
    ],
)
def test_a_bundle_whose_network_would_fill_memory_is_refused_before_it_is_built(
    bundle: Path, tmp_path: Path, model: str, samples: dict[str, object], said: str
):
    table = json.loads((bundle / "bundle.json").read_text())
    config = table["config"] | {"model": model}
    forged = rewrite(bundle, tmp_path / "forged", samples=table["samples"] | samples, config=config)
    with pytest.raises(BundleError, match=f"{said}.*--trust$"):
        serving.load(forged)


def test_a_bundle_whose_clients_would_train_for_hours_is_refused_unless_it_is_trusted(bundle: Path, tmp_path: Path):
    config = json.loads((bundle / "bundle.json").read_text())["config"]
    for batch, most in ((1, 100), (5, 500), (32, 1000)):
        for epochs in (most, most + 1):
            training = config["training"] | {"adapt_epochs": epochs, "batch_size": batch}
            forged = rewrite(bundle, tmp_path / f"{batch}-{epochs}", config=config | {"training": training})
            if epochs == most:
                serving.load(forged)
                continue
            with pytest.raises(
                BundleError, match=rf"adapt_epochs is {epochs:,}, at most {most:,} are allowed.*--trust$"
            ):
                serving.load(forged)
            assert serving.load(forged, trust=True).config.training.adapt_epochs == epochs


@pytest.mark.parametrize("samples", [{"shape": [float("inf"), 8]}, {"classes": float("inf")}])
def test_a_bundle_whose_sizes_are_infinite_is_refused(bundle: Path, tmp_path: Path, samples: dict[str, object]):
    honest = json.loads((bundle / "bundle.json").read_text())["samples"]
    with pytest.raises(BundleError, match="export it again"):
        serving.load(rewrite(bundle, tmp_path / "forged", samples=honest | samples))


def test_a_bundle_may_say_that_something_never_happens():
    check_counts({"methods": {"cfl": {"after": 10**6}, "flt": {"recluster_every": 10**9}}})
    with pytest.raises(BundleError, match=r"methods\.cfl\.epochs is 1,000,000"):
        check_counts({"methods": {"cfl": {"epochs": 10**6}}})


USES = [(use, part) for use in ("resume", "export", "load_run", "config") for part in (*OWN_CODE, "data")]


@pytest.mark.parametrize(("use", "part"), [*USES, ("report", "method")])
def test_a_run_folder_imports_nothing_uninvited(run: Path, maker: Path, part: str, use: str):
    from kinfed.config import merge_tables, read_toml, to_toml
    from kinfed.runs.writer import HEADER

    copy = shutil.copytree(run, maker / "run")
    own = OWN_CODE.get(part, {"data": {"name": "makers_code:net"}})
    table = to_toml(merge_tables(read_toml(copy / "config.toml"), own))
    (copy / "config.toml").write_text(HEADER.format(checkpoint.FORMAT) + table)
    uses = {
        "resume": lambda: api.resume(copy, quiet=True),
        "export": lambda: api.export_run(copy, maker / "b"),
        "load_run": lambda: repr(api.load_run(copy)),
        "report": lambda: api.report(copy),
        "config": lambda: api.load_run(copy).config,
    }
    try:
        uses[use]()
    except KinfedError as error:
        assert use not in ("load_run", "report"), error
    assert not (maker / "ran").exists()


def test_what_is_refused_says_what_would_be_imported_and_trust_imports_it(maker: Path):
    with registry.refuse_code("the bundle b", trust=False):
        with pytest.raises(
            UntrustedCode, match=r"the bundle b names code of its maker, the method 'makers_code:Mine'.*--trust"
        ):
            registry.import_object("makers_code:Mine", "method")
        assert not (maker / "ran").exists()
        with registry.refuse_code("the bundle b", trust=True):
            registry.import_object("makers_code:Mine", "method")
        assert (maker / "ran").exists()
        registry.import_object("makers_code:Mine", "method")  # it has run already, on the user's word


def test_a_run_of_ones_own_method_resumes_on_trust_and_the_interrupt_says_so(maker: Path):
    config = load_config(DEMO, ["method=makers_code:Mine", "rounds=1", "partition.clients=10"])
    folder = api.run(config, out=maker / "own", quiet=True).path
    from kinfed.runs.lifecycle import resume_command

    assert resume_command(folder, config) == f"kinfed resume {folder} --trust"
    assert resume_command(folder, load_config(DEMO)) == f"kinfed resume {folder}"
    signature, relatedness = "methods.flt.signature", "methods.flt.relatedness"
    words = [f"{signature}.name=encoder_centroids", f"{signature}.autoencoder=makers_code:Small"]
    encoder = load_config(DEMO, [*words, f"{relatedness}.name=relatedness"])
    assert resume_command(folder, encoder) == f"kinfed resume {folder} --trust"
    registry.INVITED.clear()  # another process
    with pytest.raises(UntrustedCode, match=r"config\.toml names code of its maker, the method 'makers_code:Mine'"):
        api.resume(folder, rounds=2, quiet=True)
    assert api.resume(folder, rounds=2, quiet=True, trust=True).config.rounds == 2


def fail_with(number: int):
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_full_disk_is_one_line_and_the_last_checkpoint_stays(run: Path, tmp_path: Path, monkeypatch):
    copy = shutil.copytree(run, tmp_path / "run")
    before = (copy / "checkpoint.safetensors").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(files, "save_file", fail_with(errno.ENOSPC))
        with pytest.raises(FileError, match=r"cannot be written: No space left on device.* is kept.*kinfed resume"):
            api.resume(copy, rounds=3, quiet=True)
    assert (copy / "checkpoint.safetensors").read_bytes() == before
    assert not list(copy.glob(".*.new"))
    assert (
        api.resume(copy, rounds=3, quiet=True).summary
        == api.run(load_config(DEMO, [*SHORT, "rounds=3"]), out=tmp_path / "whole", quiet=True).summary
    )


def test_a_disk_that_is_full_in_the_middle_of_a_table_leaves_the_table(tmp_path: Path, monkeypatch):
    files.write_bytes(tmp_path / "a", b"old")
    monkeypatch.setattr(os, "fsync", fail_with(errno.ENOSPC))
    with pytest.raises(FileError, match="No space left on device; the one that is there is kept"):
        files.write_bytes(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


def test_files_that_hold_clients_data_are_their_owners_alone(run: Path, bundle: Path):
    held = [run / "checkpoint.safetensors", run / "signatures.npz", run / "labels.csv", *bundle.iterdir()]
    assert {path.stat().st_mode & 0o777 for path in held} == {0o600}
    assert (run / "rounds.csv").stat().st_mode & 0o777 != 0o600


def test_a_run_folder_with_links_in_it_changes_no_file_elsewhere(run: Path, tmp_path: Path):
    copy, precious = shutil.copytree(run, tmp_path / "run"), tmp_path / "precious"
    precious.write_text("mine")
    (copy / "events.jsonl").unlink()
    (copy / "events.jsonl").symlink_to(precious)
    with pytest.raises(CheckpointError, match=r"events\.jsonl is a link"):
        api.resume(copy, rounds=3, quiet=True)
    (copy / "link").symlink_to(precious)
    files.write_bytes(copy / "link", b"new")
    assert precious.read_text() == "mine" and not (copy / "link").is_symlink()


@pytest.mark.parametrize("name", ["rounds.csv", "events.jsonl", "checkpoint.safetensors"])
def test_a_run_folder_with_a_pipe_or_a_device_in_it_is_refused_before_it_is_read(run: Path, tmp_path: Path, name: str):
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / name).unlink()
    os.mkfifo(copy / name)  # nobody writes to it: to open it waits for ever
    refused = f"{name} cannot be read: it is a folder, a pipe or a device"
    with pytest.raises(CheckpointError, match=refused):
        read_runs([copy])
    with pytest.raises(CheckpointError, match=refused):
        api.resume(copy, rounds=3, quiet=True)
    (copy / name).unlink()
    (copy / name).symlink_to("/dev/zero")  # it has no end
    with pytest.raises(CheckpointError, match=refused):
        read_runs([copy])


@pytest.mark.parametrize("name", ["config.toml", "rounds.csv", "events.jsonl"])
def test_a_text_that_is_far_too_large_is_refused_before_it_is_read(run: Path, tmp_path: Path, name: str):
    copy = shutil.copytree(run, tmp_path / "run")
    os.truncate(copy / name, 2**40)  # sparse: it takes no room on the disk
    with pytest.raises(CheckpointError, match=f"{name} cannot be read: it has 1099511627776 bytes, wanted at most"):
        read_runs([copy])


@pytest.mark.parametrize("name", ["bundle.json", TENSORS])
def test_a_bundle_with_a_pipe_in_it_is_refused_before_it_is_read(bundle: Path, tmp_path: Path, name: str):
    copy = shutil.copytree(bundle, tmp_path / "bundle")
    (copy / name).unlink()
    os.mkfifo(copy / name)
    with pytest.raises(BundleError, match="it is a folder, a pipe or a device, wanted a file"):
        serving.load(copy)


def write_npz(path: Path, header: dict[str, object], content: bytes) -> Path:
    """An .npz whose header may lie."""
    text = repr(header).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text + b"\n" + content)
    return path


@pytest.mark.parametrize("shape", [(10**12,), (2**40, 2**40), (-1, 4), (3, 10**9, 10**9), (5,)])
def test_an_array_of_an_impossible_shape_is_refused_before_memory_is_asked_for(tmp_path: Path, shape):
    path = write_npz(tmp_path / "a.npz", {"descr": "|u1", "fortran_order": False, "shape": shape}, b"abcd")
    with pytest.raises(FileError, match=r"shape|cannot be"):
        files.read_arrays(path)


def test_a_decompression_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "AT_ONCE", 2**16)
    path = tmp_path / "bomb.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w", force_zip64=True) as file,
    ):
        for _ in range(20):
            file.write(bytes(2**16))
    assert path.stat().st_size < 2**12
    with pytest.raises(FileError, match="would unpack"):
        files.read_arrays(path)


def test_arrays_come_back_as_they_were_written(tmp_path: Path):
    arrays = {"x": np.arange(6.0).reshape(2, 3), "y": np.array([1, 2]), "height": np.array(0.5)}
    files.write_arrays(tmp_path / "a.npz", arrays)
    found = files.read_arrays(tmp_path / "a.npz")
    assert found.keys() == arrays.keys() and all(np.array_equal(found[name], arrays[name]) for name in arrays)


def test_tensors_of_the_user_need_no_digest_and_ours_need_one(tmp_path: Path):
    save_file({"w": torch.ones(2)}, tmp_path / "plain")
    assert files.load_tensors(tmp_path / "plain", must_be_sealed=False)[0]["w"].equal(torch.ones(2))
    with pytest.raises(FileError, match="has no digest"):
        files.load_tensors(tmp_path / "plain")
    files.save_tensors(tmp_path / "ours", {"w": torch.ones(2), "none": torch.empty(0), "one": torch.tensor(True)})
    assert load_file(tmp_path / "ours")["w"].equal(files.load_tensors(tmp_path / "ours")[0]["w"])


def test_tensors_that_share_memory_are_written_and_read_as_any_others(tmp_path: Path):
    whole = torch.arange(6.0).view(2, 3)
    shared = {"whole": whole, "again": whole, "row": whole[1], "empty": whole[:0], "none": whole.new_empty(0)}
    files.save_tensors(tmp_path / "file", shared)
    read, _ = files.load_tensors(tmp_path / "file")
    assert read.keys() == shared.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in shared.items())


def test_a_single_number_of_a_wider_table_is_written_as_any_other(tmp_path):
    files.save_tensors(tmp_path / "one", {"one": torch.arange(28).view(1, 28)[:, :1].view(1)})
    assert files.load_tensors(tmp_path / "one")[0]["one"].tolist() == [0]


@pytest.mark.parametrize("name", ["samples.json", "wandb_run.txt", "chart.svg"])
def test_small_files_that_are_read_again_are_replaced_in_one_step(name: str, tmp_path: Path, monkeypatch):
    def write(word: str) -> None:
        if name == "samples.json":
            FolderMemory(tmp_path).update_data_version(word, 3)
        elif name == "chart.svg":
            Chart(({"mark": {"type": "text", "text": word}, "data": {"values": [{}]}},), {}).save(tmp_path / name)
        else:
            Subject(tmp_path, "run", {}).remember("wandb", word)

    write("old")
    before = (tmp_path / name).read_bytes()
    monkeypatch.setattr(files.os, "replace", stop_here)
    with pytest.raises(KeyboardInterrupt):
        write("new")
    monkeypatch.undo()
    assert (tmp_path / name).read_bytes() == before and [path.name for path in tmp_path.iterdir()] == [name]


def stop_here(*paths: object) -> None:
    raise KeyboardInterrupt


def test_a_bundle_that_is_written_anew_holds_nothing_of_one_that_was_killed(bundle: Path, run: Path, tmp_path: Path):
    folder = tmp_path / "bundle"
    shutil.copytree(bundle, folder)
    for name in (f".{TENSORS}.123.new", ".tmpzs0uJ8"):
        (folder / name).write_bytes(b"half")
    list(export_run(run, OutputFolder(folder, force=True)))
    assert {path.name for path in folder.iterdir()} == {path.name for path in bundle.iterdir()}


def test_only_what_a_killed_process_left_is_removed(tmp_path: Path):
    own = {"model.new", ".tmp", ".tmp_of_my_own", "tmpA1b2C3"}
    for name in (*own, ".model.pt.123.new", ".tmpA1b2C3"):
        (tmp_path / name).write_bytes(b"")
    files.clear_unfinished(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == own


@pytest.mark.parametrize("private, mode", [(True, 0o600), (False, 0o640)])
def test_files_of_tensors_are_read_by_those_whom_the_user_lets_read(private: bool, mode: int, tmp_path: Path):
    before = os.umask(0o027)
    try:
        files.save_tensors(tmp_path / "one", {"one": torch.ones(1)}, private=private)
    finally:
        os.umask(before)
    assert (tmp_path / "one").stat().st_mode & 0o777 == mode


def test_a_link_in_place_of_a_file_that_is_not_whole_yet_is_not_followed(tmp_path: Path):
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / f".one.{os.getpid()}.new").symlink_to(tmp_path / "elsewhere")
    files.write_bytes(tmp_path / "one", b"new")
    assert (tmp_path / "elsewhere").read_text() == "mine" and (tmp_path / "one").read_bytes() == b"new"
    assert len(list(tmp_path.iterdir())) == 2


def test_who_waits_for_a_lock_says_so_and_gets_it(tmp_path, caplog):
    caplog.set_level("INFO", logger="kinfed")
    held, order = Event(), []

    def wait() -> None:
        held.wait()
        with files.lock(tmp_path / "it.lock", waits="waiting for it"):
            order.append("second")

    second = Thread(target=wait)
    second.start()
    with files.lock(tmp_path / "it.lock", waits="waiting for nobody"):
        held.set()
        began = time.monotonic()
        while not caplog.messages and time.monotonic() < began + 60:
            time.sleep(0.001)
        order.append("first")
    second.join(60)
    assert order == ["first", "second"]
    assert caplog.messages == ["waiting for it"]
