# Made by tools/sync_client.py of asynchronous/transaction.py. Do not edit.
"""A transaction that stays open between requests.

Every request carries its number, so one whose answer was lost is sent again and runs once.
"""

import time
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from tuplegate.client.errors import AlreadyExists, TuplegateError
from tuplegate.client.progress import Progress
from tuplegate.client.retries import Repeat
from tuplegate.client.synchronous.transport import Call, Transport
from tuplegate.dbapi.bodies import write_query

_BUSY = "transaction_in_use"
_BUSY_PAUSE_S = 0.05


class OpenTransaction:
    def __init__(self, transport: Transport, url: str, headers: Mapping[str, str], timeout_s: float, id: str) -> None:
        self._transport = transport
        self._url = f"{url}/v1/transaction/{id}"
        self._headers = headers
        self._timeout_s = timeout_s
        self._progress = Progress(id)
        self.id = id

    def query(self, statement: str) -> Mapping[str, Any]:
        """Run a statement, and return its result."""
        timeout_ms = int(self._timeout_s * 1000)
        return self._send_numbered("query", lambda sequence: write_query(statement, timeout_ms, sequence))

    def commit(self) -> None:
        self._send_numbered("commit", lambda sequence: f'{{"sequence":{sequence}}}')

    def roll_back(self) -> None:
        self._send("rollback", None)

    def abort(self) -> None:
        """Roll back, also where a statement is still running or everything is over already."""
        self._send("abort", None)

    def _send_numbered(self, route: str, write: Callable[[int], str]) -> Mapping[str, Any]:
        """Send a request with its number. One that the service has refused without running it may have taken none."""
        progress = self._progress
        sequence = progress.next_sequence()
        while True:
            try:
                body = self._send(route, write(sequence))
            except TuplegateError as error:
                lower = progress.lower_sequence(error)
                if lower is None:
                    progress.note_error(error)
                    raise
                sequence = lower
            else:
                progress.note_taken()
                return body

    def _send(self, route: str, body: str | None) -> Mapping[str, Any]:
        # By its number the service knows a request that it has run. Rolling back twice is the same as once.
        call = Call("POST", f"{self._url}/{route}", body, self._headers, Repeat.HARMLESS)
        course = self._transport.start_course(self._timeout_s)
        while True:
            try:
                return (self._transport.call(call, course)).body
            except AlreadyExists as error:
                # The request whose answer was lost is still running.
                if error.code != _BUSY or monotonic() >= course.deadline:
                    raise
            time.sleep(_BUSY_PAUSE_S)
