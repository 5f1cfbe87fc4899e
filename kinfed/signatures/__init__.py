"""How a client is described without its data leaving it."""

from kinfed.signatures.encoder_centroids import EncoderCentroids, Tuning
from kinfed.signatures.known import Signatures
from kinfed.signatures.pretraining import Pretraining

__all__ = ["EncoderCentroids", "Pretraining", "Signatures", "Tuning"]
