"""Create, copy, reset, move, back up and delete tenants' databases, in the catalog and in the engine."""
