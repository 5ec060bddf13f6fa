"""A connection: the transaction that it has open, if any, and statements in it or alone."""

import os
import secrets
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from tuplegate.client.addresses import DEFAULT_URL, check_url
from tuplegate.client.asynchronous.delivery import send_keyed, send_keyed_if_possible, send_read
from tuplegate.client.asynchronous.stream import AsyncRowStream
from tuplegate.client.asynchronous.transport import AsyncTransport, Call
from tuplegate.client.errors import (
    BadRequest,
    ConnectionFailed,
    OutcomeUnknown,
    SqlError,
    TransactionRollback,
    TuplegateError,
)
from tuplegate.client.retries import Repeat
from tuplegate.dbapi import errors
from tuplegate.dbapi.addresses import read_address
from tuplegate.dbapi.asynchronous.cursor import AsyncCursor
from tuplegate.dbapi.asynchronous.transaction import AsyncOpenTransaction
from tuplegate.dbapi.bodies import split_lists, write_batch, write_begin, write_query, write_repeated
from tuplegate.dbapi.errors import InterfaceError, InternalError, ProgrammingError, make_error
from tuplegate.dbapi.locks import AsyncLock
from tuplegate.dbapi.results import Result, read_result

BATCH_MAX = 1000
"""Statements, or lists of parameters, that one request may carry."""
_BATCH_LENGTH_MAX = 4 * 2**20
"""Characters of the lists of parameters in one request, unless one of them has more. A request may have 10 MiB."""
_FAILED = "25P02"


class AsyncConnection:
    """A connection of PEP 249. Threads may share it; a request of one waits for that of another.

    The first statement begins a transaction, in one request with itself. After a failed statement the transaction is
    failed until `rollback`, or until ROLLBACK TO a savepoint. With `autocommit` every statement is a transaction of its
    own. `read_only` is for transactions that begin after it is set.
    """

    Warning = errors.Warning
    Error = errors.Error
    InterfaceError = errors.InterfaceError
    DatabaseError = errors.DatabaseError
    DataError = errors.DataError
    OperationalError = errors.OperationalError
    IntegrityError = errors.IntegrityError
    InternalError = errors.InternalError
    ProgrammingError = errors.ProgrammingError
    NotSupportedError = errors.NotSupportedError

    def __init__(
        self,
        url: str,
        api_key: str,
        *,
        database: str | None,
        timeout_s: float,
        retries: int,
        ca_file: str | None,
        autocommit: bool,
        read_only: bool,
        transaction_timeout_s: float | None,
        idle_timeout_s: float | None,
    ) -> None:
        self._url = url
        self._transport = AsyncTransport(api_key, secure=url.startswith("https:"), ca_file=ca_file, retries=retries)
        self._headers = {} if database is None else {"Tuplegate-Database": database}
        self._timeout_s = timeout_s
        self._autocommit = autocommit
        self.read_only = read_only
        self._life_ms = _milliseconds(transaction_timeout_s)
        self._idle_ms = _milliseconds(idle_timeout_s)
        self._lock = AsyncLock()
        self._transaction: AsyncOpenTransaction | None = None
        self._is_doomed = False
        self._is_closed = False

    async def __aenter__(self) -> "AsyncConnection":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or roll back after an exception, and close."""
        try:
            if not self._is_closed and kind is None:
                await self.commit()
        finally:
            await self.close()

    # -- PEP 249 ------------------------------------------------------------------------------------------------

    def cursor(self, *, stream: bool = False) -> AsyncCursor:
        """Return a new cursor. With `stream` it reads large results bit by bit, `arraysize` rows at a time."""
        self._check_open()
        return AsyncCursor(self, stream)

    async def commit(self) -> None:
        """Commit what has been done since the last commit or rollback. Without a transaction it does nothing.

        A failed transaction cannot be committed: it is rolled back, and InternalError is raised.
        """
        self._check_open()
        async with self._lock:
            transaction, doomed = self._end()
            if doomed:
                await _try_to_abort(transaction)
                raise _explain_failed("nothing was committed")
            if transaction is None:
                return
            try:
                await transaction.commit()
            except TuplegateError as error:
                made = make_error(error)
                if isinstance(error, ConnectionFailed | OutcomeUnknown):
                    made.transaction_id = transaction.id
                raise made from error

    async def rollback(self) -> None:
        """Undo what has been done since the last commit or rollback."""
        self._check_open()
        async with self._lock:
            transaction, doomed = self._end()
            if transaction is None:
                return
            try:
                # Where a statement was left, it may still be running.
                await (transaction.abort() if doomed else transaction.roll_back())
            except TuplegateError as error:
                raise make_error(error) from error

    async def close(self) -> None:
        """Roll back, and close the connection for good."""
        if self._is_closed:
            return
        self._is_closed = True
        async with self._lock:
            transaction, _ = self._end()
            await _try_to_abort(transaction)
            await self._transport.aclose()

    # -- beyond PEP 249 -----------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._is_closed

    @property
    def in_transaction(self) -> bool:
        return self._transaction is not None or self._is_doomed

    @property
    def autocommit(self) -> bool:
        return self._autocommit

    @autocommit.setter
    def autocommit(self, wanted: bool) -> None:
        if bool(wanted) != self._autocommit and self.in_transaction:
            raise ProgrammingError("autocommit cannot be changed inside a transaction: commit or roll back first")
        self._autocommit = bool(wanted)

    async def ping(self) -> None:
        """Ask the service whether it and its engine answer, outside of any transaction."""
        self._check_open()
        try:
            await self._run_alone('"sql":"select 1"', is_read=True)
        except TuplegateError as error:
            raise make_error(error) from error

    # -- for cursors --------------------------------------------------------------------------------------------

    async def _run(self, statement: str, is_read: bool) -> Result:
        """Run a statement: in the transaction, which it begins if there is none, or alone with `autocommit`."""
        self._check_open()
        async with self._lock:
            if not self._autocommit or self.in_transaction:
                return await self._run_inside(statement)
            try:
                return read_result(await self._run_alone(statement, is_read))
            except TuplegateError as error:
                raise make_error(error) from error

    async def _run_many(self, sql: str, lists: Sequence[str]) -> int:
        """Run a statement with each list of parameters, as one unit, and return the number of affected rows."""
        self._check_open()
        parts = split_lists(lists, BATCH_MAX, _BATCH_LENGTH_MAX)
        async with self._lock:
            if self._autocommit and not self.in_transaction:
                if len(parts) == 1:
                    return await self._run_batch([f'"sql":{sql},"params":{params}' for params in lists])
                try:
                    affected = await self._run_parts(sql, parts)
                except BaseException:
                    await _try_to_abort(self._end()[0])
                    raise
                transaction, _ = self._end()
                assert transaction is not None
                try:
                    await transaction.commit()
                except TuplegateError as error:
                    raise make_error(error) from error
                return affected
            return await self._run_parts(sql, parts)

    async def _run_parts(self, sql: str, parts: Sequence[Sequence[str]]) -> int:
        return sum([(await self._run_inside(write_repeated(sql, lists))).rowcount for lists in parts])

    async def _run_batch(self, statements: Sequence[str]) -> int:
        body = write_batch(statements, int(self._timeout_s * 1000), self.read_only)
        call = Call("POST", f"{self._url}/v1/transaction", body, self._headers)
        course = self._transport.start_course(self._timeout_s)
        try:
            answer = await send_keyed(self._transport, call, secrets.token_hex(16), course)
        except TuplegateError as error:
            raise make_error(error) from error
        return sum(result["affected_rows"] or len(result["rows"]) for result in answer.body["results"])

    async def _run_alone(self, statement: str, is_read: bool) -> Mapping[str, Any]:
        body = write_query(statement, int(self._timeout_s * 1000), None)
        call = Call("POST", f"{self._url}/v1/query", body, self._headers)
        course = self._transport.start_course(self._timeout_s)
        if not is_read and not self.read_only:
            return (await send_keyed_if_possible(self._transport, call, course)).body
        only = write_batch([statement], int(self._timeout_s * 1000), read_only=True)
        again = Call("POST", f"{self._url}/v1/transaction", only, self._headers, Repeat.HARMLESS)
        if not self.read_only:
            return (await send_read(self._transport, call, again, course)).body
        [result] = (await self._transport.call(again, course)).body["results"]
        found: Mapping[str, Any] = result
        return found

    async def _run_inside(self, statement: str) -> Result:
        if self._is_doomed:
            raise _explain_failed("roll back first")
        # Until the answer says otherwise, also where waiting for it is cancelled.
        self._is_doomed = True
        transaction = self._transaction
        try:
            body = await (self._begin(statement) if transaction is None else transaction.query(statement))
        except TuplegateError as error:
            self._is_doomed = isinstance(error, SqlError) if transaction is None else not _leaves_open(error)
            raise make_error(error) from error
        result = read_result(body)
        self._is_doomed = False
        return result

    async def _begin(self, statement: str) -> Mapping[str, Any]:
        """Begin a transaction with its first statement, and return the result of that.

        Where the answer is lost it is begun again: what the service may have begun is rolled back when it is idle.
        """
        body = write_begin(statement, self.read_only, self._life_ms, self._idle_ms)
        call = Call("POST", f"{self._url}/v1/transaction/begin", body, self._headers, Repeat.HARMLESS)
        answer = await self._transport.call(call, self._transport.start_course(self._timeout_s))
        id = answer.body["transaction_id"]
        self._transaction = AsyncOpenTransaction(self._transport, self._url, self._headers, self._timeout_s, id)
        result: Mapping[str, Any] = answer.body["result"]
        return result

    def _stream(self, statement: str) -> AsyncRowStream:
        """Return the rows of a statement as they arrive, outside of any transaction."""
        self._check_open()
        body = write_query(statement, int(self._timeout_s * 1000), None)
        headers = {**self._headers, "Accept": "application/x-ndjson"}
        return AsyncRowStream(self._transport, Call("POST", f"{self._url}/v1/query", body, headers), self._timeout_s)

    def _end(self) -> tuple[AsyncOpenTransaction | None, bool]:
        """Forget the transaction, and return it, with whether it can only be rolled back."""
        transaction, doomed = self._transaction, self._is_doomed
        self._transaction, self._is_doomed = None, False
        return transaction, doomed

    def _check_open(self) -> None:
        if self._is_closed:
            raise InterfaceError("the connection is closed")


async def connect_async(
    url: str | None = None,
    *,
    api_key: str | None = None,
    database: str | None = None,
    timeout_s: float | None = None,
    retries: int | None = None,
    ca_file: str | None = None,
    autocommit: bool = False,
    read_only: bool = False,
    transaction_timeout_s: float | None = None,
    idle_timeout_s: float | None = None,
) -> AsyncConnection:
    """Return a connection to `tuplegate://KEY@host:port/database`, or to `http://host:port` with `api_key`.

    If not given, they come from `TUPLEGATE_URL` and `TUPLEGATE_API_KEY`. What is given beside the address goes before
    what is in it. `timeout_s` is for one statement, including retries. `transaction_timeout_s` and `idle_timeout_s` say
    for how long a transaction may stay open, and wait for its next statement; the service has a default and a maximum.
    Nothing is sent yet.
    """
    try:
        address = read_address(url or os.environ.get("TUPLEGATE_URL") or DEFAULT_URL)
        service = check_url(address.url)
    except ValueError as exc:
        raise InterfaceError(str(exc)) from exc
    key = api_key or address.api_key or os.environ.get("TUPLEGATE_API_KEY") or ""
    if not key:
        raise InterfaceError("there is no API key: give it in the address, as api_key, or set TUPLEGATE_API_KEY")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise InterfaceError("the API key has characters that no key has")
    return AsyncConnection(
        service,
        key,
        database=database or address.database,
        timeout_s=_first(timeout_s, address.timeout_s, 60.0),
        retries=int(_first(retries, address.retries, 5)),
        ca_file=ca_file or address.ca_file,
        autocommit=autocommit,
        read_only=read_only,
        transaction_timeout_s=transaction_timeout_s,
        idle_timeout_s=idle_timeout_s,
    )


def _first(given: float | None, addressed: float | None, default: float) -> float:
    if given is not None:
        return given
    return default if addressed is None else addressed


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else max(int(seconds * 1000), 1)


def _leaves_open(error: TuplegateError) -> bool:
    """Return whether the transaction can go on, at least from a savepoint: the statement was refused, and no more."""
    if isinstance(error, TransactionRollback):
        return False
    return isinstance(error, SqlError) or (isinstance(error, BadRequest) and error.status == 400)


def _explain_failed(what: str) -> InternalError:
    error = InternalError(f"the transaction has failed: {what}")
    error.sqlstate = _FAILED
    return error


async def _try_to_abort(transaction: AsyncOpenTransaction | None) -> None:
    if transaction is None:
        return
    try:
        await transaction.abort()
    except TuplegateError:
        pass  # the service rolls back what it hears nothing of
