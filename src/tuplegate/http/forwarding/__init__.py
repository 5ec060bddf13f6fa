"""Sends a request on to another process of the service, and reads the answer."""
