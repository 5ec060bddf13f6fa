"""Keeps a transaction from committing with so much memory in use that the commit itself could find none.

The bundled engine bounds the memory of its processes, so an allocation can fail. One that fails after the commit was
written cannot be undone: the engine restarts, for everybody. Code of a tenant's can fill the memory of its session and
then listen to thousands of channels, whose list is made at that moment. So before a commit that may follow such code
the engine is asked how much memory is in use. Half of it must be left.
"""

from typing import Final

from tuplegate.engine.libpq.commands import Command

FUNCTION: Final = """
CREATE FUNCTION tuplegate.ready_to_commit(bytes_max bigint) RETURNS text LANGUAGE sql VOLATILE
BEGIN ATOMIC
  SELECT set_config('synchronous_commit', 'on', true);
  SELECT repeat('x', CASE WHEN sum(total_bytes) > bytes_max THEN 2147483647 ELSE 0 END)
    FROM pg_get_backend_memory_contexts();
END
"""
"""Fails where there is too little room; and lets the commit wait for the disk, whatever a statement has set."""
FUNCTION_WITHOUT_MEMORY: Final = """
CREATE FUNCTION tuplegate.ready_to_commit(bytes_max bigint) RETURNS text LANGUAGE sql VOLATILE
RETURN set_config('synchronous_commit', 'on', true)
"""
"""The same where tenants may not ask for their memory, or nobody bounds it."""


def ready_to_commit(process_bytes_max: int | None) -> Command:
    """Return the command to send right before a COMMIT that may follow code of the tenant's."""
    bytes_max = 2**62 if process_bytes_max is None else process_bytes_max // 2
    return Command(b"SELECT tuplegate.ready_to_commit($1)", [str(bytes_max).encode()], begins=False)
