"""Databases of tenants: made, copied, moved, dumped; their roles and rights."""
