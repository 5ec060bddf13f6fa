"""`POST /sql`: Neon's protocol of SQL over HTTP, which its driver and what is built on it speak."""
