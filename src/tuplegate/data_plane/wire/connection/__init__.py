"""One client of PostgreSQL's protocol, joined to a connection of the engine: its messages, and the answers."""
