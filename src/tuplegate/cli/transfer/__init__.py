"""`import` and `export`: the formats of files, and how values go through them unchanged."""
