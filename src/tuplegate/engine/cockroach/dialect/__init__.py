"""What CockroachDB reads, stores and refuses otherwise than PostgreSQL."""
