"""`tuplegate shell`: SQL typed by a person."""
