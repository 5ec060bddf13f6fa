"""PostgreSQL's dialect over the driver `tuplegate.dbapi`.

Isolation is SERIALIZABLE or AUTOCOMMIT: the service has no other. Two-phase commits are the service's own.
"""

from typing import Any, Literal

from sqlalchemy import exc, util
from sqlalchemy import types as sqltypes
from sqlalchemy.dialects.postgresql.base import PGCompiler, PGDialect, PGExecutionContext
from sqlalchemy.engine import URL

from tuplegate import dbapi
from tuplegate.dbapi.errors import is_disconnect
from tuplegate.sqlalchemy.types import TYPES

_Level = Literal["SERIALIZABLE", "AUTOCOMMIT"]


class TuplegateCompiler(PGCompiler):
    def render_bind_cast(self, type_: Any, dbapi_type: Any, sqltext: str) -> str:
        """Cast a placeholder to its type; JSON by way of text, so that the engine reads what was serialized."""
        inner = dbapi_type.item_type if isinstance(dbapi_type, sqltypes.ARRAY) else dbapi_type
        if isinstance(inner, sqltypes.JSON):
            sqltext += "::TEXT" if inner is dbapi_type else "::TEXT[]"
        cast: str = super().render_bind_cast(type_, dbapi_type, sqltext)  # type: ignore[no-untyped-call]
        return cast


class TuplegateExecutionContext(PGExecutionContext):
    def create_server_side_cursor(self) -> Any:
        return self._dbapi_connection.cursor(stream=True)


class TuplegateDialect(PGDialect):
    driver = "tuplegate"
    default_paramstyle = "numeric_dollar"
    supports_statement_cache = True
    supports_server_side_cursors = True
    supports_sane_multi_rowcount = True
    supports_native_json_deserialization = True
    # A statement of many rows is quicker than one that runs for each row.
    use_insertmanyvalues_wo_returning = True
    statement_compiler = TuplegateCompiler
    execution_ctx_cls = TuplegateExecutionContext
    colspecs = util.update_copy(PGDialect.colspecs, TYPES)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)  # type: ignore[no-untyped-call]
        if self._native_inet_types:
            raise NotImplementedError("inet and cidr are texts here; native_inet_types cannot be true")

    @classmethod
    def import_dbapi(cls) -> Any:
        return dbapi

    @classmethod
    def get_async_dialect_cls(cls, url: URL) -> Any:
        from tuplegate.sqlalchemy.asynchronous import AsyncTuplegateDialect

        return AsyncTuplegateDialect

    def create_connect_args(self, url: URL) -> tuple[list[str], dict[str, Any]]:
        return [url.set(drivername="tuplegate").render_as_string(hide_password=False)], {}

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:
        return is_disconnect(e) or (connection is not None and connection.closed)

    def do_ping(self, dbapi_connection: Any) -> bool:
        dbapi_connection.ping()
        return True

    # -- isolation ----------------------------------------------------------------------------------------------

    def get_isolation_level_values(self, dbapi_conn: Any) -> tuple[_Level, ...]:
        return ("SERIALIZABLE", "AUTOCOMMIT")

    def get_default_isolation_level(self, dbapi_conn: Any) -> _Level:
        return "SERIALIZABLE"

    def get_isolation_level(self, dbapi_connection: Any) -> _Level:
        return "AUTOCOMMIT" if dbapi_connection.autocommit else "SERIALIZABLE"

    def set_isolation_level(self, dbapi_connection: Any, level: str) -> None:
        dbapi_connection.autocommit = level == "AUTOCOMMIT"

    def detect_autocommit_setting(self, dbapi_conn: Any) -> bool:
        return bool(dbapi_conn.autocommit)

    def get_readonly(self, connection: Any) -> bool:
        return bool(connection.read_only)

    def set_readonly(self, connection: Any, value: bool) -> None:
        connection.read_only = value

    def get_deferrable(self, connection: Any) -> bool:
        return False

    def set_deferrable(self, connection: Any, value: bool) -> None:
        if value:
            raise exc.ArgumentError("postgresql_deferrable: the service has no deferrable transactions")

    # -- two phases ---------------------------------------------------------------------------------------------

    def do_begin_twophase(self, connection: Any, xid: Any) -> None:
        raise exc.InvalidRequestError("the service commits in two phases by itself: use begin() instead")
