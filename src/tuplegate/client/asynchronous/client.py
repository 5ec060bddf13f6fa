"""The client of the data plane, with calls about the caller's own session and organization."""

import asyncio
import math
import random
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, TypeVar, overload
from urllib.parse import quote, urlencode

from tuplegate.client import requests
from tuplegate.client.answers import Answer, read_rows, read_transaction
from tuplegate.client.asynchronous import control
from tuplegate.client.asynchronous.delivery import send_keyed, send_keyed_if_possible, send_read, send_unkeyed
from tuplegate.client.asynchronous.open_transaction import AsyncOpenTransaction
from tuplegate.client.asynchronous.stream import AsyncRowStream
from tuplegate.client.asynchronous.transport import AsyncTransport
from tuplegate.client.base import ClientBase
from tuplegate.client.errors import OutcomeUnknown, TuplegateError
from tuplegate.client.frames import read_frame, write_insert
from tuplegate.client.functions import AsyncFunction
from tuplegate.client.positions import Consistency
from tuplegate.client.progress import can_run_again
from tuplegate.client.records import ConsoleCode, Organization, Session, Table, Transaction, make_record, make_records
from tuplegate.client.retries import AnswerLost, Course, Repeat
from tuplegate.client.rows import Rows
from tuplegate.client.statements import seems_to_read

_R = TypeVar("_R")


# size: a client's calls are its methods, and each is short.
class AsyncClient(ClientBase):
    """A client of a Tuplegate service. Use it with `async with`, or call `aclose()` when done.

    If not given, `url` and `api_key` come from `TUPLEGATE_URL` and `TUPLEGATE_API_KEY`, and `control_url` from
    `TUPLEGATE_CONTROL_URL` or from the service itself. `timeout_s` is for a whole call, including retries. With
    `consistency="snapshot"` a replica may answer reads; they show at least what this client has written and seen. By
    default, the API key decides.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        control_url: str | None = None,
        database: str | None = None,
        timeout_s: float = 60.0,
        retries: int = 5,
        ca_file: str | None = None,
        consistency: Consistency | None = None,
    ) -> None:
        super().__init__(url, api_key, control_url, database, timeout_s, consistency)
        self._transport = AsyncTransport(self._api_key, secure=self._is_secure, ca_file=ca_file, retries=retries)
        self._control = control.AsyncPlane(self._transport, self.url, self._given_control_url, timeout_s)
        self.databases = control.AsyncDatabases(self._control)
        self.keys = control.AsyncKeys(self._control)
        self.sessions = control.AsyncSessions(self._control)
        self.organizations = control.AsyncOrganizations(self._control)
        self.engines = control.AsyncEngines(self._control)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    @property
    def control_url(self) -> str | None:
        """The address of the control plane; None if it was not given and is not found out yet."""
        return self._control.known

    async def find_control_url(self) -> str:
        """Return the address of the control plane. If it was not given, ask the service once."""
        return await self._control.find()

    async def aclose(self) -> None:
        """Close all connections. Statements that are still running are cancelled."""
        await self._transport.aclose()

    # -- statements ---------------------------------------------------------------------------------------------

    async def query(
        self,
        sql: str,
        params: Sequence[Any] = (),
        *,
        timeout_s: float | None = None,
        max_rows: int | None = None,
        idempotent: bool = True,
        idempotency_key: str | None = None,
        convert: bool = True,
        consistency: Consistency | None = None,
    ) -> Rows:
        """Run one statement. `params` fill `$1`, `$2`, …

        After a lost answer the call is repeated, and never writes twice. `idempotent=False` sends a write without an
        Idempotency-Key: it is faster, and a lost answer raises OutcomeUnknown. `convert=False` leaves values as they
        are in JSON; numbers with a fraction become `Number`, a text of their digits. `consistency` is for this call
        only.
        """
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        course = self._transport.start_course(timeout_s)
        sql = requests.drop_stream_hint(sql)
        body = requests.write_query_body(sql, params, timeout_s, max_rows, convert)
        call = requests.Call(
            "POST",
            f"{self.url}/v1/query",
            body,
            self._read_headers(self._transport.positions, consistency),
            exact=not convert,
        )
        if idempotency_key is not None:
            answer = await send_keyed(self._transport, call, idempotency_key, course)
        elif seems_to_read(sql):
            body = requests.write_transaction_body([(sql, params)], timeout_s, convert, read_only=True)
            again = replace(call, url=f"{self.url}/v1/transaction", body=body, repeat=Repeat.HARMLESS)
            answer = await send_read(self._transport, call, again, course)
        elif idempotent:
            answer = await send_keyed_if_possible(self._transport, call, course)
        else:
            answer = await send_unkeyed(self._transport, call, course)
        return read_rows(answer, max_rows, convert)

    def stream(
        self,
        sql: str,
        params: Sequence[Any] = (),
        *,
        timeout_s: float | None = None,
        max_rows: int | None = None,
        convert: bool = True,
        consistency: Consistency | None = None,
        export: bool = False,
    ) -> AsyncRowStream:
        """Return the rows of one statement as they arrive, in constant memory. Nothing is repeated once it has been
        sent.

        An `export` only reads, and has a longer time limit; without `timeout_s`, the service's own for exports.
        """
        asked_s = timeout_s if export or timeout_s is not None else self.timeout_s
        headers = {**self._read_headers(self._transport.positions, consistency), "Accept": "application/x-ndjson"}
        body = requests.write_query_body(sql, params, asked_s, max_rows, convert, export=export)
        call = requests.Call("POST", f"{self.url}/v1/query", body, headers, exact=not convert)
        return AsyncRowStream(self._transport, call, self.timeout_s if timeout_s is None else timeout_s)

    @overload
    def transaction(
        self, *, read_only: bool = False, timeout_s: float | None = None, idle_timeout_s: float | None = None
    ) -> AsyncOpenTransaction: ...

    @overload
    async def transaction(
        self,
        statements: Sequence[requests.Statement],
        *,
        read_only: bool = False,
        timeout_s: float | None = None,
        idempotency_key: str | None = None,
        transaction_id: str | None = None,
        consistency: Consistency | None = None,
    ) -> Transaction: ...

    def transaction(self, statements: Sequence[requests.Statement] | None = None, **options: Any) -> Any:
        """Run statements as one atomic unit; without statements, return a transaction to run them in one by one.

        With statements: each is SQL, or a pair of SQL and parameters. After a lost answer the call is repeated, and
        never writes twice. With your own `transaction_id` it is not repeated: it raises OutcomeUnknown, and
        `transaction_state` tells the outcome.

        Without: use it with `async with`. The end of the block commits, and an exception rolls back. Nothing is sent
        before its first statement. `timeout_s` is for the whole transaction; the service rolls it back after
        `idle_timeout_s` without a statement.
        """
        return self._open(**options) if statements is None else self._run_statements(statements, **options)

    def _open(
        self, *, read_only: bool = False, timeout_s: float | None = None, idle_timeout_s: float | None = None
    ) -> AsyncOpenTransaction:
        # It is bound to the key and the database of this moment.
        headers = {"Authorization": f"Bearer {self._transport.token}", **self._headers}
        life_s = self.timeout_s if timeout_s is None else timeout_s
        options = requests.OpenOptions(self.url, headers, read_only, life_s, idle_timeout_s, self.timeout_s)
        return AsyncOpenTransaction(self._transport, options)

    async def run(
        self,
        function: AsyncFunction[AsyncOpenTransaction, _R],
        *,
        attempts: int = 5,
        read_only: bool = False,
        timeout_s: float | None = None,
        idle_timeout_s: float | None = None,
    ) -> _R:
        """Call the function with a transaction, commit, and return what the function returned.

        After a conflict with another transaction all of it is run again in a new one, up to `attempts` times in all and
        with pauses that grow. So the function must do nothing that cannot be done twice, except through the
        transaction.
        """
        if attempts < 1:
            raise ValueError(f"attempts is {attempts}: there is at least 1")
        course = Course(math.inf, attempts - 1)
        while True:
            opened = self._open(read_only=read_only, timeout_s=timeout_s, idle_timeout_s=idle_timeout_s)
            try:
                async with opened:
                    return await function(opened)
            except TuplegateError as error:
                again = can_run_again(error)
                pause_s = course.pause_s(error, monotonic(), random.random()) if again else None  # noqa: S311 - jitter
                if pause_s is None:
                    raise
            await asyncio.sleep(pause_s)

    async def _run_statements(
        self,
        statements: Sequence[requests.Statement],
        *,
        read_only: bool = False,
        timeout_s: float | None = None,
        idempotency_key: str | None = None,
        transaction_id: str | None = None,
        consistency: Consistency | None = None,
    ) -> Transaction:
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        headers, repeat = (
            self._read_headers(self._transport.positions, consistency),
            Repeat.HARMLESS if read_only else Repeat.KEYED,
        )
        if transaction_id is not None:
            if idempotency_key is not None:
                raise ValueError("give transaction_id or idempotency_key, not both")
            headers["Tuplegate-Transaction-Id"] = transaction_id
            repeat = Repeat.NEVER
        elif not read_only or idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key or secrets.token_hex(16)
        body = requests.write_transaction_body(statements, timeout_s, True, read_only=read_only)
        call = requests.Call("POST", f"{self.url}/v1/transaction", body, headers, repeat)
        try:
            answer = await self._transport.call(call, self._transport.start_course(timeout_s))
        except AnswerLost as error:
            if repeat is not Repeat.NEVER:
                raise
            raise OutcomeUnknown(f"{error.message}; {transaction_id} may have been committed") from error
        return read_transaction(answer)

    async def executemany(
        self,
        sql: str,
        params_seq: Iterable[Sequence[Any]],
        *,
        batch_size: int | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Run one statement with each of many lists of parameters, and return the number of affected rows.

        All of it is one transaction. With `batch_size`, each batch is a transaction: you can send more than fits into
        one, and what was committed before a failure stays.
        """
        every = list(params_seq)
        affected = 0
        for start, end in requests.split_batches(len(every), batch_size):
            statements = [(sql, params) for params in every[start:end]]
            affected += (await self.transaction(statements, timeout_s=timeout_s)).affected_rows
        return affected

    async def write_frame(
        self, table: str, frame: Any, *, batch_size: int | None = None, timeout_s: float | None = None
    ) -> int:
        """Insert the rows of a data frame into a table, by column name, and return the number of rows.

        `frame` is a pandas or polars frame, or a pyarrow table; `table` is a name as in SQL. All rows are inserted, or
        none. With `batch_size` they are inserted in batches: the frame can be larger than a request, and what was
        inserted before a failure stays.
        """
        rows = read_frame(frame)
        sql = write_insert(table, rows.names)
        for start, end in requests.split_batches(len(rows), batch_size):
            await self.query(sql, [rows.documents(start, end)], timeout_s=timeout_s)
        return len(rows)

    async def transaction_state(self, transaction_id: str) -> str:
        """Return `open`, `failed`, `committed`, `aborted` or `in_progress`. Raises NotFound for an id that was never
        seen."""
        return str(
            (await self._ask_data_plane("GET", requests.write_path("transaction", transaction_id))).body["state"]
        )

    async def abort_transaction(self, transaction_id: str) -> str:
        """Abort an unfinished or unknown id for good, and return its final state."""
        path = requests.write_path("transaction", transaction_id) + "/abort"
        # Aborting twice is the same as once.
        return str((await self._ask_data_plane("POST", path)).body["state"])

    # -- what there is ------------------------------------------------------------------------------------------

    async def tables(self) -> list[Table]:
        """Return the tables and views of the database, with their columns."""
        return make_records(Table, (await self._ask_data_plane("GET", "/tables")).body["tables"])

    async def capabilities(self) -> dict[str, Any]:
        """Return the abilities of this service and its engine, and the limits in force."""
        return dict((await self._ask_data_plane("GET", "/capabilities")).body)

    async def capability(self, name: str) -> dict[str, Any]:
        """Run one probe now, on the engine."""
        return dict((await self._ask_data_plane("GET", f"/capabilities/{quote(name, safe='')}")).body)

    async def bench(
        self, workload: str = "point_read", *, seconds: int | None = None, concurrency: int | None = None
    ) -> dict[str, Any]:
        """Measure the database for some seconds: operations, operations per second, and percentiles of their times."""
        wanted = urlencode(requests.drop_none(workload=workload, seconds=seconds, concurrency=concurrency))
        call = requests.Call("GET", f"{self.url}/bench?{wanted}", None, self._headers)
        return dict((await self._transport.call(call, self._transport.start_course(self.timeout_s))).body)

    async def health(self) -> dict[str, Any]:
        """Return the health of the service and its engine, even if they are not well."""
        return dict((await self._ask_data_plane("GET", "/health")).body)

    async def _ask_data_plane(self, method: str, path: str) -> Answer:
        call = requests.Call(method, self.url + path, None, self._headers, Repeat.HARMLESS)
        return await self._transport.call(call, self._transport.start_course(self.timeout_s))

    # -- who is asking ------------------------------------------------------------------------------------------

    async def login(
        self, *, scopes: Sequence[str] | None = None, database: str | None = None, expires_in: int | None = None
    ) -> Session:
        """Begin a session of 24 hours, or of `expires_in` seconds. From now on its token is used instead of the key."""
        wishes = requests.drop_none(expires_in=expires_in, scopes=scopes and list(scopes), database=database)
        self._transport.token = self._api_key
        answer = await self._control.send("POST", "/v1/session", wishes)
        self._transport.token = answer["token"]
        return make_record(Session, {**answer["session"], "token": answer["token"]})

    async def console_code(self, *, scopes: Sequence[str] | None = None, database: str | None = None) -> ConsoleCode:
        """Make a code that opens one session in the console, within a minute. It needs the key, not a session."""
        wishes = requests.drop_none(scopes=scopes and list(scopes), database=database)
        return make_record(ConsoleCode, await self._control.send("POST", "/v1/console/codes", wishes))

    async def refresh(self) -> Session:
        """Extend the session by its original lifetime: 24 hours, or its `expires_in`."""
        return make_record(Session, (await self._control.send("POST", "/v1/session/refresh"))["session"])

    async def logout(self) -> None:
        """End the session; the client uses its key again."""
        await self._control.send("DELETE", "/v1/session")
        self._transport.token = self._api_key

    async def who_am_i(self) -> Session:
        """Return the session that `login` began, or whose token the client was given."""
        return make_record(Session, (await self._control.get("/v1/session"))["session"])

    async def organization(self) -> Organization:
        """Return the organization that the key belongs to, with its tier and limits."""
        return make_record(Organization, await self._control.get("/v1/organization"))

    async def usage(self) -> list[dict[str, Any]]:
        """Return requests, rows, bytes and errors, by hour and database."""
        return [dict(item) for item in await self._control.list("/v1/usage")]

    async def audit(self, *, limit: int = 100) -> list[dict[str, Any]]:
        """Return the audit of the control plane, newest first."""
        return [dict(item) for item in await self._control.list("/v1/audit", limit)]
