# Made by tools/sync_client.py of asynchronous/transaction.py. Do not edit.
"""A transaction that stays open between requests.

Every request carries its number, so one whose answer was lost is sent again and runs once.
"""

import time
from collections.abc import Mapping
from time import monotonic
from typing import Any

from tuplegate.client.errors import AlreadyExists
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
        self._sequence = 0
        self.id = id

    def query(self, statement: str) -> Mapping[str, Any]:
        """Run a statement, and return its result."""
        self._sequence += 1
        return self._send("query", write_query(statement, int(self._timeout_s * 1000), self._sequence))

    def commit(self) -> None:
        self._sequence += 1
        self._send("commit", f'{{"sequence":{self._sequence}}}')

    def roll_back(self) -> None:
        self._send("rollback", None)

    def abort(self) -> None:
        """Roll back, also where a statement is still running or everything is over already."""
        self._send("abort", None)

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
