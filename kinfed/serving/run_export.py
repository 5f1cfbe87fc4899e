"""A finished run as a bundle: what `kinfed export` does."""

from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import cast

from torch import Tensor

from kinfed import checkpoint
from kinfed.capabilities import Exportable, FindsClusters, NeedsServerSamples, explain_assignment, reason_for_labels
from kinfed.config import Config, make_population
from kinfed.config.schema import Table
from kinfed.data.arrays import SampleKind
from kinfed.data.population import Population
from kinfed.engines.flower.deployed import ROSTER
from kinfed.errors import CheckpointError, RoleError
from kinfed.files import clear_unfinished
from kinfed.method import Method
from kinfed.params import Params
from kinfed.registry import refuse_code
from kinfed.runs.lifecycle import read_about
from kinfed.runs.logs import CHECKPOINT, COMPARISON, CONFIG, name_resume
from kinfed.runs.reader import Run, read_config
from kinfed.runs.writer import refuse_incomplete
from kinfed.serving.assignment import OutputFolder
from kinfed.serving.bundle import BEGINS, JSON, TENSORS, Bundle, method_of
from kinfed.serving.model_formats import CARD, SUFFIXES, list_preprocessing, require_format, write_card, write_model

MODELS = "models"  # in a bundle's folder, for other programs


def export_run(
    run: Path, target: OutputFolder, population: Population | None = None, trust: bool = False, form: str = ""
) -> Iterator[str]:
    """Writes the bundle of a run, and its models in another format where one is named; says what is in it."""
    if form:
        require_format(form)
    there = [path.name for path in (target.folder / MODELS).glob(f"*{SUFFIXES[form]}")] if form else []
    others = [f"{MODELS}/{name}" for name in (*there, CARD)] if form else []
    target.check(JSON, BEGINS, (TENSORS, *others), "the bundle")
    bundle = export(run, population, trust)
    models = bundle.list_models() if form else {}
    bundle.save(target.folder)
    clusters = cast("list[Table]", bundle.about["clusters"])
    size = sum((target.folder / name).stat().st_size for name in (JSON, TENSORS)) / 1e6
    clients, found = len(bundle.sizes), len(clusters)
    held = f"{clients} client{'s' * (clients != 1)} in {found} cluster{'s' * (found != 1)}"
    yield f"{bundle.about['method']} of {held}, {size:.2f} MB"
    yield f"assignment: {bundle.about['assignment_rule']}"
    yield f"written to {target.folder}"
    if form:
        yield write_models(bundle, models, target.folder / MODELS, form)


def write_models(bundle: Bundle, models: dict[int | None, Params], folder: Path, form: str) -> str:
    """Writes the model of each cluster, and what other programs must know of them; says where."""
    files: list[Table] = []
    clear_unfinished(folder)
    for cluster, params in models.items():
        name = f"{'model' if cluster is None else f'cluster-{cluster}'}{SUFFIXES[form]}"
        write_model(folder / name, bundle.method.model, params, bundle.kind, form)
        files.append({"file": name, "cluster": cluster})
    about = {"class_names": bundle.about.get("class_names", []), "models": files}
    write_card(folder, bundle.method.model, bundle.kind, {"format": form, **about})
    return f"{len(files)} models as {form} written to {folder}, with {CARD}"


def export(run: str | Path, population: Population | None = None, trust: bool = False) -> Bundle:
    """The bundle of a run that has ended; RoleError where its method has no model for unseen clients.

    Own data that the run was given as an object are given again, where the method needs samples of the server. Only
    with `trust` is code imported that the run's config names.
    """
    run = Path(run)
    with refuse_code(f"{run / CONFIG}", trust):
        return make_bundle(run, population, *read_ended(run, trust))


def make_bundle(run: Path, population: Population | None, config: Config, kind: SampleKind) -> Bundle:
    """The bundle of a run of this config."""
    method = method_of(config, kind)
    state, clients = checkpoint.load_served(run / CHECKPOINT, method)
    if not isinstance(method, Exportable):
        hint = "; a method of your own that has one names Exportable in its class line" if ":" in config.method else ""
        raise RoleError(f"{config.method} cannot be exported: its server has no model for unseen clients{hint}")
    compares = isinstance(method, NeedsServerSamples) and method.admits_by_server_samples()
    own = load_server_samples(run, config, population) if compares else kind.nothing()
    with checkpoint.explain_damage(run / CHECKPOINT):
        exported = method.export_state(state, clients["training"], clients["sizes"])
        assignment = method.cluster_assignment(exported) if isinstance(method, FindsClusters) else None
        saved = Run(run)
        clusters = summarise_clusters(assignment, clients["training"].tolist(), saved)
        summary = summarise_method(config, method) | {"clusters": clusters, "class_names": list(saved.class_names)}
        summary |= {"preprocessing": list_preprocessing(method.model, kind)}
        if saved.feature_names:
            summary |= {"table": {**config.data.options, "features": list(saved.feature_names)}}
        return Bundle(config, kind, exported, clients["sizes"][clients["training"]], own, summary)


def read_ended(run: Path, trust: bool = False) -> tuple[Config, SampleKind]:
    """The config of a run, and what its samples look like; raises unless it has ended."""
    if (run / COMPARISON).exists():
        raise CheckpointError(f"{run} is a comparison: export one of the runs in it, such as {run}/METHOD-seed0")
    config = read_config(run, trust=trust)
    if not Run(run).has_ended:
        raise CheckpointError(f"the run at {run} has not ended: take it to its end with `{name_resume(run)}`")
    refuse_incomplete(run)
    saved = read_about(run, config)
    if "samples" not in saved:
        raise CheckpointError(f"{run / CHECKPOINT} is from an earlier kinfed: run it again to export it")
    with checkpoint.explain_damage(run / CHECKPOINT):
        return config, SampleKind.read(saved["samples"])


def load_server_samples(run: Path, config: Config, population: Population | None = None) -> Tensor:
    """The samples that the server of this run owns."""
    if (run / ROSTER).exists():
        raise RoleError(
            "unseen clients are compared on the server's own samples, and a deployment's run does not hold these"
        )
    population = population or make_population(config)
    return population.x[population.public]


def summarise_method(config: Config, method: Method[object]) -> Table:
    """What a reader wants to know of a bundle's method."""
    return {
        "method": config.method,
        "assignment_rule": explain_assignment(method),
        "needs_labels": bool(reason_for_labels(method)),
        "dataset": config.data.name,
        "rounds": config.rounds,
        "seed": config.seed,
    }


def summarise_clusters(assignment: Tensor | None, clients: list[int], run: Run) -> list[Table]:
    """Each cluster of these clients with its size and mean accuracy; cluster None is for clients without one."""
    pairs = zip(run.clients.whole("client").tolist(), run.clients[run.metric.name].tolist(), strict=True)
    scores = {client: score for client, score in pairs if not isnan(score)}
    clusters = [-1] * len(clients) if assignment is None else assignment[: len(clients)].tolist()
    members: dict[int, list[int]] = {cluster: [] for cluster in sorted(clusters)}
    for client, cluster in zip(clients, clusters, strict=True):
        members[cluster].append(client)
    return [summarise_cluster(cluster, inside, scores, run.metric.name) for cluster, inside in members.items()]


def summarise_cluster(cluster: int, members: list[int], scores: dict[int, float], metric: str = "accuracy") -> Table:
    """One cluster in numbers."""
    known = [scores[client] for client in members if client in scores]
    mean = sum(known) / len(known) if known else None
    return {"cluster": cluster if cluster >= 0 else None, "clients": len(members), metric: mean}
