"""What a sweep varies, by hand: grids, random points, and words that are refused."""

import numpy as np
import pytest

from kinfed.errors import ConfigError
from kinfed.sweeps import Space
from kinfed.sweeps.space import name_points, parse_axis


def test_a_grid_has_all_combinations_in_the_order_of_the_words():
    space = Space({"rounds": 3}, ("training.lr=0.1,0.01", "method=fedavg", "training.epochs=1,2"))
    points = space.points(0)
    assert [tuple(point.values()) for point in points] == [(0.1, 1), (0.1, 2), (0.01, 1), (0.01, 2)]
    assert space.settings(points[1]) == {
        "rounds": 3, "method": "fedavg", "training": {"lr": 0.1, "epochs": 2},
    }  # fmt: skip
    assert name_points(points)[0] == "lr=0.1, epochs=1"


def test_settings_of_a_method_vary_for_that_method_alone():
    points = Space({}, ("method=fedavg,ditto", "methods.ditto.pull=0.1,1")).points(0)
    assert points == [
        {"method": "fedavg"},
        {"method": "ditto", "methods.ditto.pull": 0.1},
        {"method": "ditto", "methods.ditto.pull": 1},
    ]


def test_settings_of_a_method_of_ones_own_vary_also_where_its_module_is_in_a_package():
    points = Space({}, ("method=lab.fed:Mine,flt", "methods.'lab.fed:Mine'.lam=1,2")).points(0)
    key = "methods.lab.fed:Mine.lam"
    assert points == [{"method": "lab.fed:Mine", key: 1}, {"method": "lab.fed:Mine", key: 2}, {"method": "flt"}]


def test_another_partition_keeps_the_settings_that_come_after_it():
    space = Space({"partition": {"name": "iid", "clients": 9}}, ("partition=dirichlet,shards", "partition.clients=20"))
    tables = [space.settings(point)["partition"] for point in space.points(0)]
    assert tables == [{"name": "dirichlet", "clients": 20}, {"name": "shards", "clients": 20}]


def test_commas_in_brackets_and_quotes_part_nothing():
    assert parse_axis('trackers=["a","b"]') is None and parse_axis("data.name='a,b'") is None
    assert parse_axis("inputs.mean=[0.1,0.2],[0.3,0.4]").values == ([0.1, 0.2], [0.3, 0.4])
    assert parse_axis("data.dir=../data") is None
    assert parse_axis("data.options={client='h', features=['age', 'chol'], gaps='fill'}") is None
    assert parse_axis("data.options={a=[1, 2]},{a=[3]}").values == ({"a": [1, 2]}, {"a": [3]})


def test_random_points_are_log_uniform_and_more_of_them_begin_with_the_same():
    space = Space({}, ("training.lr=0.001..0.1", "training.epochs=1..9:linear", "model=mlp_200,linear"))
    points = space.points(200)
    assert space.points(20) == points[:20] and len(points) == 200
    rates = np.array([point["training.lr"] for point in points])
    assert rates.min() >= 0.001 and rates.max() <= 0.1 and 0.35 < (rates < 0.01).mean() < 0.65
    epochs = [point["training.epochs"] for point in points]
    assert set(epochs) == set(range(1, 10)) and all(isinstance(number, int) for number in epochs)


def test_a_random_search_over_few_values_ends_with_all_of_them():
    assert len(Space({}, ("training.epochs=1,2,3",)).points(50)) == 3


@pytest.mark.parametrize(
    ("words", "draws", "message"),
    [
        (("rounds=3",), 0, "nothing to sweep: wanted a key with several values"),
        (("training.lr=0.1..1",), 0, "training.lr is a range: say with --random N"),
        (("training.lr=0..1",), 5, "write 0..1:linear"),
        (("training.lr=1..0.1",), 5, "the lower end first"),
        (("training.lr=0.1,0.1",), 0, "wanted every value once"),
        (("seed=0,1",), 0, "seed is not swept: use --seeds 0-4"),
        (("training.lr",), 0, "wanted key=value"),
        (
            ("method=fedavg", "methods.flt.clusters=1,2"),
            0,
            "methods.flt.clusters changes nothing: the sweep runs fedavg",
        ),
        (("method=fedavg,ifca", "methods.flt.clusters=1,2"), 0, "runs fedavg, ifca; set method, or drop it"),
    ],
)
def test_words_that_cannot_be_swept_are_refused(words, draws, message):
    with pytest.raises(ConfigError) as caught:
        Space({}, words).points(draws)
    assert message in str(caught.value)
