"""`kinfed bench`"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kinfed.cli.options import app, plain_errors, split_names
from kinfed.errors import ConfigError


@app.command()
def bench(
    workloads: Annotated[
        str,
        typer.Option(
            help="mlp (MLP-200, 20 of 100 clients), cnn (the same), flt4 (480 of 2400, 47 classes), leaf, lenet, "
            "uneven (10 of 100 with 15 to 2000 samples); dropout, batchnorm, vit, lstm, resnet9 (20 clients, 3x32x32), "
            "tuning (an auto-encoder by Adam, 100 clients)."
        ),
    ] = "mlp,cnn",
    contenders: Annotated[
        str | None,
        typer.Option(
            help="kinfed, kinfed-tf32, kinfed-bf16, sequential, plain, plain-float32 (no TF32 on a GPU), plain-1 (one "
            "thread), flower, pfl, fedlab, fedjax. Default: kinfed, sequential, plain, and the other simulators in a "
            "checkout of the repository.",
            show_default=False,
        ),
    ] = None,
    drivers: Annotated[
        Path | None,
        typer.Option(help="Folder of drivers of other simulators. Default: benchmarks/peers of a checkout.",
                     show_default=False),
    ] = None,
    peer_python: Annotated[
        list[str] | None,
        typer.Option(help="The interpreter that has a peer's packages: fedjax=/path/to/python.", show_default=False),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Timed rounds of each contender; one more warms it up.")] = 5,
    threads: Annotated[int, typer.Option(help="Threads or processes a contender may use; 0: one a core.")] = 0,
    scale: Annotated[float, typer.Option(help="Share of the clients, in all and in a round.")] = 1.0,
    device: Annotated[str, typer.Option(help="cpu or cuda, for kinfed and the plain loop.")] = "cpu",
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write all that was measured to this file.",
                                                   show_default=False)] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Run nothing: set two files of --json side by side, the older first.", show_default=False),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table in Markdown.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show the table and nothing else.")] = False,
) -> None:  # fmt: skip
    """Measure how long a round takes: kinfed, a plain PyTorch loop and other simulators, in turns.

    Each contender is a process of its own and waits while the others run. "× plain" says how many times as fast as
    the plain loop it was, round against neighbouring round, so it holds on a busy machine too.

    **Examples**

    `kinfed bench` — all contenders that are installed, on the MLP and the CNN

    `kinfed bench --workloads mlp --contenders kinfed,plain --rounds 10`

    `kinfed bench --workloads flt4 --scale 0.1 --peer-python fedjax=venvs/fedjax/bin/python`

    `kinfed bench --workloads mlp,flt4 --contenders kinfed,plain --device cuda` — and the share of the GPU's bandwidth

    `kinfed bench --compare old.json new.json` — what became slower; the exit code is 1 if kinfed did by a tenth

    docs/performance.md tells how to install the other simulators; one that is not found is left out, with the reason.
    """
    with plain_errors():
        from kinfed.bench.comparison_of_files import compare_files
        from kinfed.bench.contenders import choose_contenders
        from kinfed.bench.race import Plan, run_bench
        from kinfed.engines import choose_device
        from kinfed.progress import Lines

        if compare:
            table, is_slower = compare_files(*compare)
            Lines(sys.stdout, markdown, quiet).table(table)
            raise typer.Exit(1 if is_slower else 0)
        if json_file and not json_file.resolve().parent.is_dir():
            raise ConfigError(f"--json {json_file}: there is no folder {json_file.parent}; make it first")
        chosen = choose_contenders(split_names(contenders) or [], split_pairs(peer_python or []), drivers)
        plan = Plan(rounds, threads, choose_device(device), scale)
        run_bench(split_names(workloads) or [], chosen, plan, Lines(sys.stdout, markdown, quiet), json_file)


def split_pairs(texts: list[str]) -> dict[str, str]:
    """name=value options as a dict."""
    for text in texts:
        if "=" not in text:
            raise ConfigError(f"--peer-python: wanted name=/path/to/python, got '{text}'")
    return dict(text.split("=", 1) for text in texts)
