"""Whether Auto tells clients apart whose numbers depend on samples in other ways, whatever the numbers' unit.

    python -m benchmarks.target_units                                         # development cases, seeds 0 to 4
    python -m benchmarks.target_units --test --seeds 100 101 102 103 104
    python -m benchmarks.target_units --test --raw --seeds 100                # moments as clients send them

Each row is a case and a unit, with one cluster and with two: how many runs find several clusters where there is one,
and the mean ARI where there are two. Clients compute their signatures as in a run of Auto; nothing is trained.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.preprocessing import scale

from kinfed import OwnSettings, from_arrays
from kinfed.engines import Vectorised
from kinfed.learning_tasks import LearningTask, MultiLabel, Regression
from kinfed.methods import Auto
from kinfed.metrics import agreement
from kinfed.models import make_model
from kinfed.relatedness import nest_clusters
from kinfed.training import LocalTraining

Array = npt.NDArray[np.float64]
UNITS = (1e-3, 1.0, 1e3)
RANGE = 3**0.5  # of uniform samples with deviation 1


def weigh(x: Array, cluster: int, seed: int, numbers: int = 1) -> Array:
    """Linear targets by weights of each cluster, with noise: [n, numbers]."""
    weights = np.random.default_rng([seed, cluster]).normal(size=(x.shape[1], numbers)) / x.shape[1] ** 0.5
    noise: Array = np.random.default_rng([seed, 99]).normal(size=(len(x), numbers))
    return x @ weights + 0.5 * noise


def predict_columns(number: int) -> Callable[[Array, int, int], Array]:
    """One of Friedman's functions (1991) of other columns in each cluster, with noise."""

    def make(x: Array, cluster: int, seed: int) -> Array:
        own = np.random.default_rng([seed, cluster]).permutation(x.shape[1])[:5]
        u = np.clip(x[:, own] / (2 * RANGE) + 0.5, 0, 1).T
        a, b, c, d = 100 * u[0], np.pi * (40 + 520 * u[1]), u[2], 1 + 10 * u[3]
        y = {
            1: 10 * np.sin(np.pi * u[0] * u[1]) + 20 * (u[2] - 0.5) ** 2 + 10 * u[3] + 5 * u[4],
            2: np.hypot(a, b * c - 1 / (b * d)),
            3: np.arctan((b * c - 1 / (b * d)) / (a + 1e-9)),
        }[number]
        return (y - y.mean()) / y.std() + 0.2 * np.random.default_rng([seed, 99]).normal(size=len(x))

    return make


TARGETS: dict[str, Callable[[Array, int, int], Array]] = {
    "linear": lambda x, c, seed: weigh(x, c, seed)[:, 0],
    "level": lambda x, c, seed: weigh(x, 0, seed)[:, 0] + c,
    "lognormal": lambda x, c, seed: np.exp(weigh(x, c, seed)[:, 0]),
    "three": lambda x, c, seed: weigh(x, c, seed, 3) * [1e-3, 1, 1e3] + [0, 3, 100],
    "labels": lambda x, c, seed: np.float64(weigh(x, c, seed, 3) > 0),
    **{f"friedman{number}": predict_columns(number) for number in (1, 2, 3)},
}


@dataclass(frozen=True)
class Case:
    """So many clients and samples each, of a made-up table with so many columns, or of a table of scikit-learn."""

    targets: str
    clients: int
    samples: int
    columns: int = 0
    is_uneven: bool = False
    task: LearningTask = Regression()

    def draw(self, seed: int, clusters: int) -> tuple[Array, Array, npt.NDArray[np.int64]]:
        """Samples, targets and the client of each; client m is in cluster m % clusters."""
        rng = np.random.default_rng(seed)
        spread = rng.lognormal(0, 0.8, self.clients) if self.is_uneven else np.ones(self.clients)
        client = np.repeat(np.arange(self.clients), np.maximum(12, self.samples * spread).astype(int))
        if self.targets in TABLES:
            x, ways = TABLES[self.targets]()
            drawn = rng.integers(len(x), size=len(client))  # with replacement: the tables are small
            x, ways = x[drawn], [y[drawn] for y in ways]
        else:
            x = rng.uniform(-RANGE, RANGE, (len(client), self.columns))
            x = x if self.targets.startswith("friedman") else rng.normal(size=x.shape)
            ways = [TARGETS[self.targets](x, cluster, seed) for cluster in range(clusters)]
        own = client % clusters
        return x, np.stack(ways)[own, np.arange(len(own))], client


def read_diabetes() -> tuple[Array, list[Array]]:
    """How diabetes progresses, and the same the other way round."""
    x, y = load_diabetes(return_X_y=True)
    return scale(x), [scale(y), -scale(y)]


def read_columns(load: Callable[..., tuple[Array, Array]], one: int, other: int) -> tuple[Array, list[Array]]:
    """One measurement or another one, to be predicted from the rest."""
    x = scale(load(return_X_y=True)[0])
    return np.delete(x, [one, other], 1), [x[:, one], x[:, other]]


TABLES: dict[str, Callable[[], tuple[Array, list[Array]]]] = {
    "diabetes": read_diabetes,
    "breast_cancer": lambda: read_columns(load_breast_cancer, 3, 4),  # mean area, mean smoothness
    "wine": lambda: read_columns(load_wine, 0, 9),  # alcohol, colour
}
MANY = MultiLabel()
DEVELOPMENT = [
    Case(name, *size, task=MANY if name == "labels" else Regression())
    for name in ("linear", "friedman1", "labels", "three", "level", "lognormal")
    for size in ((40, 60, 30), (40, 200, 30), (60, 80, 60, True), (24, 80, 6))
]
TEST = [
    *(Case(name, *size) for name in ("friedman2", "friedman3") for size in ((50, 80, 12), (30, 150, 50, True))),
    *(Case("linear", *size) for size in ((30, 100, 5), (100, 40, 20), (50, 120, 100))),
    *(Case(name, *size) for name in TABLES for size in ((30, 60), (60, 40, 0, True))),
    Case("labels", 50, 50, 16, task=MANY),
]


def find_clusters(case: Case, seed: int, clusters: int, unit: float, raw: bool) -> torch.Tensor:
    """The cluster that Auto finds for each client before training."""
    x, y, client = case.draw(seed, clusters)
    y = y if isinstance(case.task, MultiLabel) else unit * y
    population = from_arrays(x.astype("f4"), y.astype("f4"), client, OwnSettings(task=case.task))
    method = Auto(make_model("linear", x.shape[1:], population.classes, task=case.task), LocalTraining())
    fed = Vectorised(method, population)
    known, _ = method.collect(method.no_signatures(fed), method.signature.encoder(fed), fed.clients, fed)
    plain, scaled = method.signature.compare_by(known, known, fed, method.model)
    return nest_clusters(method.relatedness, plain, known if raw else scaled)[0]


def measure(case: Case, unit: float, options: argparse.Namespace) -> str:
    """A row of the table."""
    found = [find_clusters(case, seed, 1, unit, options.raw) for seed in options.seeds]
    split = sum(len(own.unique()) > 1 for own in found)
    true = torch.arange(case.clients) % 2
    agreed = [agreement(find_clusters(case, seed, 2, unit, options.raw), true)["ari"] for seed in options.seeds]
    columns = case.columns or TABLES[case.targets]()[0].shape[1]
    samples = f"about {case.samples}, uneven" if case.is_uneven else str(case.samples)
    cells = [case.targets, case.clients, samples, columns, f"{unit:g}", f"{split} of {len(found)}"]
    return "| " + " | ".join(map(str, [*cells, f"{np.mean(agreed):.2f}"])) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--test", action="store_true", help="the test cases")
    parser.add_argument("--raw", action="store_true", help="compare moments as they are sent")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--units", nargs="*", type=float, default=UNITS, help="that numbers are given in")
    options = parser.parse_args()
    print(
        "| targets | clients | samples | columns | unit | split where there is one cluster | ARI of two |\n"
        + "|---" * 7
        + "|"
    )
    for case in TEST if options.test else DEVELOPMENT:
        for unit in [1.0] if case.targets in ("labels", "three") else options.units:
            print(measure(case, unit, options), flush=True)


if __name__ == "__main__":
    main()
