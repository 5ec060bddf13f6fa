"""What is looked after while the service runs: deadlines, bounds, the disk, autovacuum, leases."""
