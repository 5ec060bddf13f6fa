"""Makes, copies, measures and drops the databases of tenants."""
