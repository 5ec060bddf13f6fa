"""The part of a connection that sends nothing: its options, and whether it is closed or inside a transaction."""

from tuplegate.dbapi import errors
from tuplegate.dbapi.addresses import Address


class ConnectionState:
    """The options and the state of a connection. `_is_doomed`: the transaction can only be rolled back."""

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

    _transaction: object | None = None

    def __init__(
        self, address: Address, autocommit: bool, read_only: bool, life_s: float | None, idle_s: float | None
    ) -> None:
        self._url = address.url
        self._headers = {} if address.database is None else {"Tuplegate-Database": address.database}
        self._timeout_s = address.timeout_s
        self._autocommit = autocommit
        self.read_only = read_only
        self._life_ms, self._idle_ms = _milliseconds(life_s), _milliseconds(idle_s)
        self._is_doomed = False
        self._is_closed = False

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
            raise errors.ProgrammingError(
                "autocommit cannot be changed inside a transaction: commit or roll back first"
            )
        self._autocommit = bool(wanted)

    def _check_open(self) -> None:
        if self._is_closed:
            raise errors.InterfaceError("the connection is closed")


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else max(int(seconds * 1000), 1)
