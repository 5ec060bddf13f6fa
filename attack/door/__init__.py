"""Attacks on the front door: on how HTTP is read, answered and kept apart. They see nothing but sockets."""
