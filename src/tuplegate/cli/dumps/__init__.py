"""`dump` and `restore`: a whole database as a file that PostgreSQL's tools read."""
