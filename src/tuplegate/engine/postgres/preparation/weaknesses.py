"""The table of what tenants can reach on a server that they share: always, or as found if no superuser has prepared it.

Resources that all databases of a server share can be used up on every server. Apart from these, nothing is assumed from
the version or vendor of a server. Each other weakness has a question that runs as a tenant, in a tenant's own database:
so one that an operator has closed in another way is not listed. If a question fails, except by a refusal, the weakness
counts as open.
"""

from dataclasses import dataclass
from typing import Final

from tuplegate.engine.libpq.connections.logins import name_role
from tuplegate.engine.port import Access, StatementFailed, Weakness
from tuplegate.engine.postgres.service.admin import METADATA_DATABASE, AdminConnector, AdminSession, TenantSession
from tuplegate.engine.postgres.tenancy import template

_REFUSALS: Final = ("42501", "25006")
"""No right; not in a transaction that only reads."""

_SUPERUSER: Final = "Only a superuser can close it: give the URL of one, where the service has one to give."


@dataclass(frozen=True, slots=True)
class _Trial:
    """`question` returns true if the weakness is there. A question that would leave something behind fails at its end
    instead, with an error that is none of `_REFUSALS`. `access` None is that of the service itself."""

    weakness: Weakness
    question: str
    access: Access | None = Access.WRITE


def _may_call(names: str) -> str:
    return (
        "SELECT EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace"
        f" AND p.proname ~ '^({names})$' AND has_function_privilege(p.oid, 'EXECUTE'))"
    )


_APART: Final = "Or give each organization a server of its own."

SHARED: Final = (
    Weakness(
        "locks_unbounded",
        True,
        "A tenant can use up the locks that all databases share: with thousands of tables or advisory locks in one"
        " transaction, or with a long transaction, which keeps the predicate locks of all. Statements of others then"
        " fail with 53200 until it ends, and a standby stops that has no lock left. A statement can also wait for a"
        " lock on a catalog that all share, to which it has no right: logins of all wait behind it, until its time is"
        " over.",
        "Set `max_locks_per_transaction` and `max_pred_locks_per_transaction` high, and time limits low. " + _APART,
    ),
    Weakness(
        "notifications_unbounded",
        True,
        "A session that listens and stays in a transaction keeps the notifications of all databases. When there is no"
        " room for more, NOTIFY of others fails with 54000.",
        "Set `max_notify_queue_pages`, which bounds the disk that they take, and `open_life_ms_max` low. " + _APART,
    ),
    Weakness(
        "memory_unbounded",
        True,
        "A server process can take all memory of the machine. Where one finds none, at a commit for instance, or is"
        " killed for it, the server restarts, which ends the statements of others.",
        "Bound the server as a whole, and set `vm.overcommit_memory` to 2. " + _APART,
    ),
    Weakness(
        "statements_unending",
        True,
        "A few statements ignore that they are told to end, and take a processor for hours. Their database takes no"
        " requests at the second one; others are slower.",
        "Watch `tuplegate_engine_processes_stuck`. To kill such a process restarts the server. " + _APART,
    ),
    Weakness(
        "autovacuum_shared",
        True,
        "Few processes vacuum the tables of all databases, and evaluate expressions of indexes as they do. A tenant can"
        " keep them busy, so that tables of others are vacuumed late; in the worst case the server then takes no writes"
        " for a while.",
        "Watch the age of `datfrozenxid`, and set `autovacuum_max_workers` higher. " + _APART,
    ),
)
"""Resources that a tenant can use up on any server with databases of several tenants, whoever has prepared it."""

_OWN: Final = "(SELECT d.oid FROM pg_database d WHERE d.datname = current_database())"

# The session that prepares the engine, in the metadata database, can be seen: it holds an advisory lock.
_TRIALS: Final = (
    _Trial(
        Weakness(
            "activity_of_others",
            True,
            "`pg_stat_activity` shows the sessions of other databases, each with its role and database, by ids that say"
            " nothing, the numbers of its process and transaction, and `application_name`. That is the same for all"
            " tenants, unless a statement has set its own. It shows no statement, time, state, wait or address. Whoever"
            " asks often learns when another database is used, by how many sessions, and when it writes.",
            _SUPERUSER + " Tell tenants to put nothing secret into `application_name`.",
        ),
        "SELECT EXISTS (SELECT FROM pg_stat_activity a WHERE a.datname <> current_database())",
    ),
    _Trial(
        Weakness(
            "locks_of_others",
            True,
            "`pg_locks` shows the locks of all databases, by numbers.",
            _SUPERUSER,
        ),
        f"SELECT EXISTS (SELECT FROM pg_locks l WHERE l.database NOT IN (0, {_OWN}))",
    ),
    _Trial(
        Weakness(
            "figures_of_others",
            True,
            "Statistics of all databases and of the whole server can be read: how much is committed, read and written,"
            " how large it is, which transactions are prepared, by ids that say nothing.",
            _SUPERUSER,
        ),
        _may_call(template.SHOWING),
    ),
    _Trial(
        Weakness(
            "catalogs_of_others",
            True,
            "Catalogs that all databases share can be read: which roles are members of which, how many objects each"
            " role has, and settings that a role has given itself, until the service undoes them, in about 2 seconds.",
            _SUPERUSER + " Tell tenants to put nothing secret into ALTER ROLE … SET.",
        ),
        "SELECT EXISTS (SELECT FROM unnest(string_to_array("
        f"'{template.CATALOGS}', ', ')) c WHERE has_table_privilege(c, 'SELECT'))",
    ),
    _Trial(
        Weakness(
            "log_of_changes_unbounded",
            True,
            "A tenant can write into the server's log of changes (WAL) what its database's size does not count, and"
            " make small files while a transaction runs.",
            "Watch the server's disk, and the size of what it archives.",
        ),
        _may_call(template.FILLING),
    ),
    _Trial(
        Weakness(
            "server_log_open",
            True,
            "A tenant can fill the server's log with RAISE LOG, and it has statements that fail, with their literals.",
            "GRANT SET ON PARAMETER log_min_messages, log_min_error_statement TO tuplegate_service, where you may; or"
            " set `log_min_messages` to fatal and `log_min_error_statement` to panic for the server.",
        ),
        "SELECT current_setting('log_min_messages') NOT IN ('fatal', 'panic')"
        " OR current_setting('log_min_error_statement') NOT IN ('fatal', 'panic')",
    ),
    _Trial(
        Weakness(
            "temporary_files_unbounded",
            True,
            "A statement can fill the server's disk with temporary files.",
            "GRANT SET ON PARAMETER temp_file_limit TO tuplegate_service, where you may; or set `temp_file_limit` for"
            " the server.",
        ),
        "SELECT current_setting('temp_file_limit') = '-1'",
    ),
    _Trial(
        Weakness(
            "own_sessions_endable",
            False,
            "A statement can cancel or end other statements of the same database that run with a key of the same kind."
            " It reaches no other database.",
            _SUPERUSER,
        ),
        _may_call(template.ENDING),
    ),
    _Trial(
        Weakness(
            "read_keys_write_large_objects",
            False,
            "A key that may only read can make large objects, and change its own.",
            "Use PostgreSQL 16 or newer, which refuses that by itself.",
        ),
        "SELECT set_config('transaction_read_only', 'on', true), lo_create(0),"
        " 1 / (length(current_user) - length(current_user))",
        Access.READ,
    ),
    _Trial(
        Weakness(
            "settings_unseen",
            False,
            "The service cannot see whether a request has left a custom setting on its connection. It closes the"
            " connection wherever that could be: nothing is left to others, but such requests take longer.",
            "Use PostgreSQL 16 or newer, GRANT pg_read_all_stats TO tuplegate_warden, where you may, and start the"
            " service again.",
        ),
        "SELECT tuplegate.traces(0) = 0",
    ),
    _Trial(
        Weakness(
            "standbys_unseen",
            False,
            "The service does not see which standbys confirm commits: it counts none, and with `durability` set to"
            " replicated it writes nothing. It does not see either which timeline a standby follows, and reads from no"
            " replica. Without these settings nothing is different.",
            "GRANT pg_read_all_stats TO tuplegate_service, where you may.",
        ),
        # The engine makes the same check, and otherwise only shows that there is a standby.
        "SELECT NOT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')",
        None,
    ),
)

TRIED: Final = tuple(trial.weakness for trial in _TRIALS)


class ForeignWords(Exception):
    """The server's messages are in another language, and the service has no right to change that."""


async def find_weaknesses(connector: AdminConnector, database: str, secret: bytes) -> tuple[Weakness, ...]:
    """Return the weaknesses of any server, and those that a tenant's roles find. Raises ForeignWords."""
    found = []
    async with (
        TenantSession(connector, secret, database, name_role(database, Access.WRITE)) as writer,
        TenantSession(connector, secret, database, name_role(database, Access.READ)) as reader,
        AdminSession(connector, METADATA_DATABASE) as service,
    ):
        await _check_words(writer)
        sessions = {Access.WRITE: writer, Access.READ: reader, None: service}
        for trial in _TRIALS:
            if await _is_open(sessions[trial.access], trial.question):
                found.append(trial.weakness)
    return (*SHARED, *found)


async def _is_open(session: AdminSession, question: str) -> bool:
    try:
        return (await session.fetch(question))[0][0] != "f"
    except StatementFailed as failure:
        return failure.sqlstate not in _REFUSALS


async def _check_words(session: AdminSession) -> None:
    """Check the language of the server's messages: a few errors are recognized by their words."""
    try:
        await session.fetch("SELECT 1 / (length(current_user) - length(current_user))")
    except StatementFailed as failure:
        if failure.message != "division by zero":
            raise ForeignWords(failure.message) from failure
