"""The papers' tables, run and judged."""

from kinfed.reproduction.order import Order, list_tables, reproduce

__all__ = ["Order", "list_tables", "reproduce"]
