"""Prepares a server for the service, as the role that owns it."""
