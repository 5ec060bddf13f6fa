"""PostgreSQL behind the port: connections, pools, values, execution, streams."""
