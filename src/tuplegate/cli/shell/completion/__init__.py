"""Suggests what could stand at the cursor."""
