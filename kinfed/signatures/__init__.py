"""How a client is described without its data leaving it."""

from kinfed.signatures.embedding_statistics import EmbeddingStatistics
from kinfed.signatures.encoder_centroids import EncoderCentroids, Tuning
from kinfed.signatures.known import Signatures
from kinfed.signatures.pretraining import Pretraining
from kinfed.signatures.sources import sources

__all__ = ["EmbeddingStatistics", "EncoderCentroids", "Pretraining", "Signatures", "Tuning", "sources"]
