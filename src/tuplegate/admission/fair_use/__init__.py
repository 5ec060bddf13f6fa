"""Bounds on the requests of each organization, and of each stranger, at a time and in a minute."""
