"""The service's own part of a cluster: its role, the metadata database, locks."""
