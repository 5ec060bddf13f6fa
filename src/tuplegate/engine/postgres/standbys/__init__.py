"""Reads from standbys: which of them can be trusted, how far each is, what runs there."""
