"""Tuplegate: PostgreSQL over HTTPS."""

__version__ = "0.61.0"
