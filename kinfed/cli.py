"""The command line. Everything heavy is imported inside the commands, so that `kinfed --help` answers at once."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from kinfed.arguments import absolute, configured, names, numbers, own_plan, pairs
from kinfed.errors import KinfedError

if TYPE_CHECKING:
    from kinfed.config import Config

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

deploy = typer.Typer(no_args_is_help=True, help="Take a config to a real network: Flower's server and nodes.")
app.add_typer(deploy, name="deploy")

Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONFIG.toml key=value",
        help="A TOML file, if any, then settings that go over it: rounds=50 training.lr=0.1 partition.name=dirichlet.",
        show_default=False,
    ),
]
Out = Annotated[Path | None, typer.Option(help="Folder to write. Default: a new one under runs/.", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Replace what an earlier run wrote into that folder.")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the datasets' .npz files. Default: $KINFED_DATA or the cache.", show_default=False),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, or auto: cuda where there is one.", show_default=False)]
Engine = Annotated[
    str | None,
    typer.Option(help="vectorised, sequential (slow, the reference) or flower (Ray's simulation).", show_default=False),
]
Seed = Annotated[int | None, typer.Option(help="Fixes clients, first weights and every draw.", show_default=False)]
Rounds = Annotated[int | None, typer.Option(help="Rounds of training in all.", show_default=False)]
Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of bars, as when the output is not a terminal.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing but errors and warnings.")]


def main() -> None:
    """The entry point of the script `kinfed`."""
    app(prog_name="kinfed")


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"kinfed {version('kinfed')}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Clustered federated learning: find out which clients are kin, and train one model for each kinship.

    **First steps**

    `kinfed run` runs FLT on 20 clients in five planted kinships (digits, no download).

    `kinfed compare` sets it against FedAvg and Local on the same clients.

    `kinfed list` shows all methods, datasets, partitions, shifts, models and engines.

    `kinfed reproduce` runs the papers' tables, and sets published against measured.

    `kinfed export` and `kinfed assign` serve a finished run's models to clients that nobody has met.

    `kinfed report RUN` makes a page of pictures and tables of a run or a comparison.

    `kinfed bench` measures how fast rounds go here, beside a plain loop and other simulators.

    `kinfed deploy new` writes an app for Flower's server and nodes, for a federation over a network.

    `kinfed run --help` tells how to set everything else.
    """


@app.command()
def run(
    settings: Settings = None, out: Out = None, force: Force = False, data_dir: DataDir = None, device: Device = None,
    engine: Engine = None, seed: Seed = None, rounds: Rounds = None, plain: Plain = False, quiet: Quiet = False,
) -> None:  # fmt: skip
    """Run one method and write a folder with its results.

    **Examples**

    `kinfed run` — FLT, digits, 20 clients in five kinships, 30 rounds

    `kinfed run method=fedavg rounds=20 training.lr=0.05` — some settings

    `kinfed run experiment.toml seed=3 --out runs/third` — a file, and a setting over it

    `kinfed run data.name=mnist --data-dir ~/data --device auto` — another dataset, on a GPU if there is one

    `kinfed run roles.look_alikes=5 evaluation.correlation=true` — robustness and correlation, see docs/metrics.md

    **Settings** are sections of the TOML file and dotted keys here: `data`, `partition`, `shift`, `roles`, `change`,
    `training`, `evaluation`, `engine`, `methods.NAME`. Every run's `config.toml` has all of them with their values:
    copy it, change it, run it. A misspelt key is an error that names the nearest one.

    A run that was stopped goes on with `kinfed resume FOLDER`.
    """
    options = {"data.dir": absolute(data_dir), "engine.device": device, "engine.name": engine}
    with plain_errors():
        from kinfed import commands
        from kinfed.progress import choose_display

        config = configured(settings, options | {"seed": seed, "rounds": rounds})
        commands.run(config, commands.Place(out, force), choose_display(plain, quiet))


@app.command()
def compare(
    settings: Settings = None,
    methods: Annotated[
        str | None, typer.Option(help="Methods to compare, as in fedavg,local,flt.", show_default=False)
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds to run each method with, as in 0,1,2.", show_default=False)
    ] = None,
    out: Out = None, force: Force = False, data_dir: DataDir = None, device: Device = None, engine: Engine = None,
    rounds: Rounds = None, plain: Plain = False, quiet: Quiet = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The table in Markdown; with --quiet nothing else.")
    ] = False,
) -> None:  # fmt: skip
    """Run several methods on the same clients and seeds, and show one table.

    **Examples**

    `kinfed compare` — FedAvg, Local and FLT on digits

    `kinfed compare --methods fedavg,flt --seeds 0,1,2` — mean ± standard deviation over three seeds

    `kinfed compare experiment.toml rounds=50 --out runs/mine --markdown` — a file, and a table to paste

    **The folder** has one run folder for each method and seed, and the table as `compare.csv` and `compare.md`.
    A comparison that was stopped goes on with `kinfed resume FOLDER`: finished runs are not run again.
    """
    options = {"data.dir": absolute(data_dir), "engine.device": device, "engine.name": engine, "rounds": rounds}
    with plain_errors():
        from kinfed import commands
        from kinfed.comparison import compared
        from kinfed.progress import as_markdown, choose_display

        config = configured(settings, options | {"compare": names(methods), "seeds": numbers(seeds)})
        display = choose_display(plain, quiet, markdown)
        outcomes = commands.compare(config, commands.Place(out, force), display)
        if quiet and markdown:
            print(as_markdown(compared(outcomes)))


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of the run or the comparison.", metavar="RUN")],
    rounds: Annotated[int | None, typer.Option(help="More rounds than it had.", show_default=False)] = None,
    device: Device = None, plain: Plain = False, quiet: Quiet = False,
) -> None:  # fmt: skip
    """Go on with a run or a comparison that was stopped, killed or crashed.

    The end is the same, bit for bit, as if it had never been stopped.

    **Examples**

    `kinfed resume runs/flt-digits-seed0`

    `kinfed resume runs/flt-digits-seed0 --rounds 200` — and further than planned
    """
    with plain_errors():
        from kinfed import commands
        from kinfed.progress import choose_display

        def changed(config: "Config") -> "Config":
            engine = replace(config.engine, device=device or config.engine.device)
            return replace(config, rounds=config.rounds if rounds is None else rounds, engine=engine)

        commands.resume(folder, changed, choose_display(plain, quiet))


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run that has ended.", metavar="RUN")],
    folder: Annotated[Path, typer.Argument(help="The folder to write the bundle to.", metavar="DIR")],
    force: Annotated[bool, typer.Option("--force", help="Replace a bundle that is there.")] = False,
) -> None:
    """Write a bundle: all that it takes to place strangers and hand them their models, offline.

    It has the models of the groups, the encoder and what places a client; neither anybody's rows nor pickle.

    **Examples**

    `kinfed export runs/flt-digits-seed0 bundle`

    `kinfed assign bundle --data clinic` — then, wherever the bundle is copied to
    """
    with plain_errors():
        from kinfed.serving.commands import Target, export_run

        for line in export_run(run, Target(folder, force)):
            print(line)


@app.command()
def assign(
    bundle: Annotated[Path, typer.Argument(help="The folder that `kinfed export` wrote.", metavar="BUNDLE")],
    data: Annotated[Path, typer.Option(help="A folder with the client's rows.npz or pictures, or an .npz file.")],
    out: Annotated[Path, typer.Option(help="Folder to write the model to.")] = Path("model"),
    predict: Annotated[
        Path | None, typer.Option(help="Rows to classify: the same, or an .npz file.", show_default=False)
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Import the bundle's model where it is its maker's own code.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is there.")] = False,
) -> None:
    """Place a client that nobody has met, by its own rows, and hand it its model; nothing leaves this machine.

    Its `rows.npz` has `x`, and `y` where it has labels: FLT, REPA and others need none. With `test_x` and `test_y` the
    model is scored too. Writes `model.safetensors` and `assignment.json` (which group, how far, how sure).

    **Examples**

    `kinfed assign bundle --data clinic --out clinic/model`

    `kinfed assign bundle --data clinic/rows.npz --predict new.npz` — and the classes of some rows
    """
    with plain_errors():
        from kinfed.serving.commands import Target, assign_client

        for line in assign_client(bundle, data, Target(out, force), trust, predict):
            print(line)


@app.command()
def bench(
    workloads: Annotated[
        str, typer.Option(help="mlp (MLP-200, 20 of 100 clients), cnn (the same), flt4 (480 of 2400, 47 classes).")
    ] = "mlp,cnn",
    contenders: Annotated[
        str, typer.Option(help="kinfed, sequential, plain, plain-1 (one thread), flower, pfl, fedlab, fedjax.")
    ] = "kinfed,plain,plain-1,flower,pfl,fedlab,fedjax",
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
    markdown: Annotated[bool, typer.Option("--markdown", help="The table in Markdown.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show the table and nothing else.")] = False,
) -> None:  # fmt: skip
    """Measure how long a round takes: kinfed, a plain PyTorch loop and other simulators, in turns.

    Each contender is a process of its own and waits while the others run. "× plain" says how many times as fast as
    the plain loop it was, round against neighbouring round, so it holds on a busy machine too.

    **Examples**

    `kinfed bench` — who is installed, on the MLP and the CNN

    `kinfed bench --workloads mlp --contenders kinfed,plain --rounds 10`

    `kinfed bench --workloads flt4 --scale 0.1 --peer-python fedjax=venvs/fedjax/bin/python`

    `kinfed bench --workloads mlp,flt4 --contenders kinfed,plain --device cuda` — and the share of the GPU's bandwidth

    docs/performance.md tells how to install the other simulators; one that is not found is left out, with the reason.
    """
    with plain_errors():
        from kinfed import commands
        from kinfed.bench.race import Plan, entries
        from kinfed.progress import Lines

        display = Lines(sys.stdout, markdown, only_tables=quiet)
        racers = entries(names(contenders) or [], pairs(peer_python or []))
        plan = Plan(rounds, threads, device, scale)
        outcomes = commands.bench(names(workloads) or [], racers, plan, display)
        if json_file:
            commands.write_bench(json_file, outcomes, plan)


@deploy.command()
def new(
    folder: Annotated[Path, typer.Argument(help="Folder to write.", metavar="DIR", show_default=False)],
    settings: Settings = None,
    shape: Annotated[
        str | None, typer.Option(help="Nodes bring their own rows, of this shape: 3,32,32.", show_default=False)
    ] = None,
    classes: Annotated[int | None, typer.Option(help="With --shape: how many classes.", show_default=False)] = None,
    clients: Annotated[int | None, typer.Option(help="With --shape: clients at most.", show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over what is in the folder.")] = False,
    data_dir: DataDir = None, seed: Seed = None, rounds: Rounds = None,
) -> None:  # fmt: skip
    """Write a ready Flower app: server, client, plan, node configs, and scripts to try it here over TLS.

    **Examples**

    `kinfed deploy new trial rounds=3 partition.clients=6 partition.groups=3` — FLT, rows cut from the config's data

    `kinfed deploy new clinics config.toml --shape 3,32,32 --classes 10 --clients 20` — every node brings its own rows

    Then `cd DIR && ./try.sh` tries the whole federation on this machine, and DIR/README.md says how to take it to
    others. From then on only Flower's own commands are needed. docs/deployment.md has all of it on one page.
    """
    options: dict[str, object] = {"data.dir": absolute(data_dir), "seed": seed, "rounds": rounds}
    with plain_errors():
        from kinfed.config import make_population
        from kinfed.deployment.folder import new_folder, refuse_taken

        config = configured(settings, options)
        refuse_taken(folder, force)
        plan = own_plan(shape, classes, clients)
        new_folder(config, folder, plan or make_population(config), force)
        tried = "put rows into data/ as it says" if plan else f"try it here with: cd {folder} && ./try.sh"
        print(f"written to {folder}: read its README.md, and {tried}")


@app.command()
def reproduce(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="TABLE", help="Tables by name (--list shows all), or recipe files.", show_default=False),
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="Show all tables and leave.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A small, short version of every row: does it work?")] = False,
    seeds: Annotated[int, typer.Option(help="How many seeds: 0, 1, …")] = 1,
    rows: Annotated[str | None, typer.Option(help="Only these rows, as in fedavg,flt*.", show_default=False)] = None,
    only: Annotated[str | None, typer.Option(help="Only these columns, as in mnist.", show_default=False)] = None,
    protocol: Annotated[
        str | None, typer.Option(help="Only this protocol: paper or fair.", show_default=False)
    ] = None,
    fetch: Annotated[bool, typer.Option("--fetch", help="Get missing datasets from the Hugging Face hub.")] = False,
    page: Annotated[
        Path | None, typer.Option(help="Also put the tables between their marks on this page.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of runs and tables. Default: runs/reproduce, with --quick runs/reproduce-quick.",
                     show_default=False),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Runs at once, each in a process of its own.")] = 1,
    show: Annotated[bool, typer.Option("--show", help="Run nothing: the tables of what has ended so far.")] = False,
    data_dir: DataDir = None, device: Device = None, plain: Plain = False, quiet: Quiet = False,
) -> None:  # fmt: skip
    """Run tables of the papers, and set published against measured.

    **Examples**

    `kinfed reproduce --list` — all tables

    `kinfed reproduce flt-table-1 --quick` — does it work here? A minute or two

    `kinfed reproduce flt-table-1 flt-table-2 flt-table-4 --only mnist,mlp --device cuda` — several tables in one go

    `kinfed reproduce flis-table-1 --only fmnist* --seeds 3 --device cuda` — mean ± standard deviation over three seeds

    `kinfed reproduce flt-table-1 --device cuda --jobs 8` — eight runs at once, for small ones leave a GPU mostly idle

    Every run is a folder under `runs/` of the output folder, and tables share runs. The same command goes on where it
    was stopped, and runs nothing twice. Columns whose data are not here are left out, and say so. docs/reproducing.md
    tells what a verdict means.
    """
    with plain_errors():
        from kinfed import reproduction
        from kinfed.progress import choose_display
        from kinfed.recipes import Wanted

        display = choose_display(plain, quiet)
        if list_all:
            return print("\n".join(f"{name:<16}{title}" for name, title in reproduction.listed()))
        chosen = [tuple(names(words) or ()) for words in (rows, only, protocol)]
        options: dict[str, object] = {"engine": {"device": device or "cpu"}}
        wanted = Wanted(chosen[0], chosen[1], chosen[2], tuple(range(seeds)), quick, absolute(data_dir) or "", options)
        folder = out or Path("runs") / ("reproduce-quick" if quick else "reproduce")
        order = reproduction.Order(tuple(tables or ()), wanted, folder, page, fetch, jobs, show)
        reproduction.reproduce(order, display)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs or comparisons.", metavar="RUN...")],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write. Default: `report` beside or in the run.", show_default=False)
    ] = None,
    figures: Annotated[
        str | None, typer.Option(help="Also write every picture as a file: png, svg or png,svg.", show_default=False)
    ] = None,
    latex: Annotated[bool, typer.Option("--latex", help="Also write the results as a LaTeX table.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Also write the results as a Markdown table.")] = False,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Make one page of runs: curves, clients, kinship, cost and settings, side by side where there are several.

    **Examples**

    `kinfed report runs/flt-digits-seed0 --open`

    `kinfed report runs/compare-digits --figures png,svg --latex` — a whole comparison, figures and a table

    `kinfed report runs/flt-* runs/fedavg-*` — runs of one config that differ in the seed become one curve with a band

    The page is one file that opens offline: send it, keep it. docs/reports.md tells what it shows.
    """
    with plain_errors():
        from kinfed import commands
        from kinfed.progress import choose_display

        wanted = commands.ReportPlan(tuple(names(figures) or ()), latex, markdown)
        place = commands.report_runs(runs, out, wanted, choose_display(True, quiet))
        if open_:
            typer.launch(str(place))


@app.command(name="list")
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(help="methods, datasets, partitions, shifts, models or engines.", show_default=False),
    ] = None,
) -> None:
    """Show what can be named in a config, with one line each.

    **Examples**

    `kinfed list` — everything

    `kinfed list partitions`
    """
    with plain_errors():
        from kinfed.listing import listing

        for title, lines in listing(kind).items():
            print(f"{title}:")
            for name, line in lines.items():
                print(f"  {name:<18}{line}")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Inside it an error of kinfed's own is one line on standard error and exit code 2; Ctrl-C is exit code 130."""
    try:
        yield
    except KinfedError as error:
        leave(f"error: {error}", 2)
    except KeyboardInterrupt as stop:
        leave(str(stop) or "stopped before the run began", 130)


def leave(text: str, code: int) -> NoReturn:
    print(" ".join(text.split()), file=sys.stderr)
    raise typer.Exit(code)
