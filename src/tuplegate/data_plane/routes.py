"""The route table of the data plane: the name, scope, request and answer of each route."""

import os
from dataclasses import replace

from tuplegate.access.scopes import Scope
from tuplegate.access.transaction_ids import TransactionIds
from tuplegate.admission.identity import IdentityCache
from tuplegate.admission.openapi import Description, OwnProtocol, Parameter
from tuplegate.admission.plane import Route, RouteTable, put_in_group
from tuplegate.data_plane.bench import CONCURRENCY_MAX, SECONDS_MAX, BenchRoutes
from tuplegate.data_plane.capabilities.probes import Probed
from tuplegate.data_plane.capabilities.routes import CapabilityRoutes
from tuplegate.data_plane.idempotency import KEY_LENGTH_MAX
from tuplegate.data_plane.interactive.routes import OpenBounds, OpenTransactionRoutes, OpenTransactions
from tuplegate.data_plane.neon.connection_string import translate_login
from tuplegate.data_plane.neon.errors import AS_400, STATUS
from tuplegate.data_plane.neon.routes import SqlRoutes
from tuplegate.data_plane.query import QueryRoutes
from tuplegate.data_plane.reset import ResetRoute
from tuplegate.data_plane.storage_test import BYTES_MAX, StorageRoutes
from tuplegate.data_plane.stream import StreamWriter
from tuplegate.data_plane.tables import TableRoutes
from tuplegate.data_plane.transaction import TransactionRoutes
from tuplegate.data_plane.wire.routes import WireRoutes
from tuplegate.data_plane.workloads import WORKLOADS
from tuplegate.engine.port import Engine
from tuplegate.protocol import answers, neon
from tuplegate.protocol.events import FRAMINGS, Framing
from tuplegate.protocol.messages import (
    BeginRequest,
    CommitRequest,
    InnerQueryRequest,
    QueryRequest,
    StreamFormat,
    TransactionRequest,
)
from tuplegate.settings import Settings
from tuplegate.tenancy.lifecycle import Lifecycle

ABOUT = """SQL over HTTP: one statement, a stream of rows, or a transaction.

An error has one shape, whatever its status. What the engine says of a statement, beyond that it cannot be parsed, comes
with status 200 and `"success": false`. `HEAD` works where `GET` does; other methods are 405. The alias forwards all of
this, and answers paths of the control plane with 307.
"""

_DATABASE = Parameter(
    "Tuplegate-Database",
    {"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,62}$"},
    "The database, by name; without it the token's own, or the organization's default.",
    "header",
)
_IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    {"type": "string", "pattern": f"^[!-~]([ -~]{{0,{KEY_LENGTH_MAX - 2}}}[!-~])?$"},
    "The same key and body run once; a repeat gets the first answer. Not with a stream.",
    "header",
)
_TRANSACTION_ID = Parameter(
    "Tuplegate-Transaction-Id",
    {"type": "string", "pattern": "^txn_[A-Za-z0-9_-]{8,120}$"},
    "An id of the client's own, used once, by which the outcome can be asked.",
    "header",
)

_CONSISTENCY = Parameter(
    "Tuplegate-Consistency",
    {"enum": ["serializable", "snapshot"]},
    "`snapshot`: a replica may answer what only reads. Without it as the key was made; `serializable` by default.",
    "header",
)
_POSITION = Parameter(
    "Tuplegate-Position",
    {"type": "string", "pattern": "^(?:[0-9a-f]{8}-[0-9a-f]{16}|unknown)$"},
    "That of an earlier answer: a snapshot then shows at least what that answer did.",
    "header",
)
_READ_FROM = ("Tuplegate-Position", "Tuplegate-Served-By")

_ENGINE_SAID = ("sql_error", "conflict", "timeout")
_OF_SQL = (
    "parse_error",
    "empty_statement",
    "multiple_statements",
    "parameter_mismatch",
    "too_many_comments",
    "transaction_control",
    "copy_not_supported",
)
_ONCE = ("idempotency_in_progress", "idempotency_mismatch", "answers_full")
_STREAM_TEXT = (
    "`Accept: text/event-stream` or `application/x-ndjson`, or the hint `/*+ STREAM */`, asks for a stream:"
    " `columns`, a `row` each, then one of `done` and `error`."
)


def list_data_routes(
    engine: Engine,
    identities: IdentityCache,
    lifecycle: Lifecycle,
    settings: Settings,
    secret: bytes,
    streams: StreamWriter,
    held: OpenTransactions,
    wire: WireRoutes | None = None,
) -> RouteTable:
    """Return the table, in the order of the banner. Without `wire`, the engine's own protocol is not served."""
    statements_max = settings.transaction_statements_max
    database = _list_database_routes(
        ResetRoute(identities, lifecycle),
        TableRoutes(engine, identities),
        CapabilityRoutes(Probed(engine, engine, engine), engine, identities, settings),
        BenchRoutes(engine, engine, engine, engine, identities),
        StorageRoutes(engine, engine, engine, identities),
    )
    ids = TransactionIds(secret, os.urandom)
    transactions = TransactionRoutes(engine, engine, identities, statements_max, ids)
    open_bounds = OpenBounds(
        statements_max,
        settings.open_idle_ms,
        settings.open_idle_ms_max,
        settings.open_life_ms,
        settings.open_life_ms_max,
    )
    open_transactions = OpenTransactionRoutes(engine, engine, identities, held, streams, open_bounds, ids, transactions)
    return {
        **put_in_group("Queries", _list_query_routes(QueryRoutes(engine, engine, engine, identities, streams))),
        **put_in_group("Transactions", _list_transaction_routes(transactions, open_transactions)),
        **put_in_group(
            "Other protocols",
            _list_other_routes(
                SqlRoutes(engine, engine, engine, identities, statements_max, settings.answer_bytes_max, transactions)
            ),
        ),
        **put_in_group("The engine's own protocol", _list_wire_routes(wire)),
        **put_in_group("The database", database),
    }


def _list_wire_routes(wire: WireRoutes | None) -> RouteTable:
    if wire is None:
        return {}
    return {
        ("GET", "/v2"): Route("Speak PostgreSQL's own protocol, in a WebSocket.", None, open=wire.open, describes=_WIRE)
    }


def _list_query_routes(routes: QueryRoutes) -> RouteTable:
    read = Scope.READ
    return {
        ("POST", "/v1/query"): Route(
            "Run one SQL statement, sent as JSON.", read, guarded=routes.json, describes=_JSON_QUERY
        ),
        ("POST", "/query"): Route(
            "Run one SQL statement, sent as plain text.", read, guarded=routes.text, describes=_TEXT_QUERY
        ),
    }


def _list_transaction_routes(routes: TransactionRoutes, opened: OpenTransactionRoutes) -> RouteTable:
    read = Scope.READ
    return {
        ("POST", "/v1/transaction"): Route(
            "Run several statements atomically.", read, guarded=routes.run, describes=_TRANSACTION
        ),
        ("GET", "/v1/transaction/{id}"): Route(
            "What became of a transaction.", read, guarded=opened.state, describes=_OUTCOME, in_lanes=False
        ),
        ("POST", "/v1/transaction/{id}/abort"): Route(
            "Make an unfinished or unknown transaction aborted for good.",
            read,
            guarded=opened.abort,
            describes=_OUTCOME,
            in_lanes=False,
        ),
        ("POST", "/v1/transaction/begin"): Route(
            "Begin a transaction that stays open.", read, guarded=opened.begin, describes=_BEGIN
        ),
        ("POST", "/v1/transaction/{id}/query"): Route(
            "Run a statement in an open transaction.",
            read,
            guarded=opened.query,
            describes=_INNER_QUERY,
            in_lanes=False,
        ),
        ("POST", "/v1/transaction/{id}/commit"): Route(
            "Commit an open transaction.", read, guarded=opened.commit, describes=_COMMIT, in_lanes=False
        ),
        ("POST", "/v1/transaction/{id}/rollback"): Route(
            "Roll back an open transaction.", read, guarded=opened.roll_back, describes=_ROLLBACK, in_lanes=False
        ),
    }


def _list_other_routes(routes: SqlRoutes) -> RouteTable:
    return {
        ("POST", "/sql"): Route(
            "Run SQL as Neon's clients send it.",
            Scope.READ,
            guarded=routes.run,
            describes=_SQL,
            translate=translate_login,
            takes=tuple(parameter.name.lower() for parameter in _NEON_HEADERS),
        ),
    }


def _list_database_routes(
    reset: ResetRoute, tables: TableRoutes, capabilities: CapabilityRoutes, bench: BenchRoutes, storage: StorageRoutes
) -> RouteTable:
    read, admin = Scope.READ, Scope.ADMIN
    return {
        ("POST", "/admin/reset"): Route("Wipe all data of the database.", admin, guarded=reset.run, describes=_RESET),
        ("GET", "/tables"): Route(
            "Tables and views that the token may see.", read, guarded=tables.list, describes=_TABLES
        ),
        ("GET", "/capabilities"): Route(
            "What the engine can do.", read, guarded=capabilities.matrix, describes=_CAPABILITIES
        ),
        ("GET", "/capabilities/{name}"): Route(
            "Run one probe of them now.", read, guarded=capabilities.one, describes=_PROBE
        ),
        ("GET", "/bench"): Route("Measure the database, for seconds.", admin, guarded=bench.run, describes=_BENCH),
        ("GET", "/storage/test"): Route(
            "Write, read back, compare and delete random bytes.", admin, guarded=storage.run, describes=_STORAGE
        ),
    }


def _stream(framing: Framing) -> str:
    """Return an example of a stream."""
    done = b'{"success":true,"row_count":1,"affected_rows":0,"timings":{"total_us":900,"exec_us":700}}'
    columns = framing.event("columns", b'{"columns":["n"],"types":["int4"]}')
    return (columns + framing.rows(b'{"n":42}\n') + framing.event("done", done)).decode()


def _in_database(described: Description) -> Description:
    """Add what all routes with a token have in common: they are about one database, and the alias can forward them."""
    return replace(
        described,
        parameters=(*described.parameters, _DATABASE),
        errors=(*described.errors, "not_found", "data_plane_unavailable"),
    )


_JSON_QUERY = _in_database(
    Description(
        answers.QueryAnswer,
        failure=answers.QueryFailure,
        body=QueryRequest,
        parameters=(_IDEMPOTENCY_KEY, _CONSISTENCY, _POSITION),
        errors=(*_ENGINE_SAID, *_OF_SQL, *_ONCE, "not_acceptable"),
        also=tuple((format.value, _stream(FRAMINGS[format])) for format in StreamFormat),
        headers=("Idempotency-Replayed", *_READ_FROM),
        text=_STREAM_TEXT,
        example={"sql": "select $1::int + 1 as n", "params": [41]},
    )
)
_TEXT_QUERY = replace(_JSON_QUERY, body="text/plain", example="select 41 + 1 as n")
_TRANSACTION = _in_database(
    Description(
        answers.TransactionAnswer,
        failure=answers.TransactionFailure,
        body=TransactionRequest,
        parameters=(_IDEMPOTENCY_KEY, _TRANSACTION_ID, _CONSISTENCY, _POSITION),
        errors=(*_ENGINE_SAID, *_OF_SQL, *_ONCE, "transaction_id_used", "transaction_aborted"),
        headers=("Idempotency-Replayed", *_READ_FROM),
        example={"statements": ["create table t (n int)", {"sql": "insert into t values ($1)", "params": [42]}]},
    )
)
_NEON_HEADERS = (
    Parameter(
        "Neon-Connection-String",
        {"type": "string", "pattern": "^postgres(ql)?://([a-z]+(:[A-Za-z0-9_]+)?@)?[a-z0-9.]+/[a-z0-9_-]*$"},
        "`postgresql://any:API_KEY@HOST/DATABASE`: the key, where there is no token, and the database.",
        "header",
    ),
    Parameter("Neon-Raw-Text-Output", {"enum": ["true", "false"]}, "Every value as the engine's text.", "header"),
    Parameter("Neon-Array-Mode", {"enum": ["true", "false"]}, "Rows as arrays.", "header"),
    Parameter(
        "Neon-Batch-Isolation-Level",
        {"enum": ["ReadUncommitted", "ReadCommitted", "RepeatableRead", "Serializable"]},
        "Of `queries`. Whatever it is, they run at SERIALIZABLE, which the answer says.",
        "header",
    ),
    Parameter("Neon-Batch-Read-Only", {"enum": ["true", "false"]}, "Of `queries`: they only read.", "header"),
    Parameter("Neon-Batch-Deferrable", {"enum": ["true", "false"]}, "Of `queries`; it changes nothing.", "header"),
)
_SQL = _in_database(
    Description(
        neon.SqlResult,
        body=neon.SqlRequest,
        parameters=(*_NEON_HEADERS, _IDEMPOTENCY_KEY, _CONSISTENCY, _POSITION),
        errors=(*_ENGINE_SAID, *_OF_SQL, *_ONCE, "not_acceptable"),
        own=OwnProtocol(neon.SqlResults, neon.SqlFailure, dict.fromkeys(AS_400, STATUS), has_token=True),
        headers=(
            "Idempotency-Replayed",
            *_READ_FROM,
            "Neon-Batch-Isolation-Level",
            "Neon-Batch-Read-Only",
            "Neon-Batch-Deferrable",
        ),
        text="One statement as `query`, or several as `queries`, which run as one transaction.",
        example={"query": "select $1::int + 1 as n", "params": ["41"]},
    )
)
_OPEN = ("transaction_in_use", "out_of_sequence", "transaction_expired", "transaction_aborted", "wrong_state")
_BEGIN = _in_database(
    Description(
        answers.OpenAnswer,
        failure=answers.QueryFailure,
        body=BeginRequest,
        errors=(*_ENGINE_SAID, *_OF_SQL),
        headers=("Tuplegate-Position",),
        status=201,
        example={"statement": {"sql": "select $1::int + 1 as n", "params": [41]}},
    )
)
_INNER_QUERY = _in_database(
    Description(
        answers.InnerAnswer,
        failure=answers.InnerFailure,
        body=InnerQueryRequest,
        errors=(*_ENGINE_SAID, *_OF_SQL, *_OPEN, "not_acceptable"),
        also=tuple((format.value, _stream(FRAMINGS[format])) for format in StreamFormat),
        headers=("Tuplegate-Position", "Tuplegate-Replayed"),
        text=_STREAM_TEXT,
        example={"sql": "select 1 as n", "sequence": 1},
    )
)
_COMMIT = _in_database(
    Description(
        answers.TransactionAnswer,
        failure=answers.TransactionFailure,
        body=CommitRequest,
        errors=(*_ENGINE_SAID, *_OF_SQL, *_OPEN),
        headers=("Tuplegate-Position", "Tuplegate-Replayed"),
        example={"sequence": 2},
    )
)
_ROLLBACK = _in_database(Description(answers.TransactionState, errors=_OPEN))
_OUTCOME = _in_database(
    Description(answers.TransactionState, errors=("sql_error", "timeout"), headers=("Tuplegate-Position",))
)
_WIRE = Description(
    status=101,
    errors=("upgrade_required", "forbidden", "data_plane_unavailable"),
    text=(
        "A WebSocket with binary messages that carry PostgreSQL's wire protocol, cut into frames in any way. The"
        " password is the API key, asked for in clear text; `database` is the database, `user` says nothing."
    ),
)
_RESET = _in_database(Description(answers.ResetAnswer, errors=("delete_protected",)))
_TABLES = _in_database(Description(answers.TablesAnswer, errors=_ENGINE_SAID, headers=("Tuplegate-Position",)))
_CAPABILITIES = _in_database(Description(answers.CapabilitiesAnswer, errors=_ENGINE_SAID))
_PROBE = _in_database(Description(answers.ProbeAnswer, errors=_ENGINE_SAID))
_BENCH = _in_database(
    Description(
        answers.BenchAnswer,
        parameters=(
            Parameter("workload", {"enum": list(WORKLOADS), "default": "point_read"}, "What is measured."),
            Parameter("seconds", {"type": "integer", "minimum": 1, "maximum": SECONDS_MAX}, "For how long."),
            Parameter(
                "concurrency", {"type": "integer", "minimum": 1, "maximum": CONCURRENCY_MAX}, "How many at once."
            ),
        ),
        errors=(*_ENGINE_SAID, "already_running"),
    )
)
_STORAGE = _in_database(
    Description(
        answers.StorageAnswer,
        parameters=(
            Parameter("bytes", {"type": "integer", "minimum": 1, "maximum": BYTES_MAX}, "The size of the payload."),
        ),
        errors=(*_ENGINE_SAID, "already_running", "storage_mismatch"),
    )
)
