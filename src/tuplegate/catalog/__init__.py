"""Organizations, databases and keys, in the engine's metadata database."""
