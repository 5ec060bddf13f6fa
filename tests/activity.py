"""The engine's own list of a database's connections, as its superuser sees it, on whichever engine the tests run."""

from typing import LiteralString

import psycopg
from psycopg import sql

from tests.service import Service

_LISTINGS: dict[str, LiteralString] = {
    "pg_stat_activity": "select datname, state <> 'idle' as busy, state, wait_event, wait_event_type, query"
    " from pg_stat_activity where usename <> current_user",
    "crdb_internal.cluster_sessions": "select regexp_replace(user_name, '_[wrd]$', '') as datname,"
    " status = 'ACTIVE' or kv_txn is not null as busy, active_queries as query"
    " from crdb_internal.cluster_sessions where status <> 'CLOSED' and user_name <> current_user",
}


_OWN_BACKEND: dict[str, str] = {
    "pg_stat_activity": "select pg_backend_pid() as session_id",
    "crdb_internal.cluster_sessions": "show session_id",
}
_ENDING: dict[str, LiteralString] = {
    "pg_stat_activity": "select pg_terminate_backend({})",
    "crdb_internal.cluster_sessions": "cancel session {}",
}


class Activity:
    """The tenant's connections to a database, by the engine's name of it; without one, to the service's first database.
    `condition` is about `busy`, a statement or a transaction under way."""

    def __init__(self, service: Service, database: str | None = None) -> None:
        self.database = database or service.first_database
        self.connection = psycopg.connect(service.server_of(self.database), autocommit=True)
        self._kind = next(name for name in reversed(_LISTINGS) if self._has(name))
        self._listing = _LISTINGS[self._kind]
        self.own_backend = _OWN_BACKEND[self._kind]
        """A statement that tells whose connection it runs on, as `session_id`."""

    def _has(self, name: str) -> bool:
        return self.connection.execute("select to_regclass(%s) is not null", [name]).fetchone() == (True,)

    def terminate(self, backend: object) -> None:
        """End a connection, as `own_backend` tells it."""
        self.connection.execute(sql.SQL(_ENDING[self._kind]).format(sql.Literal(backend)))

    def count(self, condition: LiteralString = "true") -> int:
        return self._count(sql.SQL(condition), [])

    def count_running(self, words: str) -> int:
        """Count connections that run a statement with these words. Engines show it without its comments."""
        return self._count(sql.SQL("busy and position(%s in lower(query)) > 0"), [words.lower()])

    def _count(self, condition: sql.SQL, values: list[str]) -> int:
        listed = sql.SQL("select count(*) from ({}) a where datname = %s and {}").format(
            sql.SQL(self._listing), condition
        )
        row = self.connection.execute(listed, [self.database, *values]).fetchone()
        assert row is not None
        number: int = row[0]
        return number

    @property
    def busy(self) -> int:
        """Connections with a statement or a transaction under way."""
        return self.count("busy")
