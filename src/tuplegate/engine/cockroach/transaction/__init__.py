"""Commits transactions with a row that tells their outcome."""
