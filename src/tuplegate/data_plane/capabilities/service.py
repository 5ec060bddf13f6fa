"""Exercises: features of the service beyond SQL, used through the port as a request would.

None of them leaves anything behind at any moment: their objects vanish with the transaction that made them, or with the
connection.
"""

import secrets
from time import perf_counter_ns

import msgspec

from tuplegate.data_plane.capabilities.probes import Exercise, Observation, Probed, Rows
from tuplegate.engine import port

_BYTES_MAX = 2**20
_TIMEOUT_MS = 10_000
_SOON_MS = 50
_ARRAYS = port.Shape("arrays")
_STREAMED = 20_000

_SCHEMA = "tuplegate_scratch_transaction"
_TWO_PHASE = ["create schema {schema}", "create table {schema}.t as select 1 as a", "drop schema {schema} cascade"]
_ATOMIC = ["create schema {schema}", "select 1 / 0"]
_STREAM = f"select g from generate_series(1, {_STREAMED}) as g"
_SLEEP = "select pg_sleep(3600)"
_PARAMETERS = "select $1::int + $2::int, $3::text, $4::int[]"
_READ = "create temporary table t (a int)"


class _Watch:
    """Times one statement, from when this was made."""

    def __init__(self, sql: str) -> None:
        self._sql = sql
        self._started = perf_counter_ns()

    def saw(self, expected: bool, rows: Rows | None = None, failure: port.StatementFailed | None = None) -> Observation:
        microseconds = (perf_counter_ns() - self._started) // 1000
        if failure is None:
            return Observation(self._sql, rows, None, None, expected, microseconds)
        return Observation(self._sql, None, failure.message, failure.sqlstate, expected, microseconds)


def _bounds(timeout_ms: int = _TIMEOUT_MS) -> port.Bounds:
    return port.Bounds(timeout_ms, None, _BYTES_MAX)


def _target(database: str, access: port.Access = port.Access.WRITE) -> port.Target:
    return port.Target(database, access)


def _statement(sql: str, params: list[msgspec.Raw] | None = None) -> port.Statement:
    return port.Statement(sql, sql.split()[0], params, shape=_ARRAYS)


def _statements(texts: list[str]) -> list[port.Statement]:
    schema = f"{_SCHEMA}_{secrets.token_hex(8)}"
    return [_statement(text.format(schema=schema)) for text in texts]


async def _transaction(probed: Probed, database: str, statements: list[port.Statement]) -> port.TransactionResult:
    return await probed.transactions.transaction(_target(database), statements, _bounds())


async def two_phase(probed: Probed, database: str) -> list[Observation]:
    statements = _statements(_TWO_PHASE)
    watch = _Watch("; ".join(statement.sql for statement in statements))
    try:
        done = await _transaction(probed, database, statements)
    except port.StatementFailed as failure:
        return [watch.saw(False, failure=failure)]
    return [watch.saw(done.commit is port.Commit.TWO_PHASE, ((done.commit.value,),))]


async def atomic(probed: Probed, database: str) -> list[Observation]:
    statements = _statements(_ATOMIC)
    watch = _Watch("; ".join(statement.sql for statement in statements))
    try:
        await _transaction(probed, database, statements)
    except port.StatementFailed as failure:
        refused = watch.saw(failure.sqlstate == "22012", failure=failure)
    else:
        refused = watch.saw(False)
    name = statements[0].sql.split()[-1]
    sql = f"select count(*) from pg_catalog.pg_namespace where nspname = '{name}'"
    watch = _Watch(sql)
    left = await probed.queries.query(_target(database), _statement(sql), _bounds())
    return [refused, watch.saw(left.rows == b"[[0]]", _rows(left))]


async def streaming(probed: Probed, database: str) -> list[Observation]:
    """Rows must come in more than one piece: then the first has left before the last is there."""
    watch = _Watch(_STREAM)
    blocks = 0
    try:
        async with probed.queries.stream(_target(database), _statement(_STREAM), _bounds()) as rows:
            async for _ in rows.lines():
                blocks += 1
    except port.StatementFailed as failure:
        return [watch.saw(False, failure=failure)]
    count = rows.sum_up().row_count
    return [watch.saw(blocks > 1 and count == _STREAMED, ((f"{count} rows in {blocks} pieces",),))]


async def cancellation(probed: Probed, database: str) -> list[Observation]:
    watch = _Watch(_SLEEP)
    try:
        await probed.queries.query(_target(database), _statement(_SLEEP), _bounds(_SOON_MS))
    except port.TimedOut as failure:
        return [watch.saw(True, failure=failure)]
    except port.StatementFailed as failure:
        return [watch.saw(False, failure=failure)]
    return [watch.saw(False)]


async def parameters(probed: Probed, database: str) -> list[Observation]:
    watch = _Watch(_PARAMETERS)
    params = [msgspec.Raw(text) for text in (b"2", b"3", b'"x"', b"[1,2]")]
    try:
        result = await probed.queries.query(_target(database), _statement(_PARAMETERS, params), _bounds())
    except port.StatementFailed as failure:
        return [watch.saw(False, failure=failure)]
    return [watch.saw(result.rows == b'[[5,"x",[1,2]]]', _rows(result))]


async def read_access(probed: Probed, database: str) -> list[Observation]:
    watch = _Watch(_READ)
    try:
        await probed.queries.query(_target(database, port.Access.READ), _statement(_READ), _bounds())
    except port.StatementFailed as failure:
        return [watch.saw(failure.sqlstate in ("25006", "42501"), failure=failure)]
    return [watch.saw(False)]


def _rows(result: port.Result) -> Rows:
    return tuple(tuple(str(value) for value in row) for row in msgspec.json.decode(result.rows))


EXERCISES = (
    Exercise("two_phase_commit", "service", "Transactions are committed in two phases", _TWO_PHASE, two_phase),
    Exercise("atomic", "service", "A transaction that fails leaves nothing", _ATOMIC, atomic),
    Exercise("streaming", "service", "Rows leave while more are made", [_STREAM], streaming),
    Exercise("cancellation", "service", "A statement over its time is cancelled", [_SLEEP], cancellation),
    Exercise("parameters", "service", "Parameters of several types", [_PARAMETERS], parameters),
    Exercise("read_access", "service", "Read access cannot write", [_READ], read_access),
)
