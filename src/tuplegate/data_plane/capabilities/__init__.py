"""Finds out what this engine can really do: probes that run on it, and their verdicts."""
