"""The dialect for SQLAlchemy's asyncio: it runs the driver's coroutines where SQLAlchemy calls plain functions."""

from typing import Any

from sqlalchemy.connectors.asyncio import (
    AsyncAdapt_dbapi_connection,
    AsyncAdapt_dbapi_cursor,
    AsyncAdapt_dbapi_module,
    AsyncAdapt_dbapi_ss_cursor,
)
from sqlalchemy.util.concurrency import await_

from tuplegate import dbapi
from tuplegate.sqlalchemy.dialect import TuplegateDialect


class _StreamCursor(AsyncAdapt_dbapi_ss_cursor):
    __slots__ = ()

    def _make_new_cursor(self, connection: Any) -> Any:
        return connection.cursor(stream=True)


class _Connection(AsyncAdapt_dbapi_connection):
    __slots__ = ()

    _connection: Any

    def cursor(self, server_side: bool = False, *, stream: bool = False) -> AsyncAdapt_dbapi_cursor:
        return _StreamCursor(self) if stream or server_side else AsyncAdapt_dbapi_cursor(self)

    def ping(self) -> None:
        await_(self._connection.ping())

    @property
    def closed(self) -> bool:
        return bool(self._connection.closed)

    @property
    def autocommit(self) -> bool:
        return bool(self._connection.autocommit)

    @autocommit.setter
    def autocommit(self, wanted: bool) -> None:
        self._connection.autocommit = wanted

    @property
    def read_only(self) -> bool:
        return bool(self._connection.read_only)

    @read_only.setter
    def read_only(self, wanted: bool) -> None:
        self._connection.read_only = wanted


class _Module(AsyncAdapt_dbapi_module):
    def __init__(self) -> None:
        super().__init__(dbapi)
        self.__dict__.update({name: value for name, value in vars(dbapi).items() if name != "connect"})

    def connect(self, *args: Any, **kwargs: Any) -> _Connection:
        connect = kwargs.pop("async_creator_fn", dbapi.connect_async)
        return await_(_Connection.create(self, connect(*args, **kwargs)))


class AsyncTuplegateDialect(TuplegateDialect):
    is_async = True
    supports_statement_cache = True

    @classmethod
    def import_dbapi(cls) -> Any:
        return _Module()

    def get_driver_connection(self, connection: Any) -> Any:
        return connection._connection
