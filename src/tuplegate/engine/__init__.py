"""The engine behind the service: the port that planes use, and the adapters that fill it."""
