"""The bundled PostgreSQL server: its programs, data directory and disk, and the extensions that tenants may create."""
