"""Transactions in two phases, the records that commit with them, and the recovery of lost ones."""
