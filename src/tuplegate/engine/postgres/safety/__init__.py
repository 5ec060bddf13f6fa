"""Keeps transactions serializable, connections clean, and databases and the disk within their bounds."""
