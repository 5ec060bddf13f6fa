# Made by tools/sync_client.py of asynchronous/open_transaction.py. Do not edit.
"""A transaction that stays open between the calls of its client, and a savepoint in it.

It is begun with its first statement. A request whose answer is lost is sent again with the same sequence, and is not
run again. Whatever is not committed is rolled back, by the service itself if the client cannot say so.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import httpx

from tuplegate.client import requests
from tuplegate.client.answers import Answer, read_rows, read_transaction
from tuplegate.client.errors import OutcomeUnknown, StreamCut, TuplegateError
from tuplegate.client.failures import explain_lost_commit
from tuplegate.client.functions import Function
from tuplegate.client.progress import Progressing, TransactionState
from tuplegate.client.records import Transaction
from tuplegate.client.retries import AnswerLost, Repeat
from tuplegate.client.rows import Rows
from tuplegate.client.synchronous.stream import RowStream
from tuplegate.client.synchronous.transport import Transport

_R = TypeVar("_R")

_GIVE_UP_S = 5.0
"""How long a rollback may take after an exception. If it fails, the transaction expires."""


class OpenTransaction(Progressing):
    """A transaction whose statements are sent one by one. Use it with `with`: the end of the block commits, and
    an exception rolls back.

    It runs one statement at a time; do not share it between threads or tasks. The first statement begins it; if that
    one fails, it is over.
    """

    def __init__(self, transport: Transport, options: requests.OpenOptions) -> None:
        super().__init__()
        self._transport = transport
        self._options = options
        self._stream: InnerStream | None = None

    def __enter__(self) -> "OpenTransaction":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None:
            self._give_up()
        elif self._progress.goes_on:
            try:
                self.commit()
            except BaseException:
                self._give_up()
                raise

    # -- statements ---------------------------------------------------------------------------------------------

    def query(
        self,
        sql: str,
        params: Sequence[Any] = (),
        *,
        timeout_s: float | None = None,
        max_rows: int | None = None,
        convert: bool = True,
    ) -> Rows:
        """Run one statement. `params` fill `$1`, `$2`, … After a lost answer it is sent again, and not run again.

        A conflict with another transaction raises SerializationFailure or DeadlockDetected, and ends the transaction:
        all of it must be run again, as `client.run` does. After any other failure it can only be rolled back, or rolled
        back to a savepoint.
        """
        self._progress.check_can_run()
        timeout_s = self._options.call_timeout_s if timeout_s is None else timeout_s
        sql = requests.drop_stream_hint(sql)
        if self.id is None and max_rows is None and timeout_s >= self._options.timeout_s:
            answer = self._begin(timeout_s, (sql, params), convert)
            return read_rows(replace(answer, body=answer.body["result"]), None, convert)
        if self.id is None:
            self._begin(timeout_s)
        body = requests.write_query_body(sql, params, timeout_s, max_rows, convert)
        answer = self._send("query", body, timeout_s, exact=not convert)
        self._progress.note_answer(answer.body)
        return read_rows(answer, max_rows, convert)

    def stream(
        self,
        sql: str,
        params: Sequence[Any] = (),
        *,
        timeout_s: float | None = None,
        max_rows: int | None = None,
        convert: bool = True,
    ) -> "InnerStream":
        """Return the rows of one statement as they arrive, in constant memory. The transaction runs nothing else until
        the stream is read to its end or closed. To close it before its end may fail the transaction."""
        timeout_s = self._options.call_timeout_s if timeout_s is None else timeout_s
        body = requests.write_query_body(sql, params, timeout_s, max_rows, convert)
        return InnerStream(self, requests.Call("POST", "", body, exact=not convert), timeout_s)

    def savepoint(self) -> "Savepoint":
        """Return a savepoint for `with`: an exception in the block undoes what was run in it, and no more."""
        return Savepoint(self)

    # -- ends ---------------------------------------------------------------------------------------------------

    def commit(self, statement: requests.Statement | None = None, *, timeout_s: float | None = None) -> Transaction:
        """Commit, after running a last statement if one is given: SQL, or a pair of SQL and parameters.

        After a lost answer it is sent again, and tells what happened. OutcomeUnknown is raised only if that fails too.
        """
        progress = self._progress
        progress.check_can_run()
        if self.id is None and statement is None:
            progress.end(TransactionState.COMMITTED)
            return Transaction("", [], 0, 0, "read_only")
        timeout_s = self._options.call_timeout_s if timeout_s is None else timeout_s
        if self.id is None:
            self._begin(timeout_s)
        try:
            answer = self._send("commit", requests.write_commit_body(statement, timeout_s), timeout_s)
        except (AnswerLost, OutcomeUnknown) as error:
            answer = self._ask_outcome(error, statement is not None)
        except TuplegateError as error:
            if "transaction_id" in (error.answer or {}) and progress.goes_on:
                progress.end(TransactionState.ABORTED, "rollback")
            raise
        except BaseException:  # interrupted: it may be committed
            progress.end(TransactionState.IN_PROGRESS)
            raise
        progress.end(TransactionState.COMMITTED)
        return read_transaction(answer)

    def rollback(self) -> None:
        """Roll back. Nothing happens if that has happened already."""
        self._roll_back(self._options.call_timeout_s)

    def _roll_back(self, timeout_s: float) -> None:
        progress = self._progress
        if progress.state is TransactionState.ABORTED and not progress.is_running:
            return
        if progress.state is TransactionState.COMMITTED:
            progress.check_can_run()
        if self._stream is not None:
            self._stream.close()
        if self.id is not None:
            # A statement that may still be running would make the service refuse a rollback, so abort.
            self._tell("abort" if progress.is_running else "rollback", timeout_s)
        progress.end(TransactionState.ABORTED, progress.reason or "rollback")

    def _give_up(self) -> None:
        """Roll back after an exception, which must not be hidden by another one."""
        if self._progress.goes_on or self._progress.is_running:
            with suppress(TuplegateError):
                self._roll_back(min(_GIVE_UP_S, self._options.call_timeout_s))

    def _ask_outcome(self, lost: AnswerLost | OutcomeUnknown, has_statement: bool) -> Answer:
        """Find out what became of a commit whose answer was lost."""
        progress = self._progress
        progress.end(TransactionState.IN_PROGRESS)
        if lost.code != "out_of_sequence":
            raise explain_lost_commit(self.id, lost) from lost
        # It arrived, but its answer was too large to be kept. Without a sequence the outcome alone is told.
        try:
            answer = self._tell("commit", self._options.call_timeout_s, "{}")
        except TuplegateError as error:
            progress.note_error(error)
            raise
        progress.end(TransactionState.COMMITTED)
        if has_statement:
            raise TuplegateError(f"{self.id} is committed, but the rows of its last statement were lost") from lost
        return answer

    # -- requests -----------------------------------------------------------------------------------------------

    def _address(self, verb: str) -> str:
        return f"{self._options.url}/v1/transaction/{self.id}/{verb}"

    def _begin(self, timeout_s: float, first: requests.Statement | None = None, convert: bool = True) -> Answer:
        """Begin it. A begin whose answer is lost is repeated: the first one is rolled back when it expires."""
        options = self._options
        body = requests.write_begin_body(
            first, convert, options.timeout_s, options.idle_timeout_s, read_only=options.read_only
        )
        return self._begin_with(body, timeout_s, exact=not convert)

    def _begin_with(self, body: str, timeout_s: float, exact: bool = False) -> Answer:
        progress, options = self._progress, self._options
        url = f"{options.url}/v1/transaction/begin"
        call = requests.Call("POST", url, body, options.headers, Repeat.HARMLESS, exact)
        progress.is_running = True
        try:
            answer = self._transport.call(call, self._transport.start_course(timeout_s))
        except TuplegateError as error:
            progress.note_error(error)
            raise
        except BaseException:  # interrupted: it may have begun, and expires
            progress.lose()
            raise
        progress.note_answer(answer.body)
        return answer

    def _tell(self, verb: str, timeout_s: float, body: str | None = None) -> Answer:
        """Send a request without a sequence, which does no harm if it arrives twice."""
        call = requests.Call("POST", self._address(verb), body, self._options.headers, Repeat.HARMLESS)
        return self._transport.call(call, self._transport.start_course(timeout_s))

    def _send(self, verb: str, body: str, timeout_s: float, exact: bool = False) -> Answer:
        course = self._transport.start_course(timeout_s)
        call = requests.Call("POST", self._address(verb), body, self._options.headers, Repeat.SEQUENCED, exact)
        return self._add_sequence(call, lambda sent: self._transport.call(sent, course))

    def _open_stream(self, call: requests.Call, timeout_s: float) -> httpx.Response:
        """Begin the transaction if it is new, and open a stream within it."""
        self._progress.check_can_run()
        if self.id is None:
            self._begin(timeout_s)
        headers = {**self._options.headers, "Accept": "application/x-ndjson"}
        call = replace(call, url=self._address("query"), headers=headers)
        course = self._transport.start_course(timeout_s)
        try:
            response = self._add_sequence(call, lambda sent: self._transport.open(sent, course))
        except OutcomeUnknown as error:
            raise AnswerLost(f"{error.message}; the transaction is rolled back") from error
        self._progress.note_taken()
        return response

    def _add_sequence(self, call: requests.Call, send: Function[requests.Call, _R]) -> _R:
        """Send a request with its sequence within the transaction, which makes it safe to send it again."""
        progress, body = self._progress, call.body or "{}"
        sequence = progress.next_sequence()
        while True:
            try:
                return send(replace(call, body=requests.add_sequence(body, sequence)))
            except TuplegateError as error:
                lower = progress.lower_sequence(error)
                if lower is None:
                    progress.note_error(error)
                    raise
                sequence = lower
            except BaseException:  # interrupted: it may be running
                progress.lose()
                raise


# size: all but one are what any stream has.
class InnerStream(RowStream):
    """A stream within a transaction. It tells the transaction how it ended."""

    def __init__(self, transaction: OpenTransaction, call: requests.Call, timeout_s: float) -> None:
        super().__init__(transaction._transport, call, timeout_s)
        self._transaction = transaction

    def close(self) -> None:
        """End the stream. A statement that is still running is cancelled."""
        transaction = self._transaction
        super().close()
        if transaction._stream is self:
            transaction._stream = None
            transaction._progress.note_report(self._report)

    def _start(self) -> httpx.Response:
        response = self._transaction._open_stream(self._call, self._timeout_s)
        self._transaction._stream = self
        return response

    def _read_events(self) -> list[tuple[Any, ...]]:
        try:
            return super()._read_events()
        except StreamCut as error:
            self._transaction._progress.note_error(error)
            raise


class Savepoint:
    """A savepoint of a transaction. Use it with `with`; savepoints can be nested."""

    def __init__(self, transaction: OpenTransaction) -> None:
        self._transaction = transaction
        self._name = ""

    def __enter__(self) -> "Savepoint":
        progress = self._transaction._progress
        progress.savepoints += 1
        self._name = f"tuplegate_{progress.savepoints}"
        self._transaction.query(f"savepoint {self._name}")
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            if self._transaction._progress.goes_on:
                self._transaction.query(f"release {self._name}")
            return
        # A failure here must not hide the exception. It leaves the transaction failed, so that nothing is committed.
        with suppress(TuplegateError):
            self.rollback()
            self._transaction.query(f"release {self._name}")

    def rollback(self) -> None:
        """Undo what was run since the savepoint. The block goes on."""
        self._transaction.query(f"rollback to {self._name}")
