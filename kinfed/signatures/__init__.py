"""Client signatures: what summarises a client without its data leaving it."""

from kinfed.signatures.embedding_statistics import EmbeddingStatistics
from kinfed.signatures.encoder_centroids import EncoderCentroids, Tuning
from kinfed.signatures.feature_moments import find_limits, find_moments, project, scale_moments
from kinfed.signatures.part_means import PartMeans
from kinfed.signatures.pretraining import Pretraining, parse_sources
from kinfed.signatures.signature import Signature, Signatures

__all__ = [
    "EmbeddingStatistics",
    "EncoderCentroids",
    "PartMeans",
    "Pretraining",
    "Signature",
    "Signatures",
    "Tuning",
    "find_limits",
    "find_moments",
    "parse_sources",
    "project",
    "scale_moments",
]
