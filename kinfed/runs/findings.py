"""What a method found out about its clients, written once, at the end of a run."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from kinfed.capabilities import MergesClients
from kinfed.checkpoint import write_atomically
from kinfed.clustering.hierarchy import Dendrogram
from kinfed.experiment import Experiment
from kinfed.metrics import collect_signatures
from kinfed.runs.logs import CsvLog


def write_findings(folder: Path, experiment: Experiment[object]) -> None:
    """Writes labels.csv, and tree.npz and signatures.npz where the method merges or describes its clients."""
    method, state, fed = experiment.method, experiment.state, experiment.fed
    if fed.sees_samples:
        write_labels(folder, fed.labels_held)
    if state is None:
        return
    if isinstance(method, MergesClients) and len((tree := method.dendrogram(state)).members):
        write_tree(folder, tree)
    if (seen := collect_signatures(method, state, fed, experiment.evaluation.signatures)) is not None:
        write_arrays(folder / "signatures.npz", clients=seen[0].numpy(), points=seen[1].numpy())


def write_labels(folder: Path, held: Tensor) -> None:
    """Writes how many training samples of each label each client has; what is 0 is left out."""
    client, label = held.nonzero().T.tolist()
    rows = zip(client, label, held[held > 0].tolist(), strict=True)
    CsvLog(folder / "labels.csv", ("client", "label", "samples")).rewrite(rows)


def write_tree(folder: Path, tree: Dendrogram) -> None:
    """Writes how clients were merged, and where that was cut."""
    merges, members = tree.merges.cpu().numpy(), tree.members.cpu().numpy()
    write_arrays(folder / "tree.npz", members=members, merges=merges, height=np.array(tree.height))


def write_arrays(path: Path, **arrays: npt.NDArray[np.generic]) -> None:
    """Replaces an .npz file in one step."""

    def write(beside: Path) -> None:
        with open(beside, "wb") as file:  # given a name, numpy would add .npz to it
            np.savez_compressed(file, allow_pickle=False, **arrays)

    write_atomically(path, write)
