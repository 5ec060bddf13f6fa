"""A connection to PostgreSQL in which every wait has a deadline: a server that is stopped still accepts connections."""

import select
import time
from collections.abc import Sequence
from typing import NoReturn

import psycopg
from psycopg import pq

_READY = {pq.PollingStatus.READING: select.POLLIN, pq.PollingStatus.WRITING: select.POLLOUT}


class Unanswered(Exception):
    """The server refused, failed, or did not answer in time."""


class Session:
    """Open one with `opened`. After Unanswered it is closed."""

    def __init__(self, conn: pq.abc.PGconn) -> None:
        self._conn = conn

    @classmethod
    def opened(cls, conninfo: str, seconds: float) -> "Session":
        deadline = time.monotonic() + seconds
        session = cls(pq.PGconn.connect_start(conninfo.encode()))
        while True:
            # The socket changes from host to host and from attempt to attempt.
            status = session._conn.connect_poll()
            if status == pq.PollingStatus.OK:
                session._conn.nonblocking = 1
                return session
            if status == pq.PollingStatus.FAILED:
                session._fail()
            session._wait(_READY[pq.PollingStatus(status)], deadline)

    def execute(self, sql: str, seconds: float) -> list[Sequence[str | None]]:
        """The rows, as text."""
        deadline = time.monotonic() + seconds
        rows: list[Sequence[str | None]] = []
        try:
            self._conn.send_query(sql.encode())
            while self._conn.flush():
                self._wait(select.POLLOUT, deadline)
            while True:
                while self._conn.is_busy():
                    self._wait(select.POLLIN, deadline)
                    self._conn.consume_input()
                result = self._conn.get_result()
                if result is None:
                    return rows
                if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
                    self._fail()
                rows += _texts(result)
        except psycopg.OperationalError:
            self._fail()

    def close(self) -> None:
        self._conn.finish()

    def _wait(self, event: int, deadline: float) -> None:
        waiting = select.poll()
        waiting.register(self._conn.socket, event)
        if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
            self.close()
            raise Unanswered("no answer in time")

    def _fail(self) -> NoReturn:
        said = self._conn.get_error_message()
        self.close()
        raise Unanswered(said)


def ask(conninfo: str, sql: str, seconds: float) -> list[Sequence[str | None]]:
    """The rows of one statement, on a connection of its own."""
    session = Session.opened(conninfo, seconds)
    try:
        return session.execute(sql, seconds)
    finally:
        session.close()


def _texts(result: pq.abc.PGresult) -> list[Sequence[str | None]]:
    values = [[result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)]
    return [[None if value is None else value.decode() for value in row] for row in values]
