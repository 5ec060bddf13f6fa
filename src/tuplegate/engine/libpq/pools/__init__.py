"""Bounded sets of connections, who gets one next, and what stays prepared on them."""
