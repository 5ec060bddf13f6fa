"""Which server is the primary, which standbys can be read from, and how far each is."""
