"""Makes, walls off and drops the databases of tenants."""
