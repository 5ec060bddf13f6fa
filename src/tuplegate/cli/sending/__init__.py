"""`database send`: copy a database into another service, whose engine may be of another kind."""
