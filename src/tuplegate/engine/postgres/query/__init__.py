"""Runs statements, streams of rows, and the service's own statements; repeats them after a conflict."""
