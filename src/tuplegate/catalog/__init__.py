"""Records of organizations, databases, keys and sessions, in the engine's metadata database."""
