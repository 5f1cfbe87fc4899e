import datasets
import numpy as np
import pytest

from kinfed.data import hub, load


def table(images, labels, image="image", label="label", **more):
    features = {image: datasets.Image(), label: datasets.Value("int64")}
    features |= {name: datasets.Value("string") for name in more}
    columns = {image: [np.asarray(one) for one in images], label: list(labels)} | more
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


@pytest.fixture
def on_the_hub(monkeypatch):
    asked, pinned = [], []

    def put(**splits):
        def give(repository, config, split, revision):
            asked.append((repository, config, split))
            pinned.append(revision)
            return splits[split]

        monkeypatch.setattr(datasets, "load_dataset", give)
        return asked

    return put


def gray(samples):
    return np.random.default_rng(1).integers(0, 256, (samples, 28, 28), dtype=np.uint8)


def test_a_missing_dataset_is_fetched_once_and_stored(tmp_path, on_the_hub):
    train, test = gray(4), gray(2)
    asked = on_the_hub(train=table(train, [3, 1, 2, 0]), test=table(test, [9, 8]))
    mnist = load("mnist", tmp_path)
    assert asked == [("ylecun/mnist", None, "train"), ("ylecun/mnist", None, "test")]
    np.testing.assert_array_equal(mnist.x_train[:, 0], train)
    assert mnist.y_test.tolist() == [9, 8]
    load("mnist", tmp_path)
    assert len(asked) == 2 and [path.name for path in tmp_path.iterdir()] == ["mnist.npz"]


def test_colour_images_keep_their_colours(tmp_path, on_the_hub):
    pictures = np.random.default_rng(2).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    samples = table(pictures, [99, 5, 0], image="img", label="fine_label")
    on_the_hub(train=samples, test=samples)
    cifar = load("cifar100", tmp_path)
    np.testing.assert_array_equal(cifar.x_train.transpose(0, 2, 3, 1), pictures)
    assert cifar.classes == 100 and cifar.y_train.tolist() == [99, 5, 0]


def test_femnist_gets_a_tenth_of_every_writer_as_test_samples(tmp_path, on_the_hub):
    writers = ["f1"] * 10 + ["f0"] * 20
    on_the_hub(train=table(gray(30), np.arange(30), label="character", writer_id=writers))
    femnist = load("femnist", tmp_path)
    assert np.bincount(femnist.writer_train).tolist() == [18, 9]  # f0 is number 0
    assert np.bincount(femnist.writer_test).tolist() == [2, 1]
    assert sorted([*femnist.y_train, *femnist.y_test]) == list(range(30))


def standing(samples):
    images = np.zeros((samples, 28, 28), np.uint8)
    images[:, 4:24, 13:15] = 255  # a one: higher than wide
    images[:, 4, 10:13] = 200  # its flag, at the top left
    return images


@pytest.mark.parametrize("lying", [False, True])
def test_emnist_comes_upright_however_the_hub_has_it(tmp_path, on_the_hub, lying):
    images = standing(4)
    stored = images.swapaxes(1, 2) if lying else images
    on_the_hub(train=table(stored, [1, 1, 1, 1]), test=table(stored[:1], [1]))
    emnist = load("emnist_balanced", tmp_path)
    np.testing.assert_array_equal(emnist.x_train[:, 0], images)
    np.testing.assert_array_equal(emnist.x_test[:, 0], images[:1])


def test_the_upright_check_is_right_on_real_letters(real_root):
    for name in ("mnist", "femnist", "emnist47"):
        if not (real_root / f"{name}.npz").exists():
            pytest.skip(f"no {name}.npz in {real_root}")
        real = load(name, real_root)
        x, y = real.x_train[:8000, 0], real.y_train[:8000]
        assert not hub.lies(x, y) and hub.lies(x.swapaxes(1, 2), y)
