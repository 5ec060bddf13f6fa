"""Metrics of the service: the table of metrics, cells to count in, memory that workers share, and the page."""
