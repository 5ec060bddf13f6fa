"""Finds the real abilities of this engine: runs probes on it, and judges the results."""
