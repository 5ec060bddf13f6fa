"""A connection: the transaction that it has open, if any, and statements in it or alone."""

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from tuplegate.client.asynchronous.delivery import send_keyed, send_keyed_if_possible, send_read
from tuplegate.client.asynchronous.open_transaction import AsyncOpenTransaction
from tuplegate.client.asynchronous.stream import AsyncRowStream
from tuplegate.client.asynchronous.transport import AsyncTransport
from tuplegate.client.errors import ConnectionFailed, OutcomeUnknown, SqlError, TuplegateError
from tuplegate.client.requests import Call, OpenOptions, write_commit_body
from tuplegate.client.retries import Repeat
from tuplegate.dbapi.addresses import Address, choose_address
from tuplegate.dbapi.asynchronous.cursor import AsyncCursor
from tuplegate.dbapi.bodies import split_lists, write_batch, write_begin, write_query, write_repeated
from tuplegate.dbapi.connection_state import ConnectionState
from tuplegate.dbapi.errors import explain_failed, leaves_open, make_error
from tuplegate.dbapi.locks import AsyncLock
from tuplegate.dbapi.results import Result, read_result

BATCH_MAX = 1000
"""Statements, or lists of parameters, that one request may carry."""
_BATCH_LENGTH_MAX = 4 * 2**20
"""Characters of the lists of parameters in one request, unless one of them has more. A request may have 10 MiB."""


class AsyncConnection(ConnectionState):
    """A connection of PEP 249. Threads may share it; a request of one waits for that of another.

    The first statement begins a transaction, in one request with itself. After a failed statement the transaction is
    failed until `rollback`, or until ROLLBACK TO a savepoint. With `autocommit` every statement is a transaction of its
    own. `read_only` is for transactions that begin after it is set.
    """

    _transaction: AsyncOpenTransaction | None = None

    def __init__(
        self, address: Address, autocommit: bool, read_only: bool, life_s: float | None, idle_s: float | None
    ) -> None:
        super().__init__(address, autocommit, read_only, life_s, idle_s)
        self._transport = AsyncTransport(
            address.api_key, secure=self._url.startswith("https:"), ca_file=address.ca_file, retries=address.retries
        )
        self._lock = AsyncLock()

    async def __aenter__(self) -> "AsyncConnection":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
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
                await self._try_to_abort(transaction)
                raise explain_failed("nothing was committed")
            if transaction is not None:
                await self._commit(transaction)

    async def rollback(self) -> None:
        """Undo what has been done since the last commit or rollback."""
        self._check_open()
        async with self._lock:
            transaction, doomed = self._end()
            if transaction is None:
                return
            try:
                # Where a statement was left, it may still be running.
                await transaction._tell("abort" if doomed else "rollback", self._timeout_s)
            except TuplegateError as error:
                raise make_error(error) from error

    async def close(self) -> None:
        """Roll back, and close the connection for good."""
        if self._is_closed:
            return
        self._is_closed = True
        async with self._lock:
            await self._try_to_abort(self._end()[0])
            await self._transport.aclose()

    # -- beyond PEP 249 -----------------------------------------------------------------------------------------

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
                    await self._try_to_abort(self._end()[0])
                    raise
                transaction, _ = self._end()
                assert transaction is not None
                await self._commit(transaction)
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
        body = write_query(statement, int(self._timeout_s * 1000))
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
            raise explain_failed("roll back first")
        # Until the answer says otherwise, also where waiting for it is cancelled.
        self._is_doomed = True
        is_first = self._transaction is None
        try:
            body = await (self._begin(statement) if is_first else self._go_on(statement))
        except TuplegateError as error:
            self._is_doomed = isinstance(error, SqlError) if is_first else not leaves_open(error)
            raise make_error(error) from error
        result = read_result(body)
        self._is_doomed = False
        return result

    async def _begin(self, statement: str) -> Mapping[str, Any]:
        """Begin a transaction with its first statement, and return the result of that.

        Where the answer is lost it is begun again: what the service may have begun is rolled back when it is idle.
        """
        timeout_s = self._timeout_s
        options = OpenOptions(self._url, self._headers, self.read_only, timeout_s, None, timeout_s)
        transaction = AsyncOpenTransaction(self._transport, options)
        body = write_begin(statement, self.read_only, self._life_ms, self._idle_ms)
        result: Mapping[str, Any] = (await transaction._begin_with(body, timeout_s)).body["result"]
        self._transaction = transaction
        return result

    async def _go_on(self, statement: str) -> Mapping[str, Any]:
        """Run a statement in the transaction."""
        transaction = self._transaction
        assert transaction is not None
        body = write_query(statement, int(self._timeout_s * 1000))
        answer = await transaction._send("query", body, self._timeout_s)
        transaction._progress.note_answer(answer.body)
        return answer.body

    async def _commit(self, transaction: AsyncOpenTransaction) -> None:
        try:
            await transaction._send("commit", write_commit_body(None, self._timeout_s), self._timeout_s)
        except TuplegateError as error:
            made = make_error(error)
            if isinstance(error, ConnectionFailed | OutcomeUnknown):
                made.transaction_id = transaction.id
            raise made from error

    async def _try_to_abort(self, transaction: AsyncOpenTransaction | None) -> None:
        """Roll back, also where a statement is still running or everything is over already."""
        if transaction is not None:
            with suppress(TuplegateError):  # the service rolls back what it hears nothing of
                await transaction._tell("abort", self._timeout_s)

    def _stream(self, statement: str) -> AsyncRowStream:
        """Return the rows of a statement as they arrive, outside of any transaction."""
        self._check_open()
        body = write_query(statement, int(self._timeout_s * 1000))
        headers = {**self._headers, "Accept": "application/x-ndjson"}
        return AsyncRowStream(self._transport, Call("POST", f"{self._url}/v1/query", body, headers), self._timeout_s)

    def _end(self) -> tuple[AsyncOpenTransaction | None, bool]:
        """Forget the transaction, and return it, with whether it can only be rolled back."""
        transaction, doomed = self._transaction, self._is_doomed
        self._transaction, self._is_doomed = None, False
        return transaction, doomed


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
    address = choose_address(
        url, api_key=api_key, database=database, timeout_s=timeout_s, retries=retries, ca_file=ca_file
    )
    return AsyncConnection(address, autocommit, read_only, transaction_timeout_s, idle_timeout_s)
