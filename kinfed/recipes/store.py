"""Where the runs of recipes are, and which of them are wanted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kinfed.config import Config, flatten
from kinfed.recipes import Cell, Recipe, Wanted, digest, references
from kinfed.recipes.cells import NO_DATASET
from kinfed.recipes.costs import share_machine
from kinfed.recipes.kept import KeptNumbers
from kinfed.registry import as_file
from kinfed.runs import SUMMARY
from kinfed.runs.jobs import Job, group_by_clients
from kinfed.runs.reader import Run

ENCODER = ("latent", "seed", "autoencoder")  # settings of a signature


@dataclass
class Store:
    """The folder of all runs."""

    folder: Path
    failed: dict[str, str] = field(default_factory=dict)  # run folder -> why
    richer: dict[str, Config] = field(default_factory=dict)  # by digest of a run: another that has all of its numbers
    shares: dict[str, float] = field(default_factory=dict)  # seconds of the machine, by the name of a run's folder

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
        for each in (config, self.find_richer(config)):
            if self.has(each):
                return Run(path := self.path(each), machine_seconds=self.shares.get(path.name))
        return None

    def measure_shares(self) -> None:
        """Notes what each run took of the machine so far."""
        self.shares = share_machine(self.folder / "runs")

    def share(self, wanted: Sequence[tuple[Recipe, Config]]) -> None:
        """Notes for each run the one of all that has its numbers, too: clients also adapt, or there are more rounds.

        More rounds count where a recipe asks only when a target was reached.
        """
        best: dict[str, Config] = {}
        for _, config in wanted:
            for key in (digest_served(config), digest_begun(config)):
                best[key] = max(best.get(key, config), config, key=lambda each: (each.rounds, each.evaluation.adapt))
        for recipe, config in wanted:
            is_begun = all("to_target" in measure for measure in recipe.measures)
            other = best[digest_begun(config) if is_begun else digest_served(config)]
            if digest(other) != digest(config):
                self.richer[digest(config)] = other

    def find_richer(self, config: Config) -> Config:
        """The run that stands for this one, because it has all of its numbers and more; else this one."""
        return replace(self.richer.get(digest(config), config), seed=config.seed) if self.richer else config

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
    lacking = list(list_lacking(planned, wanted, kept))
    ended = [
        (recipe, config) for recipe, _, config in list_lacking(planned, wanted) if store.has_runs and store.has(config)
    ]
    store.share([*((recipe, config) for recipe, _, config in lacking), *ended])
    for recipe, cell, config in lacking:
        said = f"{recipe.name}: {cell.row.title}, {cell.column.title}, {' and '.join(cell.protocols)}"
        for each in map(store.find_richer, (config, *references(recipe, config))):
            job = Job(each, f"{said}, seed {each.seed}", store.path(each), keeps_checkpoint=False)
            jobs.setdefault((digest(each), each.seed), job)
    return train_encoders_first(group_by_clients(list(jobs.values())))


def list_lacking(
    planned: Sequence[tuple[Recipe, Sequence[Cell]]], wanted: Wanted, kept: KeptNumbers | None = None
) -> Iterator[tuple[Recipe, Cell, Config]]:
    """The runs of all cells whose data are here, but for those that have kept numbers, where these are given."""
    for recipe, cells in planned:
        for cell in cells:
            seeds = kept.find_lacking(recipe.name, cell, wanted.seeds) if kept else wanted.seeds
            for config in cell.configs(seeds) if not cell.missing else ():
                yield recipe, cell, config


def digest_served(config: Config) -> str:
    """A short text that two configs share when their runs have the same numbers as served, but for the seed."""
    return digest(replace(config, evaluation=replace(config.evaluation, adapt=False, adapt_every=0)))


def digest_begun(config: Config) -> str:
    """A short text that two configs share when one run is the beginning of the other, as served, but for the seed."""
    return "begun " + digest_served(replace(config, rounds=1))


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
