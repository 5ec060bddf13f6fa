"""The wire: what any engine needs that speaks PostgreSQL's protocol: connections, values, rows, prepared statements."""
