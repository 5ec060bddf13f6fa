"""Transactions in two phases, the records that commit with them, and what became of those that were lost."""
