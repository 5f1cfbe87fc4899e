"""Malformed input of every kind that kinfed reads, drawn from a seed: each case names what it does and must end well.

A case ends well when it is refused by an error of kinfed's own (one line on the command line), or, where its input may
be sound by chance, when it goes through. It fails by any other error, by silence where the input is harmful, and by
taking longer than `SECONDS`.

    python -m tests.fuzz.cases 2400 0            # so many cases, with this seed: what failed, and how
    python -m tests.fuzz.cases 200 0 forged      # of one family
"""

import json
import math
import random
import shutil
import signal
import struct
import sys
import tempfile
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import torch
from typer.testing import CliRunner

from kinfed import api, files, serving
from kinfed.cli import app
from kinfed.config import DEMO, Config, assemble, load_config, merge_tables, read, read_toml, to_toml
from kinfed.config.schema import PARTS, Table
from kinfed.config.settings import default_fields
from kinfed.config.toml import flatten, set_value
from kinfed.data import load
from kinfed.deployment.node_data import load_file
from kinfed.deployment.plan import read_plan
from kinfed.errors import KinfedError
from kinfed.methods import METHODS
from kinfed.models import make_autoencoder
from kinfed.recipes.recipe_files import load_recipe
from kinfed.runs.reader import Run, read_runs
from kinfed.signatures.pretraining import Pretraining

SECONDS = 120  # far more than any case takes on a slow machine: what takes longer hangs
REFUSED = (KinfedError, OSError)  # what the command line shows in one line
TINY = ["rounds=1", "partition.clients=10", "data.public=0.1"]
QUICK = {
    "flt": ["methods.flt.signature.latent=8"],
    "repa": ["methods.repa.clusters=2", "methods.repa.signature.encoder_rounds=1"],
    "wd": ["methods.wd.rounds_before=1", "methods.wd.clusters=2"],
}


PAPER = [  # FLT's own signature, and a clusterer that goes with it
    "methods.flt.signature.name=encoder_centroids", "methods.flt.signature.latent=8",
    "methods.flt.signature.pretraining.epochs=1", "methods.flt.relatedness.name=relatedness",
]  # fmt: skip


class Luck(random.Random):
    """Random numbers, and the share of accepted configs that are also run."""

    runs: float = 0.3


@dataclass(frozen=True)
class Case:
    """Something to try in an empty folder."""

    name: str
    work: Callable[[Path], object]
    must_refuse: bool = False


class Hangs(BaseException):
    """A case took too long."""


@dataclass(frozen=True)
class Outcome:
    case: Case
    verdict: str  # refused, accepted, silent, hangs, traceback
    detail: str = ""

    @property
    def is_bad(self) -> bool:
        return self.verdict not in ("refused", "accepted")


@contextmanager
def alarm(seconds: int) -> Iterator[None]:
    """Inside it what takes longer is interrupted."""

    def ring(*_: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def judge(case: Case) -> Outcome:
    """How a case ends."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with alarm(SECONDS):
                case.work(Path(folder))
        except REFUSED as error:
            return Outcome(case, "refused", str(error))
        except Hangs:
            return Outcome(case, "hangs")
        except (Exception, SystemExit):  # a traceback is what is looked for
            return Outcome(case, "traceback", traceback.format_exc(limit=-4))
    return Outcome(case, "silent" if case.must_refuse else "accepted")


# ---- numbers and texts of ill will

HARMFUL: list[object] = [math.nan, math.inf, -math.inf, 10**400, -(10**400)]
ODD: list[object] = [
    -1,
    0,
    1,
    2,
    0.5,
    1e308,
    -1e308,
    1e-320,
    2**31 - 1,
    2**63,
    10**9,
    10**6,
    True,
    "",
    "x",
    "none",
    "nan",
    "own:0",
    "a:b:c",
    ":",
    "../../etc/passwd",
    "os:system",
    "é\u202e",
    "x" * 5000,
    [],
    [[]],
    {},
    {"name": "x"},
    [1, "x"],
    [math.inf],
    [-1, -1],
]


def nest(depth: int) -> object:
    deep: object = 1
    for _ in range(depth):
        deep = [deep]
    return deep


# ---- configs


@cache
def config_keys() -> list[tuple[str, object, str]]:
    """Every setting as (dotted key, its default, the method that it belongs to)."""
    found: dict[tuple[str, str], object] = {}
    for method in METHODS:
        table = read(merge_tables(read_toml(DEMO), {"method": method, "methods": {}})).resolve()
        found |= {
            (key, method if key.startswith("methods.") else "fedavg"): value for key, value in flatten(table).items()
        }
    return [(key, value, method) for (key, method), value in found.items()]


@cache
def part_keys() -> list[tuple[list[str], str, str, object]]:
    """Every setting of a part as (section, name of the part, key, default)."""
    sections = {
        "partition": ["partition"],
        "shift": ["shift"],
        "aggregation": ["aggregation"],
        "signature": ["methods", "flt", "signature"],
        "clusterer": ["methods", "flt", "relatedness"],
    }
    found = []
    for parts in PARTS.values():
        section = sections.get(parts.kind)
        for name, kind in parts.registry.items() if section else ():
            found += [(section, name, key, value) for key, value in default_fields(kind).items()]
    return cast("list[tuple[list[str], str, str, object]]", found)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def try_config(table: Table, and_run: bool) -> Callable[[Path], object]:
    def work(folder: Path) -> object:
        config = read(table)
        experiment = assemble(config) if is_small(config) else None
        return experiment.run() if experiment and and_run else None

    return work


LARGE = ("roles.join_round", "methods.flt.relatedness.all_pairs")  # whose defaults are


def is_small(config: Config) -> bool:
    """Whether it ends soon: a config may rightly ask for much."""
    flat = flatten(config.resolve())
    numbers = [v for key, v in flat.items() if is_number(v) and key not in LARGE]
    device = config.engine.device in ("cpu", "auto") and config.engine.name in ("vectorised", "sequential")
    return device and all(abs(cast(float, v)) <= 1000 for v in numbers)


def config_cases(rng: Luck) -> Iterator[Case]:
    """One setting of a config is replaced."""
    while True:
        key, default, method = rng.choice(config_keys())
        value = rng.choice(HARMFUL if rng.random() < 0.4 else ODD)
        base = load_config(DEMO, [f"method={method}", *TINY, *QUICK.get(method, [])]).resolve()
        table = set_value(base, key.split("."), value)
        meaningless = is_number(default) and (
            (value in HARMFUL and not key.endswith("seed")) or (is_number(value) and cast(float, value) == -1)
        )
        yield Case(f"{method}: {key} = {str(value)[:60]}", try_config(table, rng.random() < rng.runs), meaningless)


def part_cases(rng: Luck) -> Iterator[Case]:
    """One setting of a partition, shift, signature, clusterer or aggregation is replaced."""
    while True:
        section, name, key, default = rng.choice(part_keys())
        value = rng.choice(HARMFUL if rng.random() < 0.4 else ODD)
        method = "flt" if "flt" in section else "fedavg"
        more = PAPER if name in ("encoder_centroids", "relatedness") else QUICK.get(method, [])
        base = load_config(DEMO, [f"method={method}", *TINY, *more]).resolve()
        table = set_value(base, section, {"name": name, key: value})
        meaningless = is_number(default) and (
            (value in HARMFUL and key != "seed") or (is_number(value) and cast(float, value) == -1)
        )
        yield Case(
            f"{'.'.join(section)} {name}.{key} = {str(value)[:60]}",
            try_config(table, rng.random() < rng.runs),
            meaningless,
        )


def text_cases(rng: Luck) -> Iterator[Case]:
    """A config file as text: cut, changed, nested, repeated."""
    whole = DEMO.read_bytes()
    while True:
        kind = rng.choice(["cut", "flip", "noise", "deep list", "deep table", "long number", "twice"])
        text = bytearray(whole)
        if kind == "cut":
            text = text[: rng.randrange(len(text))]
        elif kind == "flip":
            text[rng.randrange(len(text))] ^= 1 << rng.randrange(8)
        elif kind == "noise":
            text = bytearray(rng.randbytes(rng.randrange(1, 300)))
        elif kind == "deep list":
            depth = rng.choice([100, 5000, 100_000])
            text += b"\nx = " + b"[" * depth + b"]" * depth
        elif kind == "deep table":
            text += b"\n[" + b"a." * rng.choice([100, 5000, 50_000]) + b"b]\nx = 1"
        elif kind == "long number":
            text += b"\nrounds = " + b"9" * rng.choice([30, 400, 5000])
        else:
            text += b"\nrounds = 3\n"
        sure = kind in ("noise", "deep list", "deep table", "long number", "twice")
        yield Case(f"config file: {kind}", partial_read(bytes(text)), sure and kind != "noise")


def partial_read(content: bytes) -> Callable[[Path], object]:
    def work(folder: Path) -> object:
        (folder / "c.toml").write_bytes(content)
        return load_config(folder / "c.toml")

    return work


# ---- arrays


def npy(header: str, content: bytes, version: bytes = b"\x01\x00") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(text) % 65536) + text + content


def lying_header(rng: random.Random) -> bytes:
    shape = rng.choice(
        [
            "(10000000000000,)",
            "(1099511627776, 1099511627776)",
            "(-1,)",
            "(3, -8, 8)",
            "(0, 99999999999999999999)",
            "(1,)*70",
            "(3, 8, 9)",
            "()",
            "(1.5,)",
            "'x'",
            "(True,)",
            "[3, 8, 8]",
            "(3, 8, 8, 1, 1, 1, 1, 1)",
            "(" * 2000,
        ]
    )
    kind = rng.choice(
        ["'|u1'", "'<f8'", "'|O'", "'|V0'", "'<U0'", "'<c16'", "'|S9999999999'", "'<M8[ns]'", "[('a','<f4')]", "'?'"]
    )
    header = f"{{'descr': {kind}, 'fortran_order': {rng.choice(['False', 'True', '3'])}, 'shape': {shape}, }}"
    return npy(
        header, bytes(rng.choice([0, 192, 1000])), rng.choice([b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x09"])
    )


def write_zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def spoil(path: Path, rng: random.Random) -> None:
    """Cuts a file off, flips one of its bits, or adds to it."""
    content = bytearray(path.read_bytes())
    kind = rng.choice(["cut", "flip", "flip", "more"])
    if kind == "cut":
        content = content[: rng.randrange(len(content))]
    elif kind == "flip":
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    else:
        content += rng.randbytes(rng.randrange(1, 50))
    path.write_bytes(content)


IMAGES = np.zeros((6, 8, 8), np.uint8)


def odd_arrays(rng: random.Random, x: str, y: str) -> dict[str, np.ndarray]:
    """Arrays that can be written and should not be."""
    images = rng.choice(
        [
            IMAGES,
            IMAGES.astype(float),
            np.full((6, 8, 8), np.nan),
            np.full((6, 4), np.inf),
            np.zeros((6, 0)),
            IMAGES[:0],
            np.array(5),
            np.zeros((6, 8, 8), complex),
            np.array(["a"] * 6),
            np.zeros((6, 8, 8, 3), np.uint8),
            np.zeros((6, 2, 2, 2, 2)),
            np.zeros((6, 1, 1), np.uint8),
            np.full((6, 3), 1e300),
        ]
    )
    labels = rng.choice(
        [
            np.arange(6) % 2,
            np.array([0, 1, 10**6, 1, 0, 1]),
            np.array([0, 1, 2**62, 1, 0, 1]),
            np.full(6, -1),
            np.full(6, -7),
            np.zeros(6),
            np.zeros((6, 1), int),
            np.arange(5),
            np.array([2**64 - 1] * 6, np.uint64),
            np.array([True] * 6),
            np.full(6, 255, np.uint8),
        ]
    )
    return {x: images, y: labels}


def samples_cases(rng: Luck) -> Iterator[Case]:
    """A client's samples.npz."""
    bundle = made("bundle")
    while True:
        number, kind = rng.random(), rng.choice(["lying header", "odd arrays", "spoilt", "bomb", "noise"])

        def work(folder: Path, kind: str = kind, number: float = number) -> object:
            luck, path = random.Random(number), folder / "samples.npz"
            if kind == "lying header":
                write_zip(path, {"x": lying_header(luck)})
            elif kind == "odd arrays":
                np.savez(path, **odd_arrays(luck, "x", "y"))
            elif kind == "spoilt":
                np.savez_compressed(path, x=IMAGES, y=np.arange(6) % 2)
                spoil(path, luck)
            elif kind == "bomb":
                write_bomb(path)
            else:
                path.write_bytes(luck.randbytes(200))
            data = load_file(path)
            return serving.load(bundle).assign(data.x, data.y if int(data.y.min()) >= 0 else None)

        yield Case(f"samples.npz: {kind}", work, kind in ("bomb", "noise"))


def write_bomb(path: Path) -> None:
    """300 MB of zeros in 300 kB."""
    header = npy("{'descr': '|u1', 'fortran_order': False, 'shape': (300, 1048576), }", b"")
    if not (kept := made("folder") / "bomb.npz").exists():
        with (
            zipfile.ZipFile(kept, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
            archive.open("x.npy", "w") as file,
        ):
            file.write(header)
            for _ in range(300):
                file.write(bytes(2**20))
    shutil.copy(kept, path)


def dataset_cases(rng: Luck) -> Iterator[Case]:
    """A dataset's NAME.npz."""
    while True:
        number, kind = rng.random(), rng.choice(["lying header", "odd arrays", "spoilt"])

        def work(folder: Path, kind: str = kind, number: float = number) -> object:
            luck, path = random.Random(number), folder / "mine.npz"
            parts = {
                f"{n}_{part}": v for part in ("train", "test") for n, v in {"x": IMAGES, "y": np.arange(6) % 2}.items()
            }
            if kind == "lying header":
                np.savez(folder / "sound.npz", **parts)
                with zipfile.ZipFile(folder / "sound.npz") as archive:
                    members = {name: archive.read(f"{name}.npy") for name in parts}
                write_zip(path, members | {luck.choice(list(parts)): lying_header(luck)})
            else:
                odd = odd_arrays(luck, "x_train", "y_train") if kind == "odd arrays" else {}
                np.savez_compressed(path, **(parts | odd))
            if kind == "spoilt":
                spoil(path, luck)
            config = load_config(
                DEMO,
                [
                    "data.name=mine",
                    f"data.dir={folder}",
                    "method=fedavg",
                    "partition.name=iid",
                    "partition.clients=2",
                    "rounds=1",
                ],
            )
            load("mine", folder)
            return assemble(config).run()

        yield Case(f"dataset: {kind}", work)


# ---- bundles, checkpoints, encoders, tables


@cache
def made(what: str) -> Path:
    """A run, its bundle, an encoder, made once; `folder` is where they are."""
    if what == "folder":
        return Path(tempfile.mkdtemp(prefix="kinfed-fuzz-"))
    folder = made("folder")
    if what == "run":
        quick = ["method=repa", "methods.repa.clusters=2", "methods.repa.signature.encoder_rounds=1"]
        return api.run(load_config(DEMO, [*quick, *TINY]), out=folder / "run", quiet=True).path
    if what == "bundle":
        return api.load_run(made("run")).export(folder / "bundle")
    files.save_tensors(folder / "encoder.safetensors", make_autoencoder("conv_ae", (1, 8, 8), 4).init())
    return folder / "encoder.safetensors"


def damage_cases(rng: Luck) -> Iterator[Case]:
    """One bit, the end, or some more of a sealed file."""
    while True:
        number, name = (
            rng.random(),
            rng.choice(["bundle.json", "bundle.safetensors", "checkpoint.safetensors", "encoder"]),
        )

        def work(folder: Path, name: str = name, number: float = number) -> object:
            luck = random.Random(number)
            if name == "encoder":
                path = Path(shutil.copy(made("encoder"), folder / "e.safetensors"))
                spoil(path, luck)
                return Pretraining(str(path))(make_autoencoder("conv_ae", (1, 8, 8), 4), torch.zeros(0, 1, 8, 8))
            copy = shutil.copytree(made("run" if name.startswith("check") else "bundle"), folder / "copy")
            spoil(copy / name, luck)
            return serving.load(copy) if name.startswith("bundle") else serving.export(copy)

        yield Case(f"damaged {name}", work, must_refuse=True)


def twist(tree: object, rng: random.Random) -> object:
    """The tree with one value somewhere replaced or removed."""
    if isinstance(tree, dict) and tree and rng.random() < 0.9:
        key = rng.choice(list(tree))
        if rng.random() < 0.1:
            return {k: v for k, v in tree.items() if k != key}
        return tree | {key: twist(tree[key], rng)}
    if isinstance(tree, list) and tree and rng.random() < 0.9:
        at = rng.randrange(len(tree))
        return [*tree[:at], twist(tree[at], rng), *tree[at + 1 :]]
    return rng.choice([None, -1, 10**30, 1e308, "x", [], {}, [[[]]], {"$tensor": "gone"}, True, nest(300), math.nan])


def forged_cases(rng: Luck) -> Iterator[Case]:
    """Trees that were changed by somebody who knows how to compute a digest."""
    while True:
        number, name = rng.random(), rng.choice(["bundle.json", "tree", "about", "tensors"])

        def work(folder: Path, name: str = name, number: float = number) -> object:
            luck = random.Random(number)
            if name == "bundle.json":
                copy = shutil.copytree(made("bundle"), folder / "copy")
                table = cast(Table, twist(json.loads((copy / name).read_text()), luck))
                text = json.dumps(
                    {"digest": files.BLANK} | table | {"digest": files.BLANK} if isinstance(table, dict) else table
                )
                (copy / name).write_text(files.seal_text(text))
                return serving.load(copy).assign(torch.zeros(3, 1, 8, 8, dtype=torch.uint8))
            copy = shutil.copytree(made("run"), folder / "copy")
            tensors, metadata = files.load_tensors(copy / "checkpoint.safetensors")
            if name == "tensors":
                chosen = luck.choice(sorted(tensors))
                tensors[chosen] = luck.choice(
                    [
                        torch.zeros(0),
                        torch.full((2, 2), -1),
                        torch.full((3,), math.nan),
                        torch.ones(1, dtype=torch.bool),
                    ]
                )
            else:
                metadata[name] = json.dumps(twist(json.loads(metadata[name]), luck))
            files.save_tensors(copy / "checkpoint.safetensors", tensors, metadata)
            return serving.export(copy)

        yield Case(f"forged {name}", work)


TABLES = (
    "rounds.csv",
    "clients.csv",
    "clusters.csv",
    "ledger.csv",
    "labels.csv",
    "timing.csv",
    "summary.json",
    "config.toml",
    "signatures.npz",
    "confusion.npz",
    "events.jsonl",
)


def table_cases(rng: Luck) -> Iterator[Case]:
    """Tables and arrays of a run folder that a report, an export or a resumed run reads."""
    while True:
        number, name = rng.random(), rng.choice(TABLES)

        def work(folder: Path, name: str = name, number: float = number) -> object:
            luck, copy = random.Random(number), shutil.copytree(made("run"), folder / "copy")
            if luck.random() < 0.3 or name.endswith("npz"):
                spoil(copy / name, luck)
            else:
                text = (copy / name).read_text()
                old = luck.choice([word for word in text.replace("\n", ",").replace(" ", ",").split(",") if word])
                new = luck.choice(["1e400", "-1", "99999999999999", "nan", "x", "", "1" * 500, '"', "\x00", "[" * 3000])
                (copy / name).write_text(text.replace(old, new, luck.choice([1, -1])))
            (run,) = read_runs([copy])
            use_run(run)
            return api.resume(copy, rounds=2, quiet=True) if luck.random() < 0.2 else None

        yield Case(f"run folder: {name}", work)


def use_run(run: Run) -> None:
    """Reads all that a report reads."""
    for part in (
        "rounds",
        "clients",
        "clusters",
        "labels",
        "ledger",
        "seconds",
        "summary",
        "count",
        "found",
        "true_clusters",
        "scores",
        "main",
        "metric",
        "class_names",
        "diagnosis",
        "roles",
        "training_scores",
        "method",
        "seed",
        "place",
    ):
        getattr(run, part)
    for name in ("signatures", "relatedness", "tree"):
        run.arrays(name)


def tree_cases(rng: Luck) -> Iterator[Case]:
    """A dendrogram, neighbours and signatures that do not fit the run, in a report."""
    while True:
        number = rng.random()

        def work(folder: Path, number: float = number) -> object:
            luck, copy = random.Random(number), shutil.copytree(made("run"), folder / "copy")
            n = luck.choice([0, 1, 3, 10, 50])
            draw = np.random.default_rng(luck.randrange(2**32))
            odd = luck.choice([-1, 0, 5, 10**9, math.nan, math.inf])
            arrays = {
                "tree": {
                    "members": draw.integers(-2, 12, n),
                    "merges": draw.choice([odd, 1.0, 2.0], (n, luck.choice([3, 4]))),
                    "height": luck.choice([np.array(odd), np.zeros(3)]),
                },
                "relatedness": luck.choice(
                    [
                        {"related": draw.random((n, n)) > 0.5},
                        {"related": draw.random(n)},
                        {"sets": np.ones((1, n), bool), "set_of": draw.integers(-3, 9, n)},
                    ]
                ),
                "signatures": {
                    "clients": draw.integers(-9, 99, n),
                    "points": draw.choice([odd, 1.0], (n, luck.choice([0, 1, 2]))),
                },
            }
            name = luck.choice(list(arrays))
            if luck.random() < 0.2:
                arrays[name].pop(luck.choice(list(arrays[name])))
            files.write_arrays(copy / f"{name}.npz", cast("dict[str, np.ndarray]", arrays[name]))
            return api.report(copy)

        yield Case("report of a damaged tree, neighbours or signatures", work)


# ---- recipes, plans, the command line


def recipe_cases(rng: Luck) -> Iterator[Case]:
    """A recipe file."""
    while True:
        number = rng.random()

        def work(folder: Path, number: float = number) -> object:
            luck, path = random.Random(number), folder / "mine.toml"
            table = cast(
                Table,
                {
                    "title": "t",
                    "paper": "p",
                    "measures": ["accuracy"],
                    "notes": [],
                    "config": {},
                    "columns": {"c": {"title": "c"}},
                    "protocols": {"p": {"says": "s"}},
                    "rows": {"r": {"title": "r", "published": {"c": [1.0]}}},
                },
            )
            key = luck.choice([*table, "extends", "main", "claims", "stand_ins", "datasets"])
            table = table | {
                key: luck.choice(
                    [
                        3,
                        "x",
                        "mine",
                        "../mine",
                        str(folder / "mine"),
                        [],
                        [1],
                        {},
                        {"c": 3},
                        {"c": {"x": 1}},
                        [{"says": 1}],
                        True,
                    ]
                )
            }
            path.write_text(to_toml(table))
            return load_recipe(str(path))

        yield Case("recipe", work)


def plan_cases(rng: Luck) -> Iterator[Case]:
    """plan.toml of a deployment."""
    while True:
        key, value = (
            rng.choice(["clients", "shape", "classes", "dtype", "wait_for", "wait_seconds"]),
            rng.choice([*HARMFUL, *ODD]),
        )

        def work(folder: Path, key: str = key, value: object = value) -> object:
            (folder / "plan.toml").write_text(to_toml({"clients": 4, "shape": [1, 8, 8], "classes": 10} | {key: value}))
            return read_plan(folder / "plan.toml")

        bad = value in HARMFUL or (is_number(value) and cast(float, value) == -1)
        yield Case(f"plan: {key} = {str(value)[:40]}", work, bad)


WORDS = [
    "run",
    "compare",
    "resume",
    "list",
    "report",
    "export",
    "assign",
    "reproduce",
    "deploy",
    "new",
    "bench",
    "--rounds",
    "--seed",
    "--seeds",
    "--out",
    "--data",
    "--quick",
    "--rows",
    "--only",
    "--shape",
    "--classes",
    "--clients",
    "--figures",
    "--workloads",
    "--scale",
    "--threads",
    "--jobs",
    "--predict",
    "--trust",
    "--force",
    "nowhere",
    ".",
    "/dev/null",
    "/proc/self/mem",
    "-1",
    "0",
    "1e400",
    "9" * 400,
    "nan",
    "x=1",
    "method=",
    "=",
    "a.b.c.d=1",
    "rounds=",
    "methods.flt.k=3",
    "rounds=-1",
    "é",
    "",
    "compare=[]",
    "data.name=../x",
    "partition.name=nope",
    "model=os:nope",
    "method=os:nope",
    "seed=-1",
    "3,x",
    "png,gif",
]


def command_cases(rng: Luck) -> Iterator[Case]:
    """Words on the command line; none of them starts work."""
    while True:
        words = [rng.choice(WORDS[:10]), *rng.choices(WORDS[10:], k=rng.randrange(1, 5))]
        if words[0] in ("run", "compare", "bench", "reproduce"):
            words += ["rounds=-1"] if words[0] in ("run", "compare") else ["--jobs", "x"]

        def work(folder: Path, words: list[str] = words) -> object:
            result = CliRunner().invoke(app, words, catch_exceptions=True)
            if result.exception and not isinstance(result.exception, SystemExit):
                raise result.exception
            if "Traceback" in result.output:
                raise RuntimeError(result.output)
            return result.exit_code

        yield Case(f"kinfed {' '.join(words)[:90]!r}", work)


FAMILIES: dict[Callable[[Luck], Iterator[Case]], int] = {  # with their share of the cases
    config_cases: 24,
    part_cases: 16,
    text_cases: 8,
    samples_cases: 10,
    dataset_cases: 8,
    damage_cases: 10,
    forged_cases: 8,
    table_cases: 8,
    recipe_cases: 4,
    plan_cases: 4,
    command_cases: 6,
}
DEAR = {tree_cases: 4}  # draws a report each


def draw_cases(count: int, seed: int, dear: bool = True, only: str = "") -> Iterator[Case]:
    """So many cases of all families, the same ones for the same seed; without `dear` ones reports and most runs."""
    families = FAMILIES | (DEAR if dear else {})
    families = {family: share for family, share in families.items() if family.__name__.startswith(only)}
    total = sum(families.values())
    for number, (family, share) in enumerate(families.items()):
        luck = Luck(1000 * seed + number)
        luck.runs = 0.3 if dear else 0.03
        cases = family(luck)
        for _ in range(math.ceil(count * share / total)):
            yield next(cases)


def main(count: int, seed: int, only: str = "") -> int:
    """Tries cases, prints those that failed, and gives back how many."""
    outcomes = []
    for case in draw_cases(count, seed, only=only):
        outcome = judge(case)
        outcomes.append(outcome)
        if outcome.is_bad:
            print(f"{outcome.verdict}: {case.name}\n{outcome.detail}", flush=True)
    print(f"{len(outcomes)} cases:", dict(Counter(outcome.verdict for outcome in outcomes)))
    shutil.rmtree(made("folder"), ignore_errors=True)
    return sum(outcome.is_bad for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(bool(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])))
