"""The port, filled by a cluster of CockroachDB."""
