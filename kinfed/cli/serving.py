"""What a finished run serves, and a federation over a network: `export`, `assign`, `deploy new`."""

from pathlib import Path
from typing import Annotated

import typer

from kinfed.arguments import absolute, configured, own_plan
from kinfed.cli.shared import DataDir, Rounds, Seed, Settings, app, plain_errors

deploy = typer.Typer(no_args_is_help=True, help="Take a config to a real network: Flower's server and nodes.")
app.add_typer(deploy, name="deploy")


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run that has ended.", metavar="RUN")],
    folder: Annotated[Path, typer.Argument(help="The folder to write the bundle to.", metavar="DIR")],
    force: Annotated[bool, typer.Option("--force", help="Replace a bundle that is there.")] = False,
) -> None:
    """Write a bundle: all that it takes to assign unseen clients to models, offline.

    It has the models of the clusters, the encoder and what clients are compared with; no client's samples, no pickle.

    **Examples**

    `kinfed export runs/flt-digits-seed0 bundle`

    `kinfed assign bundle --data clinic` — then, wherever the bundle is copied to
    """
    with plain_errors():
        from kinfed.serving.assignment import OutputFolder
        from kinfed.serving.run_export import export_run

        for line in export_run(run, OutputFolder(folder, force)):
            print(line)


@app.command()
def assign(
    bundle: Annotated[Path, typer.Argument(help="The folder that `kinfed export` wrote.", metavar="BUNDLE")],
    data: Annotated[Path, typer.Option(help="A folder with the client's samples.npz or images, or an .npz file.")],
    out: Annotated[Path, typer.Option(help="Folder to write the model to.")] = Path("model"),
    predict: Annotated[
        Path | None, typer.Option(help="Samples to classify: the same, or an .npz file.", show_default=False)
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Import the bundle's model where it is its maker's own code.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is there.")] = False,
) -> None:
    """Assign an unseen client to a cluster by its own samples, and write its model; nothing leaves this machine.

    Its `samples.npz` has `x`, and `y` where it has labels: FLT, REPA and others need none. With `test_x` and `test_y`
    the model is evaluated too. Writes `model.safetensors` and `assignment.json` (cluster, distances, margin).

    **Examples**

    `kinfed assign bundle --data clinic --out clinic/model`

    `kinfed assign bundle --data clinic/samples.npz --predict new.npz` — and the classes of some samples
    """
    with plain_errors():
        from kinfed.serving.assignment import OutputFolder
        from kinfed.serving.client_files import assign_client

        for line in assign_client(bundle, data, OutputFolder(out, force), trust, predict):
            print(line)


@deploy.command()
def new(
    folder: Annotated[Path, typer.Argument(help="Folder to write.", metavar="DIR", show_default=False)],
    settings: Settings = None,
    shape: Annotated[
        str | None, typer.Option(help="Nodes bring their own samples, of this shape: 3,32,32.", show_default=False)
    ] = None,
    classes: Annotated[int | None, typer.Option(help="With --shape: number of classes.", show_default=False)] = None,
    clients: Annotated[int | None, typer.Option(help="With --shape: clients at most.", show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over what is in the folder.")] = False,
    data_dir: DataDir = None, seed: Seed = None, rounds: Rounds = None,
) -> None:  # fmt: skip
    """Write a ready Flower app: server, client, plan, node configs, and scripts to try it here over TLS.

    **Examples**

    `kinfed deploy new trial rounds=3 partition.clients=6 partition.clusters=3` — FLT on the config's data

    `kinfed deploy new clinics config.toml --shape 3,32,32 --classes 10 --clients 20` — nodes bring their own samples

    Then `cd DIR && ./try.sh` tries the whole federation on this machine, and DIR/README.md says how to take it to
    others. From then on only Flower's own commands are needed. docs/deployment.md has all of it on one page.
    """
    options: dict[str, object] = {"data.dir": absolute(data_dir), "seed": seed, "rounds": rounds}
    with plain_errors():
        from kinfed.config import make_population
        from kinfed.deployment.app_folder import require_free_folder, write_app_folder

        config = configured(settings, options)
        require_free_folder(folder, force)
        plan = own_plan(shape, classes, clients)
        written = write_app_folder(config, folder, plan or make_population(config), force)
        tried = "put samples into data/ as it says" if plan else f"try it here with: cd {folder} && ./try.sh"
        print(f"written to {folder}: read its README.md, and {tried}")
        if plan and written.server_samples:
            print(
                f"{config.method} needs samples of the server's own too, before it starts: put them into "
                f"{written.server_samples}, or name another folder in server_samples of kinfed_app/plan.toml"
            )
