"""Reads the texts of statements, before an engine sees them. Pure."""
