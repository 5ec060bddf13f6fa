"""Runs statements and streams, attempt by attempt."""
