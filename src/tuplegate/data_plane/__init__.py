"""Queries and streams over HTTP."""
