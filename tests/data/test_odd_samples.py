"""Samples, labels and ids in the forms that users have them, besides plain arrays."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from kinfed.data import OwnSettings, from_arrays, from_clients, from_torch
from kinfed.errors import ConfigError, DataError

X = np.arange(40, dtype=np.float32).reshape(20, 2) / 40
Y, OWNER = np.arange(20) % 3, np.arange(20) % 2

FORMS = {
    "sparse matrix": csr_matrix(X),
    "sparse tensor": torch.tensor(X).to_sparse(),
    "negated view": -torch.view_as_complex(torch.stack([torch.zeros(20, 2), torch.tensor(X)], -1)).conj().imag,
    "half": torch.tensor(X).half(),
    "reversed": X[::-1][::-1],
    "big endian": X.astype(">f4"),
    "objects": X.astype(object),
}


@pytest.mark.parametrize("form", FORMS)
def test_samples_are_the_same_in_every_form(form):
    found = from_arrays(FORMS[form], Y, OWNER)
    torch.testing.assert_close(found.x.abs(), torch.tensor(X), atol=1e-3, rtol=0)
    assert found.x.dtype == torch.float32


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ma.masked_less(X, 0.5), "x has masked values: fill them"),
        (X[:, :0], r"x has shape \[20, 0\], wanted at least one number a sample"),
        (None, r"x is object \[\], wanted numbers"),
        ({"a": X}, r"x is object \[\], wanted numbers"),
        (torch.empty(20, 2, device="meta"), "wanted an array"),
    ],
)
def test_what_holds_no_samples_is_refused(x, message):
    with pytest.raises(DataError, match=message):
        from_arrays(x, Y, OWNER)


@pytest.mark.parametrize("labels", [Y.astype(object), list(Y), Y.astype(np.uint16), Y.astype(np.int8)])
def test_labels_may_be_objects_that_are_whole_numbers(labels):
    assert from_arrays(X, labels, OWNER).y.tolist() == Y.tolist()


def test_numbers_may_be_objects():
    settings = OwnSettings(task="regression")
    given = np.array([True, 2, 0.5, np.float32(1)] * 5, object)
    assert from_arrays(X, given, OWNER, settings).y[:4].tolist() == [1, 2, 0.5, 1]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.ma.masked_equal(Y, 1), "y has masked values"),
        (Y.astype(np.uint64) + 2**63, f"y has a label {2**63 + 2}; number labels"),
        ((Y + 0.5).astype(object), "y is float64"),
    ],
)
def test_labels_that_are_none_are_refused(y, message):
    with pytest.raises(DataError, match=message):
        from_arrays(X, y, OWNER)


def test_a_number_beyond_single_precision_is_infinite_without_a_warning():
    with pytest.raises(DataError, match="1 of 20 targets are a NaN or an infinity"):
        from_arrays(X, np.array([1e300, *np.zeros(19)]), OWNER, OwnSettings(task="regression"))


def test_a_gap_among_names_of_clients_is_no_client():
    with pytest.raises(DataError, match="client has no id for 10 of 20 samples"):
        from_arrays(X, Y, ["a", float("nan")] * 10)


def test_clients_may_come_from_a_generator():
    pairs = [(X[:8], Y[:8]), (X[8:], Y[8:])]
    assert [len(own) for own in from_clients(pair for pair in pairs).train] == [6, 10]
    sets = (torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y)) for x, y in pairs)
    assert from_torch(sets).clients == 2
    for none in (None, 5):
        with pytest.raises(DataError, match="wanted one entry for each client"):
            from_clients(none)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": 3.0}, "classes must be a whole number from 1 on, got 3.0"),
        ({"classes": -1}, "classes must be a whole number from 1 on, got -1"),
        ({"class_names": ("a", "b", "b")}, "class_names has 'b' more than once"),
        ({"class_names": None}, "class_names must be text, one for each class"),
        ({"class_names": [0, 1]}, "class_names must be text, one for each class"),
    ],
)
def test_classes_are_counted_and_named_each_once(settings, message):
    with pytest.raises(ConfigError, match=message):
        OwnSettings(**settings)
