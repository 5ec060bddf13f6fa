"""HTTP/1.1 on the event loop: requests in, answers out, streams. Knows nothing of SQL."""
