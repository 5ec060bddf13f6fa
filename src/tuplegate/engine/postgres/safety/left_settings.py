"""Finds a setting that a request has left on its connection, by the memory that all settings take.

A custom setting can be neither removed nor listed; but the server's settings take more memory with it. The role that
may ask for that depends on the role that has prepared the engine (`walls.py`).
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
"""Sets the random seed anew, and returns the memory that the server's settings take. Before version 16 it returns 0:
settings have no memory context of their own there."""

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
"""The same if the warden may ask, who owns `settings_memory`, and tenants may not."""

FUNCTION_WITHOUT_MEMORY: Final = """
CREATE FUNCTION tuplegate.traces(seed float8) RETURNS numeric LANGUAGE sql VOLATILE
BEGIN ATOMIC
  SELECT setseed($1);
  SELECT 0::numeric;
END
"""
"""The same if no role may ask."""

UNTOLD: Final = b"0"
"""The functions' result if they do not know the memory."""
