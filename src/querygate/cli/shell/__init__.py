"""`querygate shell`: SQL typed by a person."""
