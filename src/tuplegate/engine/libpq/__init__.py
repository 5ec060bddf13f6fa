"""Shared by engines that speak PostgreSQL's protocol: connections, pools, values, rows, prepared statements."""
