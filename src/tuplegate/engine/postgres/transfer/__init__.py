"""Brings the databases of tenants elsewhere: dumps, and moves to another engine while they are in use."""
