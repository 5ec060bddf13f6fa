"""The life of tenants' databases, where catalog and engine meet."""
