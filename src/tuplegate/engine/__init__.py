"""The engine behind the service: the port that planes use, and what stands behind it."""
