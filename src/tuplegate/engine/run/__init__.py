"""Runs scripts on connections: see `steps` and `runner`."""
