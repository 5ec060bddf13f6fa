"""Runs statements: one, a stream of rows, the service's own; and repeats what met a conflict."""
