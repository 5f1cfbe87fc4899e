"""Every registered method runs on series, tokens and tables of natural clients."""

import pytest

from kinfed.config import assemble, load_config, make_population
from kinfed.data import Population
from kinfed.methods import METHODS
from tests.data.test_natural import write_har, write_heart, write_shakespeare

BASE = [
    "partition.name=natural", "rounds=2", "fraction=1.0", "training.batch_size=4", "data.public=0.1",
    *(f"methods.{name}.clusters=2" for name in ("ifca", "fesem", "repa", "wd", "fedgroup", "clove")),
    "methods.repa.signature.encoder_rounds=1", "methods.wd.rounds_before=1", "methods.flhc.rounds_before=1",
    "methods.flux.rounds_before=1", "methods.cfl.after=1",
]  # fmt: skip
DATA = {
    "har": ["model=mlp_200"],
    "shakespeare": ["model=char_cnn", "task.name=next_token", "data.options.window=10", "data.options.stride=4"],
    "heart": ["model=mlp_200", "data.options.rule=all"],
}
CHEAP = ("fedavg", "flt", "pca_km_hc", "repa", "pacfl")  # the others on demand


@pytest.fixture(scope="module")
def populations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Population]:
    folder = tmp_path_factory.mktemp("natural")
    write_har(folder)
    write_heart(folder, 12)
    write_shakespeare(folder, 120)
    return {
        name: make_population(load_config(None, [*BASE, *settings, f"data.name={name}", f"data.dir={folder}"]))
        for name, settings in DATA.items()
    }


@pytest.mark.filterwarnings("ignore::UserWarning")  # of runs that are too short to find clusters
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[] if name in CHEAP else [pytest.mark.on_demand]) for name in METHODS]
)
def test_every_method_runs_on_natural_data(method, data, populations):
    config = load_config(None, [*BASE, *DATA[data], f"data.name={data}", f"method={method}"])
    experiment = assemble(config, populations[data])
    assert 0 <= experiment.run()["accuracy"] <= 1
