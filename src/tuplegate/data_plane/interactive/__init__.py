"""Transactions that stay open between the requests of a client."""
