"""Reads requests and answers from bytes."""
