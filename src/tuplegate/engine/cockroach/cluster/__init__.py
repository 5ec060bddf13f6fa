"""The nodes of a cluster, and the service's own place there: sessions of its role, locks, probes, settings."""
