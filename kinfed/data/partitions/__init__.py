"""Partitions: labels -> which samples each client has (recipes P1 to P10 of the papers)."""

from kinfed.data.partitions.iid import IID, LabelSets, LabelSwapped, Natural, Writers
from kinfed.data.partitions.label_skew import Dirichlet, FavouredLabels, LabelSkew, Pathological, Shards
from kinfed.data.partitions.planted_clusters import DisjointClasses, SharedClass, Structured
from kinfed.data.partitions.split import Labels, Partition, Promise, Split, check

PARTITIONS: dict[str, type[Partition]] = {
    "iid": IID,
    "shards": Shards,
    "disjoint_classes": DisjointClasses,
    "shared_class": SharedClass,
    "structured": Structured,
    "label_swap": LabelSwapped,
    "label_sets": LabelSets,
    "natural": Natural,
    "writers": Writers,
    "label_skew": LabelSkew,
    "pathological": Pathological,
    "dirichlet": Dirichlet,
    "favoured_labels": FavouredLabels,
}

__all__ = [
    "IID",
    "PARTITIONS",
    "Dirichlet",
    "DisjointClasses",
    "FavouredLabels",
    "LabelSets",
    "LabelSkew",
    "LabelSwapped",
    "Labels",
    "Natural",
    "Partition",
    "Pathological",
    "Promise",
    "Shards",
    "SharedClass",
    "Split",
    "Structured",
    "Writers",
    "check",
]
