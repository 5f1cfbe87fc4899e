"""The command line as its users meet it: real runs, real files, real processes."""

import io
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from kinfed import api, checkpoint
from kinfed.api.arguments import change
from kinfed.cli import app, main
from kinfed.cli.options import BEFORE_RUN, plain_errors
from kinfed.config import load_config
from kinfed.errors import ConfigError

TINY = ["partition.clients=10", "fraction=0.5", "rounds=2"]
EQUAL = ("rounds.csv", "clients.csv", "clusters.csv", "ledger.csv", "ledger_clients.csv", "summary.json", "config.toml")


@pytest.fixture(autouse=True)
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own, and no network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("KINFED_DATA", raising=False)


def kinfed(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def process(*words: str) -> "subprocess.Popen[str]":
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "kinfed", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def assert_refused(result: Result, *parts: str) -> None:
    """Exit code 2 and one line that begins with "error:"; no traceback."""
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    last = result.stderr.strip().splitlines()
    assert len(last) == 1 and last[0].startswith("error: "), result.stderr
    for part in parts:
        assert part in last[0]


def python(code: str) -> str:
    """What a fresh interpreter prints that finds this kinfed before an installed one."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


@pytest.mark.parametrize(
    "words, name",
    [
        (["run", "--out", ""], "--out"),
        (["compare", "--out="], "--out"),
        (["run", "--data-dir", ""], "--data-dir"),
        (["reproduce", "flt-table-1", "--keep", ""], "--keep"),
        (["bench", "--json", ""], "--json"),
        (["report", "somewhere", ""], "RUN"),
        (["export", "somewhere", ""], "DIR"),
        (["deploy", "status", ""], "RUN"),
    ],
)
def test_an_empty_path_is_refused_and_is_not_the_working_folder(words: list[str], name: str, tmp_path: Path):
    assert_refused(kinfed(*words), f"{name}", "wanted a path, got an empty one")
    assert not list(tmp_path.iterdir())


def test_an_empty_word_is_no_empty_path():
    assert_refused(kinfed("run", "--device", ""), "engine.device: wanted cpu, cuda or auto, got ''")


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda: api.run("fedavg", out=""), "out"),
        (lambda: api.compare(["fedavg"], out=""), "out"),
        (lambda: api.report("somewhere", out=""), "out"),
        (lambda: api.report("somewhere", ""), "report"),
        (lambda: api.resume(""), "folder"),
        (lambda: api.load_run(""), "folder"),
        (lambda: api.load_comparison(""), "folder"),
        (lambda: api.export_run("somewhere", ""), "bundle"),
        (lambda: change(load_config(None), None, None, ""), "data_dir"),
    ],
)
def test_an_empty_path_in_python_is_refused_too(call, name: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=f"^{name}: wanted a path, got an empty one"):
        call()
    assert not list(tmp_path.iterdir())


HEAVY = ("torch", "numpy", "scipy", "sklearn", "umap", "numba")


@pytest.mark.parametrize(
    "words", [["--help"], ["run", "--help"], ["bench", "--help"], ["deploy", "new", "--help"], ["--version"]]
)
def test_help_comes_without_anything_heavy(words):
    code = f"import sys, kinfed; from kinfed.cli import app; app({words}, standalone_mode=False); "
    code += f"print('loaded', [name for name in {HEAVY} if name in sys.modules])"
    assert python(code).endswith("loaded []\n")


def test_a_run_loads_no_library_that_its_method_does_not_use():
    code = "import sys, kinfed.api; kinfed.data.load('digits'); "
    code += "print([n for n in ('scipy', 'sklearn', 'umap', 'numba') if n in sys.modules])"
    assert python(code) == "[]\n"


def test_help_teaches():
    code = "from kinfed.cli import app; app(['run', '--help'], standalone_mode=False)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "Examples" in shown and "kinfed run" in shown and "--data-dir" in shown
    assert kinfed("--version").output.startswith("kinfed 0.")


def test_everything_that_can_be_named_is_listed_with_a_line():
    lines = kinfed("list").output.splitlines()
    for name in ("fedavg", "flt", "digits", "dirichlet", "rotation", "mlp_200", "vectorised"):
        assert any(line.split()[:1] == [name] and len(line.split()) > 3 for line in lines), name
    assert kinfed("list", "models").output.startswith("models:\n  mlp_200")
    listed = kinfed("list", "methods").output
    assert "\n  flhc              FL+HC: " in listed
    assert " personalised: Each client has" in listed and "(Collins et al., ICML 2021)." in listed
    assert_refused(kinfed("list", "modles"), "did you mean 'models'?")
    schema = json.loads(kinfed("list", "schema").output)
    assert "lr" in schema["properties"]["training"]["properties"]
    assert json.loads(kinfed("schema").output) == schema


def test_what_the_engine_chose_is_shown_on_demand(monkeypatch):
    log = logging.getLogger("kinfed")
    monkeypatch.setattr(log, "level", log.level)  # -v sets it
    words = ["run", "method=fedavg", *TINY, "rounds=1"]
    assert "'train' runs in " not in kinfed(*words, "--out", "plain").output
    assert "FedAvg seed 0: 'train' runs in 1 blocks" in kinfed(*words, "--out", "more", "-v").output


@pytest.mark.parametrize(("words", "meant"), [(["compar"], "compare"), (["deploy", "nw"], "new")])
def test_a_misspelt_command_is_suggested_once(words: list[str], meant: str):
    said = CliRunner().invoke(app, words).output
    assert said.count("Did you mean") == 1 and f"'{meant}'" in said


def test_commands_complete_in_a_shell():
    code = "from kinfed.cli import main; main()"
    completing = {"_KINFED_COMPLETE": "complete_bash", "COMP_WORDS": "kinfed sw", "COMP_CWORD": "1"}
    environment = os.environ | completing
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert shown.stdout.split() == ["sweep"] and "--install-completion" in kinfed("--help").output


def test_a_run_outside_a_terminal_prints_plain_lines():
    result = kinfed("run", "method=fedavg", *TINY)
    lines = result.output.splitlines()
    assert result.exit_code == 0, result.output
    assert lines[0].startswith("FedAvg seed 0: round 1/2, accuracy ") and lines[0].endswith(" s left")
    assert lines[-1] == "written to runs/fedavg-digits-seed0"
    assert "\x1b" not in result.output
    assert kinfed("run", "method=fedavg", *TINY, "--quiet").output == ""
    assert Path("runs/fedavg-digits-seed0-2/summary.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--lr", "0.1"], "no option --lr; a setting is key=value, as in method=fedavg training.lr=0.1"),
        (["run", "--method=flt"], "no option --method; a setting is key=value"),
        (["compare", "--method", "flt"], "no option --method: did you mean --methods?; a setting is key=value"),
        (["sweep", "--sed", "3"], "no option --sed: did you mean --seeds?"),
    ],
)
def test_a_setting_given_as_an_option_is_told_how_settings_are_written(words: list[str], said: str):
    assert_refused(kinfed(*words), said)


def test_options_are_settings():
    kinfed(
        "run", "method=fedavg", *TINY, "--rounds", "1", "--seed", "3", "--engine", "sequential", "--out", "here", "-q"
    )
    config = Path("here/config.toml").read_text()
    for line in ("rounds = 1", "seed = 3", 'name = "sequential"'):
        assert line in config


def test_methods_are_compared_in_one_table():
    result = kinfed(
        "compare", *TINY, "--methods", "fedavg,local", "--seeds", "0,1", "--out", "both", "--markdown", "-q"
    )
    assert result.exit_code == 0, result.output
    table = Path("both/compare.md").read_text()
    assert result.output == table
    assert table.startswith(
        "| method | accuracy % | to best (95 % CI) | variance | worst decile % | at target % | ARI | clusters | "
        "MB moved | seconds |"
    )
    assert [line.split(" | ")[0] for line in table.splitlines()[2:4]] == ["| FedAvg", "| Local"]
    assert " clients of 2 seeds)." in table.splitlines()[5]
    assert table.splitlines()[7] == "| better than | FedAvg | Local |"
    assert "".join(table.splitlines()[:4]).count(" ± ") == 2 * 6 + 1
    lines = {name: len(Path(f"both/{name}.csv").read_text().splitlines()) for name in ("compare", "runs", "pairs")}
    assert lines == {"compare": 3, "runs": 5, "pairs": 2}
    clients = [Path(f"both/{method}-seed1/config.toml").read_text() for method in ("fedavg", "local")]
    assert clients[0].partition("[methods")[0] == clients[1].partition("[methods")[0].replace('"local"', '"fedavg"', 1)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["run", "method=fedavgg"], ["unknown method 'fedavgg': did you mean 'fedavg'?"]),
        (["compare", "--methods", "fedavg,lokal"], ["unknown method 'lokal': did you mean 'local'?"]),
        (["run", "method=fedavg", "training.learn=1"], ["unknown config key 'training.learn'", "lr"]),
        (["run", "method=fedavg", "partition.clents=9"], ["'partition.clents': did you mean 'partition.clients'?"]),
        (["run", "nowhere.toml"], ["no config file at nowhere.toml"]),
        (["run", "method=fedavg", "data.name=mnist", "--data-dir", "."], ["'mnist'", "mnist.npz"]),
        (["run", "method=fedavg", "data.name=mnits", "--data-dir", "."], ["mnits", "mnist"]),
        (["run", "method=fedavg", "partition.clusters=30", "partition.clients=10"], ["30 clusters", "got 10"]),
        (["run", "method=fedavg", "partition.clients=5000"], ["samples for the 1000 clients of cluster 0"]),
        (["run", "method=fedavg", "partition.name=iid", "partition.clients=5000"], ["needs at least 5000 samples"]),
        (["run", "method=fedavg", "partition.name=writers"], ["writers", "femnist"]),
        (["run", "method=fedavg", "model=lenet5", "partition.clients=10"], ["sides of at least 16, got 8x8"]),
        (["run", "method=fedavg", "engine.name=vectorized"], ["did you mean 'vectorised'?"]),
        (["run", "method=fedavg", "--device", "mps"], ["engine.device: 'mps' is not supported: sums are in double"]),
        (["compare", "--jobs", "0"], ["--jobs: wanted how many runs at once, at least 1, got 0"]),
        (["run", "method=fedavg", "--device", "cdua"], ["got 'cdua': did you mean 'cuda'?"]),
        (["run", "method=fedavg", "--device", "meta"], ["wanted cpu, cuda or auto, got 'meta'"]),
        (["run", "method=fedavg", "--device", "gpu"], ["wanted cpu, cuda or auto, got 'gpu': did you mean 'cuda'?"]),
        (["run", "method=fedavg", "--seed", "-1"], ["seeds must be 0..18446744073709551615, got -1"]),
        (["run", "seed=18446744073709551616"], ["seeds must be 0..18446744073709551615"]),
        (["run", "method=fedavg", "partition.name="], ["partition: name is missing: wanted one of iid, shards, "]),
        (["run", "method=fedavg", f"partition.clients={10**23}"], ["partition.clients: wanted at most 2147483647"]),
        (["run", "method=fedavg", "partition.name=label_skew", "partition.clients=5000"], ["at least 5000 samples"]),
        (["run", "method=fesem", "methods.fesem.seed=-1"], ["seed must be 0..4294967295, got -1"]),
        (["run", "method=wd", "methods.wd.seed=-1"], ["seed must be 0..4294967295, got -1"]),
        (["run", "method=repa", "methods.repa.seed=-1"], ["seed must be 0..4294967295, got -1"]),
        (["run", "methods.flt.relatedness.seed=-1"], ["relatedness: seed must be 0..4294967295, got -1"]),
        (["run", "methods.flt.signature.pretraining.batch_size=0"], ["batch_size must be at least 1, got 0"]),
        (["run", "methods.flt.signature.pretraining.lr=-1"], ["lr must be a number above 0, got -1"]),
        (["run", "methods.flt.signature.pretraining.lr=inf"], ["pretraining.lr: wanted a finite number, got inf"]),
        (["run", "method=fedavg", "training.lr=inf"], ["training.lr: wanted a finite number, got inf"]),
        (["run", "method=fedavg", "rounds=0"], ["rounds must be at least 1, got 0"]),
        (["run", "method=fedavg", "roles.holdout=1.0"], ["clients would not train"]),
        (["resume", "nowhere"], ["no run at nowhere"]),
        (["resume", "nowhere", "--jobs", "4x"], ["--jobs: wanted how many runs at once", "got 4x"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words: list[str], parts: list[str]):
    result = kinfed(*words)
    assert_refused(result, *parts)
    assert not Path("runs").exists()


def small_mnist(**changes: np.ndarray) -> None:
    """A mnist.npz with a few samples of each class, some of its arrays replaced."""
    images, labels = np.zeros((200, 28, 28), np.uint8), np.arange(200) % 10
    arrays = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels} | changes
    np.savez("mnist.npz", **arrays)


def on_mnist() -> Result:
    return kinfed("run", "method=fedavg", *TINY, "data.name=mnist", "--data-dir", ".")


def test_a_damaged_dataset_is_one_line_and_exit_code_2():
    small_mnist(x_train=np.zeros((200, 28, 28), np.float32))
    assert_refused(on_mnist(), "mnist.npz", "uint8", "float32")
    small_mnist(y_train=np.arange(200) % 12)
    assert_refused(on_mnist(), "mnist.npz", "0..9", "0..11")
    small_mnist()
    assert on_mnist().exit_code == 0
    Path("mnist.npz").write_bytes(Path("mnist.npz").read_bytes()[:1000])
    assert_refused(on_mnist(), "mnist.npz")


def test_a_model_that_does_not_fit_the_classes_is_one_line(monkeypatch: pytest.MonkeyPatch):
    Path("narrow_net.py").write_text(
        "from torch import nn\ndef net(s, c): return nn.Sequential(nn.Flatten(), nn.Linear(64, 7))\n"
    )
    monkeypatch.syspath_prepend(".")
    assert_refused(kinfed("run", "method=fedavg", *TINY, "model=narrow_net:net"), "(2, 7)", "wanted (2, 10)")


def test_a_checkpoint_from_another_config_is_one_line():
    kinfed("run", "method=fedavg", *TINY, "--out", "one")
    config = Path("one/config.toml")
    config.write_text(config.read_text().replace("lr = 0.05", "lr = 0.02"))
    assert_refused(kinfed("resume", "one"), "another config", "training.lr was 0.05, is 0.02")


def test_a_truncated_checkpoint_is_one_line():
    kinfed("run", "method=fedavg", *TINY, "--out", "one")
    checkpoint = Path("one/checkpoint.safetensors")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    assert_refused(kinfed("resume", "one"), "damaged")


def test_replies_that_are_not_finite_are_logged_with_the_client_and_counted():
    result = kinfed("run", "method=fedavg", *TINY, "training.lr=1e30", "--out", "wild", "-q")
    assert result.exit_code == 0, result.output
    events = [json.loads(line) for line in Path("wild/events.jsonl").read_text().splitlines()]
    rejected = [event for event in events if event["event"] == "rejected reply"]
    assert len(rejected) == json.loads(Path("wild/summary.json").read_text())["rejected_replies"] > 0
    assert all(event["task"] == "train" and 0 <= event["client"] < 10 for event in rejected)


def test_warnings_are_one_line_each_and_logged(monkeypatch: pytest.MonkeyPatch):
    code = (
        "from torch import nn\nclass Net(nn.Linear):\n    def forward(self, x):\n        x = x.flatten(1)\n"
        "        return super().forward(x - x.mean(0) if self.training else x)\ndef net(s, c): return Net(64, c)\n"
    )
    Path("mixing_net.py").write_text(code)
    monkeypatch.syspath_prepend(".")
    result = kinfed("run", "method=fedavg", *TINY, "model=mixing_net:net", "--out", "one")
    assert result.exit_code == 0
    assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith(
        "warning: the network mixes the samples of a batch, padding would enter its output: clients train sequentially"
    )
    assert [json.loads(line)["event"] for line in Path("one/events.jsonl").read_text().splitlines()] == [
        "started", "warning", "ended",
    ]  # fmt: skip


HANG = 600  # seconds after which a process hangs, on any machine
LONG = ["method=local", "partition.clients=10", "rounds=16", "checkpoint_every=3", "evaluation.adapt=true",
        "roles.late=0.2", "roles.join_round=5", "seed=4"]  # fmt: skip


def stopped_with(number: signal.Signals, folder: Path) -> tuple[int, str]:
    """Exit code and standard error of a real run that is sent a signal between two checkpoints."""
    running = process("run", *LONG, "--out", str(folder))
    wait_until(lambda: running.poll() is not None or rounds_done(folder) > written(folder) > 0)
    running.send_signal(number)
    _, errors = running.communicate(timeout=HANG)
    return running.returncode, errors


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG
    while not true():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.005)


def rounds_done(folder: Path) -> int:
    path = folder / "rounds.csv"
    return path.read_bytes().count(b"\n") - 1 if path.exists() else 0


def written(folder: Path) -> int:
    path = folder / "checkpoint.safetensors"
    return int(str(checkpoint.read_about(path)["round"])) if path.exists() else 0


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    done = kinfed("run", *LONG, "--out", str(folder), "-q")
    assert done.exit_code == 0, done.output
    return folder


@pytest.mark.on_demand  # in every run tests/test_kills.py kills one inside a write
@pytest.mark.xdist_group("uninterrupted")  # which is run once
def test_a_killed_run_resumes_to_the_same_bytes(uninterrupted: Path):
    code, _ = stopped_with(signal.SIGKILL, Path("killed"))
    assert code == -signal.SIGKILL
    for name in ("rounds.csv", "clients.csv", "events.jsonl"):
        with open(f"killed/{name}", "a") as file:
            file.write("7,0.12")  # as if killed in the middle of a line
    assert kinfed("resume", "killed", "-q").exit_code == 0
    for name in EQUAL:
        assert Path("killed", name).read_bytes() == (uninterrupted / name).read_bytes(), name
    assert [json.loads(line)["event"] for line in Path("killed/events.jsonl").read_text().splitlines()] == [
        "started", "resumed", "ended",
    ]  # fmt: skip


@pytest.mark.xdist_group("uninterrupted")  # which is run once
def test_control_c_says_how_to_go_on(uninterrupted: Path):
    code, errors = stopped_with(signal.SIGINT, Path("stopped"))
    assert code == 130
    assert errors.strip().splitlines()[-1] == "interrupted; resume with: kinfed resume stopped"
    assert kinfed("resume", "stopped", "-q").exit_code == 0  # with one thread, as the process that was stopped
    assert all(Path("stopped", name).read_bytes() == (uninterrupted / name).read_bytes() for name in EQUAL)


def test_a_real_process_prints_one_line_for_bad_input():
    running = process("run", "method=nothing")
    output, errors = running.communicate(timeout=HANG)
    assert (running.returncode, output) == (2, "")
    assert errors.startswith("error: unknown method 'nothing'") and errors.count("\n") == 1


LARGE = """
import torch
class Large(torch.nn.Linear):
    def __init__(self, shape, classes):
        super().__init__(64, classes)
    def forward(self, x):
        if len(x) > 2:  # more than the trial of the network
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.20 GiB. GPU 0 has less.")
        return super().forward(x.flatten(1))
"""


def test_a_gpu_that_is_full_is_one_line_and_an_event():
    Path("large_network.py").write_text(LARGE, encoding="utf-8")
    result = kinfed("run", *TINY, "model=large_network:Large", "--out", "full", "-q")
    assert_refused(result, "GPU memory is full, 3.20 GiB more were asked for: let fewer runs share it, or")
    events = [json.loads(line) for line in Path("full/events.jsonl").read_text(encoding="utf-8").splitlines()]
    assert events[-1]["event"] == "failed" and "memory is full" in events[-1]["message"]


def test_the_folder_of_a_method_of_ones_own_has_no_colon():
    own, name = "kinfed.methods.fedavg:FedAvg", "kinfed.methods.fedavg-FedAvg"
    assert kinfed("run", f"method={own}", *TINY, "-q").exit_code == 0
    assert kinfed("compare", "--methods", own, *TINY, "-q").exit_code == 0
    assert Path(f"runs/{name}-digits-seed0/summary.json").exists()
    assert Path(f"runs/compare-digits/{name}-seed0/summary.json").exists()


def test_a_folder_that_cannot_be_made_is_one_line():
    Path("file").write_text("")
    assert_refused(kinfed("run", "method=fedavg", *TINY, "--out", "file/run", "-q"), "file/run", "wanted a folder")
    kinfed("run", "method=fedavg", *TINY, "--out", "one", "-q")
    assert_refused(kinfed("report", "one", "--out", "file"), "file", "wanted a folder")
    assert_refused(kinfed("bench", "--json", "nowhere/x.json"), "there is no folder nowhere")


def test_a_comparison_counts_nothing_twice():
    assert_refused(kinfed("compare", *TINY, "--seeds", "0,0,1"), "seeds", "0 more than once")
    assert_refused(kinfed("compare", *TINY, "--methods", "fedavg,local,fedavg"), "fedavg more than once")


@pytest.mark.parametrize("seeds", ["3-1", "0,3-1", ",", ""])
def test_seeds_that_name_none_are_refused(seeds: str):
    assert_refused(kinfed("compare", *TINY, "--seeds", seeds), "--seeds: wanted whole numbers as in 0,1,2 or 0-4")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rounds", "=", "3"], "wanted key=value without spaces, got 'rounds = 3'"),
        (["method=fedavg", "training.lr", "=", "0.1"], "without spaces, got 'method=fedavg training.lr = 0.1'"),
        (["."], ". is a folder, wanted a TOML file"),
        (["rounds="], 'rounds: wanted an integer, got ""\n'),
        (["training.lr.x=5"], "'training.lr' is not a table, so 'training.lr.x' cannot be set: write training.lr=…"),
    ],
)
def test_a_setting_that_cannot_be_read_says_why(words: list[str], message: str):
    result = kinfed("run", *words)
    assert result.exit_code == 2 and message in result.output


def test_output_that_cannot_show_every_character_shows_question_marks(monkeypatch: pytest.MonkeyPatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "argv", ["kinfed", "run", "method=fedavg", "rounds=1"])
    with pytest.raises(SystemExit) as end:
        main()
    out.flush()
    assert not end.value.code and b"rounds to target" in out.buffer.getvalue() and b"?" in out.buffer.getvalue()


INTERRUPTED = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)
except KeyboardInterrupt:
    raise AttributeError("half imported")
"""


@pytest.mark.parametrize(
    ("module", "word"), [("typer", "run"), ("typer", "--help"), ("torch", "run"), ("torch", "list"), ("torch", "sweep")]
)
def test_control_c_while_python_imports_ends_quietly(module: str, word: str, tmp_path: Path):
    (tmp_path / f"{module}.py").write_text(INTERRUPTED)
    path = os.pathsep.join([f"{tmp_path}", f"{Path(__file__).parents[1]}"])
    for code in (["-m", "kinfed"], ["-c", "from kinfed.__main__ import main; main()"]):
        done = subprocess.run(
            [sys.executable, *code, word], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
        )
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("given", "said"), [((), "interrupted"), ((BEFORE_RUN,), "interrupted before the run started")]
)
def test_control_c_speaks_of_a_run_only_where_the_command_runs_one(given, said, capsys):
    with pytest.raises(typer.Exit) as left, plain_errors(*given):
        raise KeyboardInterrupt
    assert left.value.exit_code == 130 and capsys.readouterr().err.strip() == said
