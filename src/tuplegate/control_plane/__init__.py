"""Sessions, organizations, databases, keys: what is managed rather than queried."""
