"""The table of all metrics. The page and docs/metrics.md are generated from it."""

from dataclasses import dataclass
from enum import Enum


class MetricKind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; `name` lacks the prefix `tuplegate_`."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    help: str

    @property
    def full_name(self) -> str:
        return f"tuplegate_{self.name}"


_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

METRICS = {
    metric.name: metric
    for metric in (
        Metric("info", _G, ("version", "engine", "engine_version"), "Always 1; the labels say what is running."),
        Metric("engine_up", _G, (), "1 while the engine answers, 0 otherwise."),
        # Requests
        Metric(
            "requests_total", _C, ("plane", "method", "route", "status"),
            "Requests answered, by route template and class of the status; none where the client left before."
            " One whose client leaves, or that a stop ends, while it waits for its turn may not be counted."
            " One through the alias is counted there and on the data plane.",
        ),
        Metric(
            "request_seconds", _H, ("plane", "method", "route"),
            "From the complete request to the end of its answer; streams to their last row.",
        ),
        Metric("errors_total", _C, ("plane", "code"), "Errors answered, by code, also those with status 200."),
        Metric("quota_refusals_total", _C, (), "Requests refused because their organization's quota was used up."),
        Metric(
            "cors_refusals_total", _C, ("plane",),
            "Requests of pages whose origin is not allowed; the log names it at the level debug.",
        ),
        Metric("http_connections", _G, ("plane",), "Connections of clients that are open."),
        Metric("requests_running", _G, ("plane",), "Requests being answered."),
        Metric("lane_requests", _G, ("state",), "Requests to the data plane: running, or waiting in lanes."),
        # Streams
        Metric("streams_total", _C, (), "Answers that were begun as streams."),
        Metric("streams_open", _G, (), "Streams being sent."),
        Metric("stream_rows_total", _C, (), "Rows sent in streams that have ended."),
        # Transactions that stay open
        Metric("open_transactions", _G, (), "Transactions that are open between requests."),
        Metric(
            "open_transactions_ended_total", _C, ("outcome",),
            "Those that ended: committed, or the reason for which they were rolled back.",
        ),
        Metric("open_transaction_age_seconds", _G, (), "How long the oldest of them has been open."),
        # PostgreSQL's own protocol
        Metric("wire_connections_open", _G, (), "Connections that speak PostgreSQL's own protocol."),
        Metric("wire_connections_total", _C, (), "Those that were opened."),
        Metric("wire_statements_total", _C, (), "Statements that came over them."),
        Metric("wire_bytes_total", _C, ("direction",), "Bytes that came over them: in, from clients, and out."),
        # Engine
        Metric(
            "engine_seconds", _H, ("kind",),
            "Engine time of an attempt of a query or transaction, of a stream, or of the wake of a database.",
        ),
        Metric("attempts_total", _C, ("kind",), "Attempts begun: one for each request, and one more for each retry."),
        Metric("conflicts_total", _C, ("kind",), "Attempts that ended in a serialization conflict or deadlock."),
        Metric("retries_total", _C, ("kind",), "Attempts begun again, after a conflict or a lost connection."),
        Metric(
            "snapshot_reads_total", _C, ("served_by",),
            "Reads that need not be serializable, by who answered them: a replica, or the primary.",
        ),
        Metric(
            "replica_lag_seconds", _G, ("replica",),
            "Age of the oldest change that a replica lacks, as one worker sees it; infinite where it is not known.",
        ),
        Metric("replica_usable", _G, ("replica",), "1 while the replica is read from."),
        Metric("guard_conflicts_total", _C, (), "Attempts that the guard of SERIALIZABLE ended as too long-lived."),
        Metric(
            "in_doubt_settled_total", _C, ("outcome",),
            "Transactions whose connection was lost while they committed, by what their worker found out:"
            " committed, aborted or unknown.",
        ),
        Metric(
            "in_doubt_recovered_total", _C, (),
            "Prepared transactions found left behind, and committed by whoever found them.",
        ),
        Metric("engine_connections", _G, ("state",), "Connections to the engine for tenants' statements: open, idle."),
        Metric("engine_connections_max", _G, (), "As many may be open."),
        Metric("engine_connections_waiting", _G, (), "Statements that wait for a connection."),
        Metric(
            "engine_processes_stuck", _G, (),
            "Server processes that ignore being told to end; the log names them. Alarm.",
        ),
        Metric("serializable_slots", _G, (), "Transactions that the engine can check one against."),
        Metric("serializable_safe_seconds", _G, (), "So long may a transaction that writes live at the present rate."),
        Metric("serializable_guarded", _G, (), "1 where what lives longer is ended, so that SERIALIZABLE holds."),
        Metric(
            "disk_free_bytes", _G, (),
            "Free room on the bundled engine's disk, beside the reserve; 0 where it is not watched.",
        ),
        Metric("disk_short", _G, (), "1 while there is so little that what takes room is refused. Alarm."),
        Metric("storage_mismatches_total", _C, (), "Storage tests that read something else than was written. Alarm."),
        Metric("cells", _G, ("state",), "Databases of the bundled engine, by their servers: asleep, or awake."),
        # Backups
        Metric("backups_total", _C, ("result",), "Backups of databases that were to be made: made, or failed."),
        Metric(
            "backup_age_seconds", _G, (),
            "Age of the newest backup of the database whose newest is the oldest; 0 where no backups are made.",
        ),
        # Databases
        Metric("database_requests_total", _C, ("organization", "database"), "Requests by database."),
        Metric("database_rows_total", _C, ("organization", "database"), "Rows answered by database."),
        Metric("database_bytes_total", _C, ("organization", "database"), "Bytes of answers by database."),
        Metric("database_errors_total", _C, ("organization", "database"), "Requests that failed by database."),
        # Processes
        Metric("worker_starts_total", _C, (), "Workers started, those that replaced a dead one included."),
        Metric(
            "worker_standstills_total", _C, (),
            "Workers killed and replaced because they stood still; the log says where. Alarm.",
        ),
        Metric(
            "task_restarts_total", _C, ("task",),
            "Background tasks that failed and were started again; the log has the cause. Alarm.",
        ),
        Metric("worker_cpu_seconds_total", _C, (), "Processor time of all workers."),
        Metric("worker_resident_bytes", _G, ("worker",), "Memory of a worker, what it shares with others included."),
        Metric("worker_open_fds", _G, ("worker",), "File descriptors of a worker."),
        Metric("worker_start_time_seconds", _G, ("worker",), "When a worker was started, in seconds since 1970."),
    )
}  # fmt: skip
