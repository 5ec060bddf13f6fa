"""Fills the port with a cluster of CockroachDB."""
