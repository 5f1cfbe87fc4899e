"""The papers' tables, run and judged."""

from kinfed.reproduction.tables import Order, listed, reproduce

__all__ = ["Order", "listed", "reproduce"]
