"""The networks of the workloads as torch modules, for rows of 784 numbers."""

from torch import nn


def network(name: str, classes: int) -> nn.Module:
    """MLP-200, or FL+HC's CNN: two 5x5 convolutions with "same" padding, 512 units."""
    if name == "mlp":
        return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, classes))
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, classes),
    )  # fmt: skip
