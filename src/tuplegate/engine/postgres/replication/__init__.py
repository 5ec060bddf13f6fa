"""Which server is the primary, and how far a server is in the log of its changes."""
