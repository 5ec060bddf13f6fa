"""Who is asking, and may they: what every plane does before its own work."""
