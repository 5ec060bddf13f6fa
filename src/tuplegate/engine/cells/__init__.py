"""Cells: PostgreSQL servers of tenants, one for each database, each in a directory of its own.

The room makes the directories, starts and stops the servers, and decides which of them run. It needs Linux. Nothing in
it trusts a file that a cell can write: a cell's superuser, a tenant, can lay any file there.
"""
