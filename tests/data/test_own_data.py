import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import kinfed
from kinfed.data import (
    OwnSettings,
    build_population,
    from_arrays,
    from_clients,
    from_hub,
    from_torch,
    label_counts,
    load,
)
from kinfed.data.arrays import SampleKind, store
from kinfed.data.partitions import Writers
from kinfed.deployment import Plan
from kinfed.engines.flower.node import ClientData
from kinfed.errors import ConfigError, DataError
from kinfed.learning_tasks import TASKS, NextToken


def samples(count=30):
    return np.arange(count, dtype=np.uint8).reshape(-1, 1, 1).repeat(2, 1), np.arange(count) % 3


def test_every_client_keeps_a_fifth_of_each_label_for_testing():
    x, y = samples()
    owner = np.array(["b", "a"]).repeat(15)
    built = from_arrays(x, y, owner)
    assert built.classes == 3 and built.x.shape == (30, 1, 2, 1) and built.x.dtype == torch.uint8
    assert [built.y[own].bincount().tolist() for own in built.test] == [[1, 1, 1]] * 2
    assert label_counts(built).tolist() == [[4, 4, 4]] * 2
    assert sorted(torch.cat([built.train[0], built.test[0]]).tolist()) == list(range(15, 30))  # client "a" comes first


def test_all_labels_are_tested_where_clients_have_too_few_samples_for_each():
    y, owner = np.tile(np.arange(10), 40), np.repeat(np.arange(20), 20)  # two samples of each label, four are tested
    built = from_arrays(np.zeros((400, 1)), y, owner)
    assert all(built.y[own].unique().numel() == len(own) == 4 for own in built.test)
    tested = torch.cat([built.y[own] for own in built.test]).bincount(minlength=10)
    assert tested.min() >= 2, "each is tested at 8 of 20 clients in the mean; it was 20 for four labels, 0 for others"


def test_features_become_float32_and_are_not_the_users_memory():
    x, y = np.ones((6, 4)), np.zeros(6, np.int64)
    built = from_arrays(x, y, np.zeros(6))
    x[:] = 5
    assert built.x.dtype == torch.float32 and built.x.max() == 1 and built.clients == 1


def test_images_are_copied_too():
    x, y = samples()
    built = from_arrays(x, y, np.zeros(30))
    x[:] = 0
    assert built.x.max() == 29


def test_the_split_is_the_seeds():
    x, y = samples()
    first, again, other = (from_arrays(x, y, y, OwnSettings(seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(first.test[0], again.test[0]) and not torch.equal(first.test[0], other.test[0])


def test_a_client_with_one_sample_trains_on_it_and_no_test_share_means_none():
    x, y = samples(3)
    assert [len(own) for own in from_arrays(x, y, np.array([0, 0, 1])).test] == [1, 0]
    assert [len(own) for own in from_arrays(x, y, np.zeros(3), OwnSettings(test=0.0)).test] == [0]


def test_lists_of_clients_and_torch_datasets_and_arrays_agree():
    x, y = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2
    owner = np.repeat([0, 1], 10)
    whole = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    parts = [torch.utils.data.Subset(whole, range(10)), torch.utils.data.Subset(whole, range(10, 20))]
    made = [
        from_arrays(x, y, owner),
        from_clients([(x[:10], y[:10]), (x[10:], y[10:])]),
        from_torch(parts),
        from_torch(whole, owner),
    ]
    for other in made[1:]:
        assert torch.equal(made[0].x, other.x) and torch.equal(made[0].test[1], other.test[1])


def test_a_loaded_hub_table_becomes_a_population():
    pictures = np.random.default_rng(0).integers(0, 256, (8, 4, 4, 3), dtype=np.uint8)
    columns = {"scan": list(pictures), "finding": [0, 1] * 4, "hospital": ["north"] * 4 + ["south"] * 4}
    features = {"scan": datasets.Image(), "finding": datasets.Value("int64"), "hospital": datasets.Value("string")}
    table = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    built = from_hub(table, "hospital", "scan", "finding", OwnSettings(clusters=[0, 1]))
    assert built.clients == 2 and built.true_clusters.tolist() == [0, 1]
    np.testing.assert_array_equal(built.x.permute(0, 2, 3, 1), pictures)
    with pytest.raises(DataError, match="no column ward; it has scan, finding, hospital"):
        from_hub(table, "ward", "scan", "finding")


def tokens(count=20):
    return np.random.default_rng(0).integers(0, 7, (count, 5))


TARGETS = {  # of 20 samples by task, and how many outputs a model has
    "regression": (np.linspace(-1, 1, 20), 1),
    "multi_label": (np.arange(60).reshape(20, 3) % 2, 3),
    "next_token": (tokens()[:, -1], 7),
}


@pytest.mark.parametrize("task", TARGETS)
def test_every_task_has_its_samples_and_targets_from_arrays_torch_and_the_hub(task, tmp_path):
    y, outputs = TARGETS[task]
    x = tokens() if task == "next_token" else np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    settings, owner = OwnSettings(task=task), np.repeat([0, 1], 10)
    columns = {"sample": x.tolist(), "target": y.tolist(), "who": owner.tolist()}
    whole = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    made = [
        from_arrays(x, y, owner, settings),
        from_clients([(x[:10], y[:10]), (x[10:], y[10:])], settings),
        from_torch(whole, owner, settings),
        from_hub(datasets.Dataset.from_dict(columns), "who", "sample", "target", settings),
    ]
    for population in made:
        assert population.classes == outputs and population.clients == 2
        assert torch.equal(population.x, made[0].x) and torch.equal(population.y, made[0].y)
    model = "char_cnn" if task == "next_token" else "linear"
    summary = kinfed.run(data=made[0], task={"name": task}, model=model, rounds=1, out=tmp_path).summary
    assert all(np.isfinite(value) for value in summary.values() if isinstance(value, float))


def test_the_task_of_a_run_is_that_of_its_clients():
    population = from_arrays(np.ones((4, 2)), np.array([0.5, 1, 2, 3]), np.zeros(4), OwnSettings(task="regression"))
    with pytest.raises(ConfigError, match=r"y is float32 .*, wanted integers .*set task\.name = 'regression'"):
        kinfed.run(data=population, model="linear", rounds=1)
    classes = from_arrays(np.ones((4, 2)), np.array([0, 1, 0, 1]), np.zeros(4))
    with pytest.raises(ConfigError, match=r"are int64, this task wants float32: set task\.name"):
        kinfed.run(data=classes, task={"name": "regression"}, model="linear", rounds=1)


@pytest.mark.parametrize("x", [[[0, -1]], [[0, 0.5]], [[0, np.nan]]])
def test_token_ids_are_whole_and_not_negative(x):
    with pytest.raises(DataError, match=r"x is .* \[1, 2\] from .*, wanted token ids: 0, 1, 2"):
        from_arrays(np.array(x), [0], [0], OwnSettings(tokens=True))


def test_labels_that_are_text_name_the_classes():
    built = from_arrays(np.ones((4, 2)), ["ill", "well", "ill", "ill"], np.zeros(4))
    assert built.class_names == ("ill", "well") and built.y.tolist() == [0, 1, 0, 0]
    settings = OwnSettings(class_names=("well", "ill", "dead"))
    assert from_arrays(np.ones((2, 2)), ["ill", "well"], np.zeros(2), settings).classes == 3
    with pytest.raises(DataError, match="y has the class 'sick', which is none of class_names: well, ill"):
        from_arrays(np.ones((2, 2)), ["sick", "well"], np.zeros(2), OwnSettings(class_names=("well", "ill")))


GAPS = [
    (["u", "v", float("nan"), "u"], r"nan, wanted text, as 'u'"),
    (np.array(["u", "v", None, "u"], object), r"None, wanted text, as 'u'"),
    (["u", "v", 3, "u"], r"3, wanted text, as 'u'"),
    ([0, 1, None, 0], r"None, wanted a number"),
    ([0, 1, float("nan"), 0], r"nan, wanted a number"),
]


@pytest.mark.parametrize(("y", "message"), GAPS)
def test_a_label_that_is_none_is_named_with_its_client_and_sample(y, message):
    x, client = np.random.default_rng(0).random((4, 3)), ["a", "a", "b", "b"]
    with pytest.raises(DataError, match=rf"^client 'b': the label of sample 2 is {message}: fill it"):
        from_arrays(x, y, client)
    with pytest.raises(DataError, match=rf"^client 1: the label of sample 1 is {message}: fill it"):
        from_clients([(x[:1], y[:1]), (x[1:], [y[0], *y[2:]])])
    with pytest.raises(DataError, match=rf"^client 'b': the label of sample 2 is {message}: fill it"):
        from_torch(list(zip(x, y, strict=True)), client)


def test_columns_of_numbers_of_a_hub_table_are_features_and_class_labels_have_names():
    features = {
        "age": datasets.Value("int64"), "pulse": datasets.Value("float32"),
        "ill": datasets.ClassLabel(names=["no", "yes"]), "hospital": datasets.Value("string"),
    }  # fmt: skip
    columns = {"age": [30, 40, 50], "pulse": [60.5, 70, 80], "ill": [0, 1, 0], "hospital": ["a", "b", "b"]}
    table = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    built = from_hub(table, "hospital", ["age", "pulse"], "ill")
    assert built.x.tolist() == [[30, 60.5], [40, 70], [50, 80]] and built.class_names == ("no", "yes")
    with pytest.raises(DataError, match=r"column hospital is .*, wanted a number for each sample"):
        from_hub(table, "hospital", ["age", "hospital"], "ill")


def test_a_file_has_tokens_labels_and_numbers(tmp_path):
    for task, (y, outputs) in TARGETS.items():
        x = tokens() if task == "next_token" else np.ones((20, 4), np.float32)
        store(tmp_path / "mine.npz", {"x_train": x, "y_train": y, "x_test": x[:6], "y_test": y[:6]})
        assert load("mine", tmp_path).for_task(TASKS[task]()).classes == outputs


def test_a_file_with_writers_is_a_user_dataset_too(tmp_path):
    x, y = samples()
    arrays = {"x_train": x, "y_train": y, "x_test": x[:6], "y_test": y[:6]}
    store(tmp_path / "mine.npz", arrays | {"writer_train": np.arange(30) % 2, "writer_test": np.arange(6) % 2})
    built = build_population(load("mine", tmp_path), Writers(), 0)
    assert [len(own) for own in built.train] == [15, 15] and [len(own) for own in built.test] == [3, 3]


@pytest.mark.parametrize(
    ("x", "y", "client", "expected"),
    [
        (np.zeros((3, 2)), np.zeros(2, int), np.zeros(3), "x has 3 samples, y 2, client 3"),
        (np.zeros((0, 2)), np.zeros(0, int), np.zeros(0), "and some"),
        (np.zeros((3, 2)), np.zeros(3), np.zeros(3), "y is float64 [3], wanted integers"),
        (np.array([["a"], ["b"]]), np.zeros(2, int), np.zeros(2), "wanted numbers"),
        (np.zeros((2, 2), complex), np.zeros(2, int), np.zeros(2), "x is complex128 [2, 2], wanted numbers"),
        (np.zeros((2, 5, 5, 2), np.uint8), np.zeros(2, int), np.zeros(2), "images have shape [2, 5, 5, 2]"),
        (np.zeros((2, 2)), np.array([0, -1]), np.zeros(2), "without a label"),
        ([[1, 2], [3]], np.zeros(2, int), np.zeros(2), "every sample of the same shape"),
        (np.array([[0, np.nan], [0, 1], [np.inf, 0]]), np.zeros(3, int), np.zeros(3), "2 of 3 samples of x have a NaN"),
        (np.full((2, 2), 1e300), np.zeros(2, int), np.zeros(2), "the first is sample 0"),
        (np.zeros((2, 2)), np.zeros(2, int), np.zeros((2, 2)), "client has shape [2, 2], wanted [n]"),
        (np.zeros((2, 2)), np.zeros(2, int), [(0, 1), (0, 2)], "client has shape [2, 2], wanted [n]"),
        (np.zeros((2, 2)), np.zeros(2, int), 0, "client has shape [], wanted [n]"),
        (np.zeros((2, 2)), np.zeros(2, int), [0, None], "no id for 1 of 2 samples"),
        (np.zeros((2, 2)), np.zeros(2, int), [0, np.nan], "no id for 1 of 2 samples"),
        (np.zeros((2, 2)), np.zeros(2, int), np.array([0, "a"], object), "ids of kinds int, str"),
    ],
)
def test_wrong_arrays_are_refused_with_got_and_wanted(x, y, client, expected):
    with pytest.raises(DataError) as caught:
        from_arrays(x, y, client)
    assert expected in str(caught.value)


def test_wrong_lists_are_refused():
    with pytest.raises(DataError, match="at least one client"):
        from_clients([])
    with pytest.raises(DataError, match="one shape"):
        from_clients([(np.zeros((1, 2)), np.zeros(1, int)), (np.zeros((1, 3)), np.zeros(1, int))])
    with pytest.raises(DataError, match="dataset is empty"):
        from_torch([TensorDataset(torch.zeros(0, 2), torch.zeros(0))])
    with pytest.raises(ConfigError, match="fraction"):
        OwnSettings(test=1.5)
    with pytest.raises(ConfigError, match="test must be a number, got 'a'"):
        OwnSettings(test="a")


def test_every_client_has_samples_of_its_own_and_as_many_labels():
    x, y = np.zeros((20, 3)), np.zeros(20, int)
    with pytest.raises(DataError, match=r"client 0: x is \[11, 3\] and y \[10\]"):
        from_clients([(x[:11], y[:10]), (x[11:], y[10:])])
    with pytest.raises(DataError, match="client 1 has no samples"):
        from_clients([(x, y), (x[:0], y[:0]), (x, y)])
    with pytest.raises(DataError, match="client 0: wanted a pair of features and label, got a ndarray"):
        from_clients([x, x])


def test_images_and_other_numbers_do_not_share_a_pool():
    x, y = samples(4)
    with pytest.raises(DataError, match="one kind, uint8 images or other numbers, got float64 and uint8"):
        from_clients([(x, y), (x / 255, y)])
    assert from_clients([(x / 255, y), ((x / 255).astype(np.float32), y)]).x.dtype == torch.float32


@pytest.mark.parametrize("clusters", [["a", "b"], [0.5, 0.5], [[0], [1]], []])
def test_planted_clusters_are_whole_numbers(clusters):
    with pytest.raises(ConfigError, match="clusters must be whole numbers, one a client"):
        OwnSettings(clusters=clusters)


def test_planted_clusters_may_name_their_clients():
    client = np.array([f"c{k}" for k in range(12)] * 2)  # they sort as c0, c1, c10, c11, c2, ...
    x, y = np.zeros((24, 2)), np.zeros(24, dtype=int)
    by_name = {f"c{k}": k % 3 for k in range(12)}
    built = from_arrays(x, y, client, OwnSettings(clusters=by_name))
    assert built.true_clusters.tolist() == [0, 1, 1, 2, 2, 0, 1, 2, 0, 1, 2, 0]
    for wrong, name in (({**by_name, "c12": 0}, "c12"), ({"c0": 0}, "c1")):
        with pytest.raises(ConfigError, match=f"one for each client and for no other, got '{name}' in one alone"):
            from_arrays(x, y, client, OwnSettings(clusters=wrong))


def test_the_server_is_given_a_share_of_each_clients_training_samples():
    client, y = np.repeat(["b", "a"], [1, 50]), np.arange(51) % 2
    built = from_arrays(np.zeros((51, 2)), y, client, OwnSettings(test=0.2, public=0.25))
    assert [len(own) for own in built.train] == [30, 1] and [len(own) for own in built.test] == [10, 0]
    assert len(built.public) == 10 and built.y[built.public].sum() == 5, "stratified; one sample stays where it is"
    assert built.client_names == ("a", "b"), "they sort"
    assert sorted(torch.cat([*built.train, *built.test, built.public]).tolist()) == list(range(51))


def test_tensors_of_any_float_kind_become_features():
    x, y = torch.ones(4, 2, requires_grad=True), torch.zeros(4).long()
    for kind in (x, x.to(torch.bfloat16), x.half()):
        built = from_arrays(kind, y, y)
        assert built.x.dtype == torch.float32 and not built.x.requires_grad and built.x.min() == 1


def test_items_of_torch_datasets_are_pairs_with_whole_labels():
    x, y = torch.zeros(4, 2), torch.tensor([0.0, 1.7, 0.0, 1.0])
    with pytest.raises(DataError, match=r"y is float32 \[4\], wanted integers"):
        from_torch([TensorDataset(x, y)])
    with pytest.raises(DataError, match=r"needs `client`: whose each sample is.* got a Tensor"):
        from_torch(TensorDataset(x, y.long()))
    with pytest.raises(DataError, match="wanted a pair of features and label, got 3 parts"):
        from_torch([TensorDataset(x, y, y)])
    with pytest.raises(DataError, match="wanted a pair of features and label, got a dict"):
        from_torch([[{"image": x[0], "label": 0}]])
    assert from_torch([TensorDataset(x, y.long()[:, None])]).y.tolist() == [0, 1, 0, 1]


def test_uneven_images_of_a_table_are_refused():
    class Table(dict):
        column_names = ("image", "label", "client")

    grey, colour, small = np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.uint8), np.zeros((3, 4), np.uint8)
    for other in (colour, small):
        with pytest.raises(DataError, match=r"samples of image must have one shape, got .* and "):
            from_hub(Table(image=[grey, other], label=[0, 1], client=["a", "b"]), "client")


def test_token_ids_that_a_reader_gives_as_floats_are_token_ids():
    kind = SampleKind((2,), "int64", 3)
    samples, _ = kind.check(torch.tensor([[0.0, 2.0]]), None, "samples")
    assert samples.tolist() == [[0, 2]] and samples.dtype == torch.int64
    with pytest.raises(DataError, match="wanted token ids"):
        kind.check(torch.tensor([[0.5, 2.0]]), None, "samples")


def test_a_token_that_the_model_does_not_know_is_refused_by_a_bundle_and_by_a_node():
    kind, plan = SampleKind((2,), "int64", 3), Plan(clients=1, shape=(2,), classes=3, dtype="int64")
    x, y, none = torch.tensor([[0, 5]]), torch.tensor([1]), torch.empty(0, 2).long()
    message = r"have token id 5, and the model knows 0\.\.2"
    with pytest.raises(DataError, match=message):
        kind.check(x, None, "samples", NextToken())
    with pytest.raises(DataError, match=message):
        plan.check(ClientData(x, y, none, y[:0]), NextToken())
    kind.check(x, None, "samples")  # classes of texts are no tokens, and a network of one's own may know more


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: from_arrays(np.zeros(4), [0, 1, 0, 1], [0, 0, 1, 1]), r"x has shape \[4\], wanted .*x\[:, None\]"),
        (lambda: from_arrays(np.zeros((3, 2)), [0, 1, 0], [0, 1, 2]), "every client has a single sample"),
        (lambda: from_torch([Stream(), Stream()]), r"a Stream has no length: wanted .* \(map-style\)"),
        (
            lambda: from_arrays(np.zeros((2, 2)), ["a", "b"], [0, 0], OwnSettings(task="regression")),
            "y is text, as in 'a', and the task wants numbers",
        ),
        (
            lambda: from_hub(datasets.DatasetDict(train=datasets.Dataset.from_dict({"h": [0]})), "h"),
            r"wanted a table, got several: choose one, as in tables\['train'\]",
        ),
        (lambda: from_hub("mnist", "h"), r"wanted a loaded table, as datasets.load_dataset\(.* gives, got 'mnist'"),
        (
            lambda: from_torch([DataLoader(TensorDataset(torch.zeros(4, 2), torch.zeros(4)))]),
            r"a DataLoader has no items by number: wanted a dataset, of a DataLoader its \.dataset",
        ),
    ],
)
def test_what_is_no_samples_of_clients_says_what_to_do(make, expected):
    with pytest.raises(DataError, match=expected):
        make()


def test_settings_of_samples_are_no_dict():
    with pytest.raises(ConfigError, match=r"settings: wanted OwnSettings\(test=0.2, …\), got a dict"):
        from_arrays(np.zeros((4, 2)), [0, 1, 0, 1], [0, 0, 1, 1], {"test": 0.5})


def test_numbers_that_float32_cannot_hold_are_one_error(tmp_path):
    x, y = np.full((4, 3), 1e300), np.arange(4) % 2
    np.savez(tmp_path / "huge.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(DataError, match="4 of 4 samples of x_train have a NaN or an infinity"):
        load("huge", tmp_path)


def test_the_path_of_an_npz_file_is_told_how_it_is_named(tmp_path):
    with pytest.raises(DataError, match=f"data.name=mine --data-dir {tmp_path} "):
        load(f"{tmp_path}/mine.npz")


class Stream(IterableDataset):
    """Samples without numbers."""

    def __iter__(self):
        return iter([(torch.zeros(3), 0)] * 4)


def test_class_labels_of_a_hub_table_may_be_numbers():
    table = datasets.Dataset.from_dict({"h": [0, 0, 1, 1], "x": [[0.5], [1.5], [2.5], [3.5]], "label": [0, 1, 2, 1]})
    table = table.cast_column("label", datasets.ClassLabel(names=["none", "mild", "severe"]))
    assert from_hub(table, "h", "x").class_names == ("none", "mild", "severe")
    numbers = from_hub(table, "h", "x", settings=OwnSettings(task="regression"))
    assert numbers.y.dtype == torch.float32 and numbers.classes == 1 and numbers.class_names == ()


def test_numbers_of_several_kinds_and_arrays_in_cells_are_features():
    y, client = [0, 1, 0, 1], [0, 0, 1, 1]
    table = np.array([[1, True, 0.5]] * 4, object)  # as a DataFrame of such columns gives them
    assert from_arrays(table, y, client).x.tolist() == [[1.0, 1.0, 0.5]] * 4
    cells = np.empty(4, object)
    cells[:] = [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert from_arrays(cells, y, client).x.tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]
    cells[3] = [7]
    with pytest.raises(DataError, match=r"samples of x must have one shape, got \[1\] and \[2\]: pad or cut them"):
        from_arrays(cells, y, client)


@pytest.mark.parametrize(("cell", "kind"), [("m", "str"), (None, "NoneType")])
def test_what_is_no_number_among_features_is_shown(cell, kind):
    table = np.array([[1.0, 2.0], [1.0, cell], [1.0, 2.0], [1.0, 2.0]], object)
    with pytest.raises(DataError, match=f"sample 1 of x has a {kind} in it, {cell!r}, wanted numbers: encode text"):
        from_arrays(table, [0, 1, 0, 1], [0, 0, 1, 1])
