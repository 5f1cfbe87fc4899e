"""Where the runs of recipes are, and which of them are wanted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kinfed.config import Config, flatten
from kinfed.recipes import Cell, Recipe, Wanted, digest, references
from kinfed.recipes.cells import NO_DATASET
from kinfed.recipes.kept import KeptNumbers
from kinfed.registry import as_file
from kinfed.runs import SUMMARY
from kinfed.runs.parallel import Job, group_by_clients
from kinfed.runs.reader import Run

ENCODER = ("latent", "seed", "autoencoder")  # settings of a signature


@dataclass
class Store:
    """The folder of all runs."""

    folder: Path
    failed: dict[str, str] = field(default_factory=dict)  # run folder -> why
    adapted: dict[str, Config] = field(
        default_factory=dict
    )  # by digest of a wanted run: the one whose clients adapt too

    def path(self, config: Config) -> Path:
        """Where the run of a config is: the same for all tables that need it."""
        return self.folder / "runs" / f"{as_file(config.method)}-{config.data.name}-{digest(config)}-seed{config.seed}"

    def has(self, config: Config) -> bool:
        """Whether the run of this config has ended."""
        return (self.path(config) / SUMMARY).exists()

    def run(self, config: Config) -> Run | None:
        """The run of this config, if it has ended."""
        if not self.has_runs:
            return None
        for each in (config, self.find_adapted(config)):
            if self.has(each):
                return Run(self.path(each))
        return None

    def share(self, configs: Iterable[Config]) -> None:
        """Notes runs whose clients are scored after adaptation, too: they have all numbers of those without it."""
        for config in configs:
            if config.evaluation.adapt:
                self.adapted.setdefault(digest_served(config), replace(config, seed=0))

    def find_adapted(self, config: Config) -> Config:
        """The wanted run that stands for this one, because its clients also adapt; else this one."""
        if not self.adapted or config.evaluation.adapt or not (other := self.adapted.get(digest_served(config))):
            return config
        return replace(other, seed=config.seed)

    @property
    def has_runs(self) -> bool:
        """Whether there is any run: naming the folder of one takes long where there are thousands to ask for."""
        return (self.folder / "runs").is_dir()


def jobs_of(
    planned: Sequence[tuple[Recipe, Sequence[Cell]]], wanted: Wanted, store: Store, kept: KeptNumbers | None = None
) -> list[Job]:
    """All runs, each once; those on the same clients one after the other, but encoders are trained first.

    Cells and seeds that have kept numbers are left out, where those are given.
    """
    jobs: dict[tuple[str, int], Job] = {}
    store.share(config for _, cells in planned for cell in cells if not cell.missing for config in cell.variants)
    for recipe, cells in planned:
        for cell in cells:
            seeds = kept.find_lacking(recipe.name, cell, wanted.seeds) if kept else wanted.seeds
            for config in cell.configs(seeds) if not cell.missing else ():
                said = f"{recipe.name}: {cell.row.title}, {cell.column.title}, {' and '.join(cell.protocols)}"
                for each in map(store.find_adapted, (config, *references(recipe, config))):
                    job = Job(each, f"{said}, seed {each.seed}", store.path(each), keeps_checkpoint=False)
                    jobs.setdefault((digest(each), each.seed), job)
    return train_encoders_first(group_by_clients(list(jobs.values())))


def digest_served(config: Config) -> str:
    """A short text that two configs share when their runs have the same numbers as served, but for the seed."""
    return digest(replace(config, evaluation=replace(config.evaluation, adapt=False, adapt_every=0)))


def train_encoders_first(jobs: Sequence[Job]) -> list[Job]:
    """The same jobs: one for each encoder, which trains it; those without one; and the others, which find it cached.

    So nobody waits for an encoder that another process trains while there is other work.
    """
    encoders = [encoder_key(job.config) for job in jobs]
    first = {encoder: place for place, encoder in reversed(list(enumerate(encoders)))}
    turns = [1 if not encoder else 0 if first[encoder] == place else 2 for place, encoder in enumerate(encoders)]
    return [job for _, job in sorted(zip(turns, jobs, strict=True), key=lambda pair: pair[0])]


def encoder_key(config: Config) -> str:
    """What an encoder hangs on that is trained on datasets and then cached; empty where a run has none."""
    flat, at = flatten(config.resolve()), f"methods.{config.method}.signature."
    source = str(flat.get(f"{at}pretraining.source", ""))
    if source in NO_DATASET or source.endswith(".safetensors"):
        return ""
    own = {key.removeprefix(at): value for key, value in flat.items() if key.startswith(at)}
    parts = [(key, value) for key, value in own.items() if key in ENCODER or key.startswith("pretraining.")]
    return repr((config.data.name, sorted(parts)))
