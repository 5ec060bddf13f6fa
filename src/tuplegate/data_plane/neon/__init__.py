"""`POST /sql`: Neon's protocol of SQL over HTTP, for its driver and for tools built on that."""
