"""Finds the primary and the standbys that can be read from, and follows their positions."""
