"""The supervisor of `tuplegate serve`: what it binds and starts, and how it watches that."""
