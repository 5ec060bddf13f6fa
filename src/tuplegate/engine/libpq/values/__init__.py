"""Values: the types of a database, parameters as texts, rows as JSON."""
