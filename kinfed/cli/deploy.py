"""`kinfed deploy new`, `gate`, `status`, `docker` and `systemd`"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kinfed.cli.options import DataDir, Group, Rounds, Seed, Settings, absolute, app, plain_errors, read_words
from kinfed.errors import ConfigError

if TYPE_CHECKING:
    from kinfed.deployment import Plan

deploy = typer.Typer(
    cls=Group, no_args_is_help=True, help="Take a config to a real network: Flower's server and nodes."
)
app.add_typer(deploy, name="deploy")


@deploy.command()
def new(
    folder: Annotated[Path, typer.Argument(help="Folder to write.", metavar="DIR", show_default=False)],
    settings: Settings = None,
    shape: Annotated[
        str | None, typer.Option(help="Nodes bring their own samples, of this shape: 3,32,32.", show_default=False)
    ] = None,
    classes: Annotated[
        int | None, typer.Option(help="With --shape: how many classes, tokens, labels or numbers.", show_default=False)
    ] = None,
    clients: Annotated[int | None, typer.Option(help="With --shape: clients at most.", show_default=False)] = None,
    class_names: Annotated[
        str | None, typer.Option(help="With --shape: names in place of --classes: cat,dog.", show_default=False)
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="With --shape: uint8, float32, or int64 of token ids. Default: int64 where the next token is learnt, "
            "uint8 of images (three sizes), else float32.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over what is in the folder.")] = False,
    data_dir: DataDir = None, seed: Seed = None, rounds: Rounds = None,
) -> None:  # fmt: skip
    """Write a ready Flower app: server, client, plan, node configs, and scripts to try it here over TLS.

    **Examples**

    `kinfed deploy new tryout rounds=3 partition.clients=6 partition.clusters=3` — FLT on the config's data

    `kinfed deploy new clinics config.toml --shape 3,32,32 --classes 10 --clients 20` — nodes bring their own samples

    Then `cd DIR && ./try.sh` tries the whole federation on this machine, and DIR/README.md says how to take it to
    others. From then on only Flower's own commands are needed. docs/deployment.md has all of it on one page.
    """
    options: dict[str, object] = {"data.dir": absolute(data_dir), "seed": seed, "rounds": rounds}
    with plain_errors():
        from kinfed.config import make_population
        from kinfed.deployment.app_folder import require_free_folder, write_app_folder
        from kinfed.learning_tasks import NextToken

        config = read_words(settings, options)
        require_free_folder(folder, force)
        dtype = dtype or ("int64" if isinstance(config.task, NextToken) else None)
        plan = plan_own(shape, classes, clients, class_names, dtype)
        written = write_app_folder(config, folder, plan or make_population(config), force)
        tried = "put samples into data/ as it says" if plan else f"try it here with: cd {folder} && ./try.sh"
        print(f"written to {folder}: read its README.md, and {tried}")
        if plan and written.server_samples:
            print(
                f"{config.method} needs samples of the server's own too, before it starts: put them into "
                f"{written.server_samples}, or name another folder in server_samples of kinfed_app/plan.toml"
            )


@deploy.command()
def gate(
    host: Annotated[str, typer.Option(help="Address that nodes connect to.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port that nodes connect to.")] = 8443,
    superlink: Annotated[str, typer.Option(help="SuperLink, on loopback.")] = "127.0.0.1:8000",
    root_certificates: Annotated[
        Path, typer.Option(help="Authority of SuperLink's certificate.")
    ] = Path("certificates/ca.crt"),
    ssl_certfile: Annotated[Path, typer.Option(help="The gate's certificate.")] = Path("certificates/server.crt"),
    ssl_keyfile: Annotated[Path, typer.Option(help="Its private key.")] = Path("certificates/server.key"),
    max_megabytes: Annotated[int, typer.Option(help="Of one request at most.")] = 2048,
) -> None:  # fmt: skip
    """Let nodes reach SuperLink's Fleet API, and nothing else of it.

    SuperLink's one port also serves the API that runs apps on all nodes and registers keys, without an account. So it
    listens on loopback, and this process on the address of the server.

    `kinfed deploy gate --host 0.0.0.0 --port 8443`
    """
    with plain_errors():
        from kinfed.deployment.fleet_gate import GateSettings, serve

        serve(GateSettings(host, port, superlink, root_certificates, ssl_certfile, ssl_keyfile, max_megabytes))


@deploy.command()
def status(
    run: Annotated[Path, typer.Argument(help="The run's folder, on the server.", metavar="RUN")] = Path("runs/first"),
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew until the run is over.")] = False,
    serve: Annotated[
        int | None, typer.Option(help="Serve it as a page on 127.0.0.1.", metavar="PORT", show_default=False)
    ] = None,
) -> None:  # fmt: skip
    """Show who is connected, the round, and the last errors of a deployed run.

    The exit code is 1 where the run failed or its server is gone, which that of `flwr run` does not say.

    `kinfed deploy status runs/first --watch`

    `kinfed deploy status runs/first --serve 8500` — a page for a browser, through `ssh -L 8500:127.0.0.1:8500 SERVER`
    """
    with plain_errors():
        from kinfed.deployment.live_status import ENDED, RUNNING, WAITING, make_server, read_status, show_status

        if serve is not None:
            with make_server(run, serve) as server:
                print(f"http://127.0.0.1:{server.server_port}/ until Ctrl-C")
                server.serve_forever()
        while watch and not read_status(run).is_over:
            typer.clear()
            print(show_status(run))
            time.sleep(2)
        print(show_status(run))
        if read_status(run).state not in (ENDED, RUNNING, WAITING):
            raise typer.Exit(1)


AppFolder = Annotated[Path, typer.Argument(help="The app's folder.", metavar="DIR")]
Address = Annotated[str, typer.Option(help="The server, as nodes see it.")]
Port = Annotated[int, typer.Option(help="The gate's, which nodes connect to.")]


@deploy.command()
def docker(folder: AppFolder = Path(), address: Address = "127.0.0.1", port: Port = 8443) -> None:
    """Write a Dockerfile, and Compose files of the server and of a node, into an app's folder.

    `kinfed deploy docker . --address fl.example.org`
    """
    with plain_errors():
        from kinfed.deployment.service_files import ServiceSettings, write_docker_files

        print("written:", *write_docker_files(folder, ServiceSettings(address, port)))
        print("the server: docker compose --file docker/server.yaml up --detach --build; its first lines say more")


@deploy.command()
def systemd(
    folder: AppFolder = Path(), address: Address = "127.0.0.1", port: Port = 8443,
    user: Annotated[str, typer.Option(help="As whom processes run.")] = "kinfed",
) -> None:  # fmt: skip
    """Write systemd units of the server and of its nodes into an app's folder.

    `kinfed deploy systemd . --address fl.example.org --user kinfed`
    """
    with plain_errors():
        from kinfed.deployment.service_files import ServiceSettings, write_units

        print("written:", *write_units(folder, ServiceSettings(address, port, user=user)))
        print("copy units to /etc/systemd/system, then: systemctl enable --now kinfed-gate kinfed-superexec (server)")
        print("or: systemctl enable --now kinfed-node@NAME (node)")


def plan_own(
    shape: str | None,
    classes: int | None,
    clients: int | None,
    class_names: str | None = None,
    dtype: str | None = None,
) -> "Plan | None":
    """The plan of a federation whose nodes bring their own samples; None if no option is given."""
    from kinfed.deployment import Plan

    names = tuple(name.strip() for name in (class_names or "").split(",") if name.strip())
    classes = classes if classes is not None or not names else len(names)
    if shape is None and classes is None and clients is None:
        return None
    if shape is None or classes is None or clients is None:
        raise ConfigError(
            "where nodes bring their own samples, all of --shape, --classes and --clients are needed; --class-names "
            "may stand for --classes"
        )
    try:
        sizes = tuple(int(size) for size in shape.split(","))
    except ValueError:
        raise ConfigError(f"--shape: wanted whole numbers as in 3,32,32, got '{shape}'") from None
    kind = dtype or ("uint8" if len(sizes) == 3 else "float32")
    return Plan(clients, sizes, classes, kind, wait_for=clients, class_names=names)
