"""Finds a setting that a request has left on its connection, by the memory that all settings take.

A custom setting, once it was made, can be neither removed nor listed; but with it the server's settings take more
memory. Who may ask for that depends on who has prepared the engine (`walls.py`).
"""

from typing import Final

FUNCTION: Final = """
CREATE FUNCTION tuplegate.traces(seed float8) RETURNS numeric LANGUAGE sql VOLATILE
BEGIN ATOMIC
  SELECT setseed($1);
  SELECT coalesce(sum(used_bytes), 0) FROM pg_get_backend_memory_contexts()
   WHERE name IN ('GUCMemoryContext', 'GUC hash table');
END
"""
"""Sets the random seed anew, and returns how much memory the server's settings take. Before version 16 it does not say:
they have none of their own."""

MEMORY_FUNCTION: Final = """
CREATE FUNCTION tuplegate.settings_memory() RETURNS numeric
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
RETURN (SELECT coalesce(sum(m.used_bytes), 0) FROM pg_get_backend_memory_contexts() m
         WHERE m.name IN ('GUCMemoryContext', 'GUC hash table'))
"""
FUNCTION_OF_WARDEN: Final = """
CREATE FUNCTION tuplegate.traces(seed float8) RETURNS numeric LANGUAGE sql VOLATILE
BEGIN ATOMIC
  SELECT setseed($1);
  SELECT tuplegate.settings_memory();
END
"""
"""The same where the warden may ask, who owns the function before, and tenants may not."""

FUNCTION_WITHOUT_MEMORY: Final = """
CREATE FUNCTION tuplegate.traces(seed float8) RETURNS numeric LANGUAGE sql VOLATILE
BEGIN ATOMIC
  SELECT setseed($1);
  SELECT 0::numeric;
END
"""
"""The same where nobody may ask."""

UNTOLD: Final = b"0"
"""What they say where they do not know."""
