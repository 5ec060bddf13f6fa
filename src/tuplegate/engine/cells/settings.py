"""The settings of the servers of cells, and of the catalog's."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tuplegate.engine.bundled.sandbox.control_groups import ControlGroups, GroupBounds
from tuplegate.engine.cells.layout import CellError

SUPERUSER = "tuplegate"
WAL_MB_MAX = 256
"""The approximate size of the log that the engine keeps before it makes a checkpoint."""
MAPPED_BESIDES_MB = 256
"""For programs, libraries, and statistics of all tables, which grow with their number."""
NOTIFY_PAGES_PER_MB = 2 * 128
"""Pages of 8 KiB in the queue of notifications, for each MiB that a process may take. A transaction keeps its own
notifications in memory, so it can fill at most half of the queue."""
_SUPERUSER_CONNECTIONS = 3
_WORKERS, _VACUUM_WORKERS, _SENDERS = 8, 3, 10
_PROCESSES_BESIDES = 64
"""The server's own processes, those that read and write files for others, and connections that it turns away."""


@dataclass(frozen=True, slots=True)
class CellSettings:
    """The operator's choices for all servers."""

    max_connections: int = 100
    max_prepared_transactions: int = 500
    shared_buffers_mb: int = 32
    process_memory_mb: int = 512
    mapped_mb: int | None = None
    temp_mb: int = 2048
    memory_mb: int = 2048
    groups: ControlGroups | None = None
    own_namespaces: bool = True
    oom_score: int = 500
    """When memory is short, the kernel ends a tenant's server before the service."""
    extensions: Path | None = None
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def group_bounds(self) -> GroupBounds:
        """Return the bounds on all processes of a server together, for its control group."""
        memory_mb = max(self.memory_mb, self.shared_buffers_mb + self.process_memory_mb)
        backends = self.max_connections + _SUPERUSER_CONNECTIONS + _WORKERS + _VACUUM_WORKERS + _SENDERS
        return GroupBounds(memory_mb * 2**20, backends + _PROCESSES_BESIDES)


def make_cell_settings(settings: CellSettings, major: int) -> dict[str, str]:
    """Return the settings of a server, for its command line, where its superuser cannot override them."""
    values = {
        "listen_addresses": "",
        "unix_socket_permissions": "0700",
        # Only the operator logs in as superuser: connections reserved for that come on top.
        "max_connections": str(settings.max_connections + _SUPERUSER_CONNECTIONS),
        "superuser_reserved_connections": str(_SUPERUSER_CONNECTIONS),
        "shared_buffers": f"{settings.shared_buffers_mb}MB",
        "huge_pages": "off",
        "max_worker_processes": str(_WORKERS),
        "max_wal_senders": str(_SENDERS),
        # Each worker would be a process that only waits.
        "max_logical_replication_workers": "0",
        # Sizes the pool of serializable transactions: too small a pool lets write skew commit.
        "max_prepared_transactions": str(settings.max_prepared_transactions),
        # The engine remembers the outcomes of this many transactions: a day of 17,000 writes a second.
        "autovacuum_freeze_max_age": "1500000000",
        # These size tables by the sum of connections and prepared transactions. There can be many, but seldom are: so
        # the tables are three times as large as with PostgreSQL's own defaults.
        "max_locks_per_transaction": "16",
        "max_pred_locks_per_transaction": "16",
        # The default is half of the setting above. A higher value makes fewer transactions conflict for no reason.
        "max_pred_locks_per_relation": "128",
        "temp_file_limit": f"{settings.temp_mb}MB",
        "default_transaction_isolation": "serializable",
        # A deadlock is a conflict that the service retries; the default would make everybody behind it wait for 1 s.
        "deadlock_timeout": "20ms",
        "fsync": "on",
        "synchronous_commit": "on",
        # Needed to move databases to another engine while they are in use: see postgres/tenancy/following.py.
        "wal_level": "logical",
        "autovacuum": "on",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "client_connection_check_interval": "1000",
        "idle_in_transaction_session_timeout": "0",
        "cursor_tuple_fraction": "1.0",
        "jit": "off",
        "password_encryption": "scram-sha-256",
        # Statements carry literals, and a tenant can RAISE LOG without end.
        "log_min_messages": "fatal",
        "log_min_error_statement": "panic",
        "log_destination": "stderr",
        "logging_collector": "off",
        "lc_messages": "C",
        "dynamic_shared_memory_type": "mmap",  # other types share a directory, or numbers, with other servers
        # After a crash: one call for the file system, not one for each file.
        "recovery_init_sync_method": "syncfs",
        # The log that a cell keeps counts for its size.
        "min_wal_size": "32MB",
        "max_wal_size": f"{WAL_MB_MAX}MB",
    }
    if major >= 17:
        # The queue of notifications is in no database's size. The default is 8 GiB.
        values["max_notify_queue_pages"] = str(settings.process_memory_mb * NOTIFY_PAGES_PER_MB)
    if major >= 18:
        values["io_method"] = "sync"
        values["autovacuum_worker_slots"] = str(_VACUUM_WORKERS)
        if settings.extensions is not None:
            values["extension_control_path"] = f"{settings.extensions}:$system"
    if reserved := sorted(values.keys() & settings.extra.keys()):
        raise CellError(f"the service sets {', '.join(reserved)} of cells itself: remove it from their settings")
    return values | dict(settings.extra)
