"""The service's own place in the engine: its logins, sessions, records, metadata and settings."""
