"""Parameters of a statement on a pooled connection, and its rows within bounds."""
