"""The service's own place in the engine: its logins, sessions, roles and metadata."""
