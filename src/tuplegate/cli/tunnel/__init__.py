"""`tunnel` and `psql`: any PostgreSQL program reaches the service through a local port."""
