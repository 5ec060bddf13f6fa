"""Shows tenants their own part of what all databases of the engine share.

Activity, locks, progress and statistics of databases show only the rows of the tenant's own database, and statistics of
tables leave out the shared catalogs, under the names that every tool knows. The engine's functions behind them show
everybody's, so tenants may not call those. The views of `pg_catalog` are replaced by views over a function of the
warden's, which is parsed when it is made and looks up no name. The activity of another role's session stays hidden, as
PostgreSQL itself would hide it.
"""

from typing import Final

from tuplegate.engine.libpq.values.quoting import quote
from tuplegate.engine.postgres.rights.owners import Owners
from tuplegate.engine.postgres.rights.roles import PASSING
from tuplegate.engine.postgres.rights.walls import FULL, Walls

_NOT_SHARED: Final = "a.relid <> ALL (ARRAY(SELECT c.oid FROM pg_class c WHERE c.relisshared))"
_OWN: Final = "(SELECT d.oid FROM pg_database d WHERE d.datname = current_database())"

_VIEWS: Final = {
    "pg_locks": f"a.database = {_OWN}",
    "pg_stat_database": f"a.datid = {_OWN}",
    "pg_stat_database_conflicts": f"a.datid = {_OWN}",
    "pg_stat_progress_analyze": f"a.datid = {_OWN}",
    "pg_stat_progress_cluster": f"a.datid = {_OWN}",
    "pg_stat_progress_copy": f"a.datid = {_OWN}",
    "pg_stat_progress_create_index": f"a.datid = {_OWN}",
    "pg_stat_progress_vacuum": f"a.datid = {_OWN}",
    # The shared catalogs would show the activity of others. The views of system and user tables are built on these.
    "pg_stat_all_tables": _NOT_SHARED,
    "pg_stat_all_indexes": _NOT_SHARED,
    "pg_statio_all_tables": _NOT_SHARED,
    "pg_statio_all_indexes": _NOT_SHARED,
    "pg_statio_all_sequences": _NOT_SHARED,
}
"""The views, each with the condition for rows of the tenant's own. Their definitions are the engine's own."""

OF_RELATIONS: Final = (
    "pg_stat_get_(numscans|lastscan|(tuples|blocks)_.*|(live|dead)_tuples|mod_since_analyze|ins_since_vacuum)"
    "|pg_stat_get_(last|total)_(auto)?(vacuum|analyze)_time|pg_stat_get_(auto)?(vacuum|analyze)_count"
)
"""Matches the names of functions that count the activity on any table or index."""

_MINE: Final = (
    "(s.usesysid = (SELECT r.oid FROM pg_roles r WHERE r.rolname = session_user)"
    " OR pg_has_role(session_user, 'pg_read_all_stats', 'USAGE'))"
)
_ACTIVITY: Final = f"""
CREATE VIEW tuplegate.all_pg_stat_activity AS
SELECT s.datid, d.datname, s.pid, s.leader_pid, s.usesysid, pg_get_userbyid(s.usesysid) AS usename, s.application_name,
       CASE WHEN {_MINE} THEN s.client_addr END AS client_addr,
       CASE WHEN {_MINE} THEN s.client_hostname END AS client_hostname,
       CASE WHEN {_MINE} THEN s.client_port END AS client_port,
       CASE WHEN {_MINE} THEN s.backend_start END AS backend_start,
       CASE WHEN {_MINE} THEN s.xact_start END AS xact_start,
       CASE WHEN {_MINE} THEN s.query_start END AS query_start,
       CASE WHEN {_MINE} THEN s.state_change END AS state_change,
       CASE WHEN {_MINE} THEN s.wait_event_type END AS wait_event_type,
       CASE WHEN {_MINE} THEN s.wait_event END AS wait_event,
       CASE WHEN {_MINE} THEN s.state END AS state,
       s.backend_xid, s.backend_xmin,
       CASE WHEN {_MINE} THEN s.query_id END AS query_id,
       CASE WHEN {_MINE} THEN s.query ELSE '<insufficient privilege>' END AS query,
       s.backend_type
  FROM pg_stat_get_activity(NULL) s JOIN pg_database d ON d.oid = s.datid
"""
_ACTIVITY_CONDITION: Final = f"a.datid = {_OWN}"

# The engine's own definition is read before it is replaced, and only then: afterwards it is ours.
_SHOW: Final = """
DO $$
DECLARE wanted record;
BEGIN
  SET LOCAL allow_system_table_mods = on;
  FOR wanted IN SELECT * FROM (VALUES {views}) v (name, condition) WHERE to_regclass('pg_catalog.' || name) IS NOT NULL
  LOOP
    IF to_regclass('tuplegate.all_' || wanted.name) IS NULL THEN
      IF wanted.name = 'pg_stat_activity' THEN
        EXECUTE {activity};
      ELSE
        EXECUTE format('CREATE VIEW tuplegate.all_%s AS %s', wanted.name,
                       pg_get_viewdef(('pg_catalog.' || wanted.name)::regclass));
      END IF;
    END IF;
    EXECUTE format('ALTER VIEW tuplegate.all_%s OWNER TO {warden}', wanted.name);
    EXECUTE format('REVOKE ALL ON tuplegate.all_%s FROM PUBLIC', wanted.name);
    EXECUTE format('CREATE OR REPLACE FUNCTION tuplegate.shown_%s() RETURNS SETOF tuplegate.all_%s'
                   ' LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp'
                   ' BEGIN ATOMIC SELECT a.* FROM tuplegate.all_%s a WHERE %s; END',
                   wanted.name, wanted.name, wanted.name, wanted.condition);
    EXECUTE format('ALTER FUNCTION tuplegate.shown_%s() OWNER TO {warden}', wanted.name);
    EXECUTE format('CREATE OR REPLACE VIEW pg_catalog.%s AS SELECT * FROM tuplegate.shown_%s()',
                   wanted.name, wanted.name);
    EXECUTE format('GRANT SELECT ON pg_catalog.%s TO PUBLIC', wanted.name);
  END LOOP;
END $$
"""

# A database has these roles while it is dumped or copied. No condition of a reader's is evaluated before this one.
_ROLES: Final = f"""
DO $$
DECLARE wanted record; definition text;
BEGIN
  SET LOCAL allow_system_table_mods = on;
  FOR wanted IN SELECT * FROM (VALUES ('pg_roles', 'rolname'), ('pg_user', 'usename')) v (name, of_role) LOOP
    definition := rtrim(pg_get_viewdef(('pg_catalog.' || wanted.name)::regclass), '; ');
    IF position('current_database' IN definition) = 0 THEN
      EXECUTE format('CREATE OR REPLACE VIEW pg_catalog.%s WITH (security_barrier) AS SELECT * FROM (%s) r'
                     ' WHERE r.%s !~ %L OR starts_with(r.%s::text, current_database()::text || ''_'')',
                     wanted.name, definition, wanted.of_role, '{PASSING}', wanted.of_role);
    END IF;
  END LOOP;
END $$
"""

_BEHIND: Final = "|".join(
    (
        "pg_lock_status|pg_stat_get_activity|pg_stat_get_progress_info|pg_stat_get_db_.*",
        OF_RELATIONS,
    )
)
_GRANT_BEHIND: Final = """
DO $$
DECLARE function regprocedure;
BEGIN
  FOR function IN SELECT oid FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND proname ~ '^({behind})$'
  LOOP
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO {warden}', function);
  END LOOP;
END $$
"""

_ROLE_HAS_SETTINGS: Final = """
CREATE FUNCTION tuplegate.role_has_settings() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
RETURN EXISTS (SELECT FROM pg_db_role_setting s JOIN pg_roles r ON r.oid = s.setrole WHERE r.rolname = session_user)
"""
"""Whether the role that logged in has stored settings at the server for its next connections."""


def write_furnishing(owners: Owners, walls: Walls = FULL) -> list[str]:
    """Return statements that make the windows of a database. Each may be repeated."""
    warden = quote(owners.warden)
    views = ", ".join(
        f"($c${name}$c$, $c${condition}$c$)"
        for name, condition in {"pg_stat_activity": _ACTIVITY_CONDITION, **_VIEWS}.items()
    )
    return [
        walls.tolerate(_GRANT_BEHIND.format(behind=_BEHIND, warden=warden)),
        walls.tolerate(_SHOW.format(views=views, activity=f"$a${_ACTIVITY}$a$", warden=warden)),
        walls.tolerate(_ROLES),
        walls.tolerate(f"GRANT SELECT ON pg_catalog.pg_db_role_setting TO {warden}"),
        _ROLE_HAS_SETTINGS,
        f"ALTER FUNCTION tuplegate.role_has_settings() OWNER TO {warden}",
    ]
