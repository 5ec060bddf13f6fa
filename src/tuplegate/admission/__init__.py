"""The checks and the routes that every plane has: identity, quota, lanes; health, OpenAPI, metrics, traces."""
