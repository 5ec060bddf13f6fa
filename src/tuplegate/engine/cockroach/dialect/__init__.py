"""Differences to PostgreSQL in the texts and values that CockroachDB reads, stores and refuses."""
