"""Transactions in two phases, and what became of those that were lost."""
