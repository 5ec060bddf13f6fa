"""TLS: certificates, key exchange, and the bytes of a connection."""
