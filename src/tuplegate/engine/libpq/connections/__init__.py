"""A connection to a server, its commands and errors, and how the service logs in."""
