"""The networks of the workloads as torch modules, for flat rows."""

from torch import nn


def network(name: str, classes: int) -> nn.Module:
    """MLP-200, FL+HC's CNN (two 5x5 convolutions with "same" padding, 512 units), or LeNet-5 for colours."""
    if name == "mlp":
        return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, classes))
    if name == "lenet":
        return nn.Sequential(
            nn.Unflatten(1, (3, 32, 32)),
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes),
        )  # fmt: skip
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, classes),
    )  # fmt: skip
