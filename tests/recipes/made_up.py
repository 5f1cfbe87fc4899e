"""Datasets of the right shapes made on the spot, and a tiny recipe."""

from pathlib import Path

import numpy as np

from tests.data.test_natural import write_har, write_shakespeare

SHAPES = {
    "mnist": ((28, 28), 10, 300),
    "fashion_mnist": ((28, 28), 10, 400),
    "emnist_balanced": ((28, 28), 47, 1000),
    "femnist": ((28, 28), 62, 400),
    "cifar10": ((32, 32, 3), 10, 400),
    "cifar100": ((32, 32, 3), 100, 1000),
    "svhn": ((32, 32, 3), 10, 400),
}
NAMES_OF_DATA = {*SHAPES, "har", "shakespeare"}

TINY = """
title = "a tiny table"
paper = "nobody, nowhere"
measures = ["accuracy", "variance"]

[config]
rounds = 3
fraction = 0.5
partition = { name = "disjoint_classes", clients = 10 }
training.lr = 0.05
data.name = "digits"

[protocols.paper]
says = "all slots are averaged"
config.methods.fedavg.aggregate_over = "all_clients"

[protocols.fair]
says = "participants are averaged"

[columns.digits]
title = "Digits"

[columns.photos]
title = "Photographs"
config = { data.name = "cifar10", model = "lenet5" }

[rows.fedavg]
title = "FedAvg"
config.method = "fedavg"
published = { digits = ["40 ± 1", 300], photos = [50, "–"] }
fair.incomparable = "nobody published it"

[rows.local]
title = "Local"
config.method = "local"
published = { digits = [99.5, 1], photos = [50, 2] }

[[claims]]
says = "alone is better by twenty"
better = "local"
than = "fedavg"
by = 20.0

[quick]
rounds = 1
"""


def store_all(folder: Path) -> Path:
    """A small file for every dataset that recipes name."""
    draw = np.random.default_rng(0)
    write_har(folder)
    write_shakespeare(folder, 2000)
    for name, (shape, classes, rows) in SHAPES.items():
        x = draw.integers(0, 256, (rows + 200, *shape), dtype=np.uint8)
        y = (np.arange(rows + 200) % classes).astype(np.uint8)
        arrays = {"x_train": x[:rows], "y_train": y[:rows], "x_test": x[rows:], "y_test": y[rows:]}
        if name == "femnist":
            writer = (np.arange(rows + 200) % 8).astype(np.int32)
            arrays |= {"writer_train": writer[:rows], "writer_test": writer[rows:]}
        np.savez(folder / f"{name}.npz", **arrays)
    return folder
