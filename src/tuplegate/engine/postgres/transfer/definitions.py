"""Describes a tenant's definitions in its database as one text: any changed definition gives another text.

Every catalog of the engine is in one of two tables, with the condition for its rows that count, or with the reason why
none does. If an engine has a catalog in neither table, this module does not know the engine: `find` refuses it.
"""

from collections.abc import Sequence
from typing import Final

from tuplegate.engine.libpq.values.quoting import quote_text
from tuplegate.engine.port import NotSupported
from tuplegate.engine.postgres.service.admin import AdminSession

_FIRST_OWN: Final = 16384
"""Smaller numbers belong to the engine's own objects, which a tenant cannot change."""

_RELATION, _SCHEMA, _NUMBER = "in a table, view, index or sequence", "in a schema", "by its number"

_COMPARED: Final[dict[str, tuple[str, str]]] = {
    "pg_attrdef": (_RELATION, "adrelid"),
    "pg_attribute": (_RELATION, "attrelid"),
    "pg_class": (_RELATION, "oid"),
    "pg_foreign_table": (_RELATION, "ftrelid"),
    "pg_index": (_RELATION, "indrelid"),
    "pg_inherits": (_RELATION, "inhrelid"),
    "pg_partitioned_table": (_RELATION, "partrelid"),
    "pg_policy": (_RELATION, "polrelid"),
    "pg_publication_rel": (_RELATION, "prrelid"),
    "pg_rewrite": (_RELATION, "ev_class"),
    "pg_sequence": (_RELATION, "seqrelid"),
    "pg_trigger": (_RELATION, "tgrelid"),
    "pg_collation": (_SCHEMA, "collnamespace"),
    "pg_constraint": (_SCHEMA, "connamespace"),
    "pg_conversion": (_SCHEMA, "connamespace"),
    "pg_namespace": (_SCHEMA, "oid"),
    "pg_opclass": (_SCHEMA, "opcnamespace"),
    "pg_operator": (_SCHEMA, "oprnamespace"),
    "pg_opfamily": (_SCHEMA, "opfnamespace"),
    "pg_proc": (_SCHEMA, "pronamespace"),
    "pg_publication_namespace": (_SCHEMA, "pnnspid"),
    "pg_statistic_ext": (_SCHEMA, "stxnamespace"),
    "pg_ts_config": (_SCHEMA, "cfgnamespace"),
    "pg_ts_dict": (_SCHEMA, "dictnamespace"),
    "pg_ts_parser": (_SCHEMA, "prsnamespace"),
    "pg_ts_template": (_SCHEMA, "tmplnamespace"),
    "pg_type": (_SCHEMA, "typnamespace"),
    "pg_aggregate": (_NUMBER, "aggfnoid"),
    "pg_am": (_NUMBER, "oid"),
    "pg_amop": (_NUMBER, "amopfamily"),
    "pg_amproc": (_NUMBER, "amprocfamily"),
    "pg_cast": (_NUMBER, "oid"),
    "pg_default_acl": (_NUMBER, "oid"),
    "pg_description": (_NUMBER, "objoid"),
    "pg_enum": (_NUMBER, "enumtypid"),
    "pg_event_trigger": (_NUMBER, "oid"),
    "pg_extension": (_NUMBER, "oid"),
    "pg_foreign_data_wrapper": (_NUMBER, "oid"),
    "pg_foreign_server": (_NUMBER, "oid"),
    "pg_init_privs": (_NUMBER, "objoid"),
    "pg_language": (_NUMBER, "oid"),
    "pg_publication": (_NUMBER, "oid"),
    "pg_range": (_NUMBER, "rngtypid"),
    "pg_seclabel": (_NUMBER, "objoid"),
    "pg_transform": (_NUMBER, "oid"),
    "pg_ts_config_map": (_NUMBER, "mapcfg"),
    # The objects of an extension, and the table that a sequence belongs to, are recorded nowhere else.
    "pg_depend": (_RELATION, f"deptype IN ('e', 'x') AND objid >= {_FIRST_OWN} OR deptype = 'a' AND objid"),
}

_SHARED, _SUPERUSER = "is of all databases", "only a superuser can make one"
_LEFT_OUT: Final[dict[str, str]] = {
    "pg_auth_members": _SHARED,
    "pg_authid": _SHARED,
    "pg_database": _SHARED,
    "pg_db_role_setting": _SHARED,
    "pg_parameter_acl": _SHARED,
    "pg_replication_origin": _SHARED,
    "pg_shdepend": _SHARED,
    "pg_shdescription": _SHARED,
    "pg_shseclabel": _SHARED,
    "pg_subscription": _SHARED,
    "pg_tablespace": _SHARED,
    "pg_subscription_rel": _SUPERUSER,
    "pg_user_mapping": _SUPERUSER,
    "pg_largeobject": "a database with large objects is not followed",
    "pg_largeobject_metadata": "a database with large objects is not followed",
    "pg_statistic": "is gathered by the engine",
    "pg_statistic_ext_data": "is gathered by the engine",
}

KNOWN: Final = frozenset({*_COMPARED, *_LEFT_OUT})

_VOLATILE: Final = (
    "{relpages,reltuples,relallvisible,relallfrozen,relfrozenxid,relminmxid,relfilenode,relispopulated,relhasindex}"
)
_CATALOGS: Final = "SELECT relname FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r'"


def own_schemas(scratch: Sequence[str]) -> str:
    """Return a condition that holds for the tenant's schemas `n`. `scratch` are the names of the service's own.

    No tenant can make one that begins with `pg_`, nor change the others.
    """
    names = ", ".join(quote_text(name) for name in ("information_schema", "tuplegate", *scratch))
    return f"n.nspname !~ '^pg_' AND n.nspname NOT IN ({names})"


async def find(session: AdminSession, scratch: Sequence[str]) -> str:
    """Return a hash over all definitions of the tenant's. Raises NotSupported for an engine with unknown catalogs."""
    there = {str(name) for (name,) in await session.fetch(_CATALOGS)}
    if unknown := sorted(there - KNOWN):
        raise NotSupported(f"its engine keeps definitions in {unknown[0]}, which the service does not know")
    own = own_schemas(scratch)
    relations = (
        "SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        f" WHERE c.relpersistence <> 't' AND {own}"
    )
    conditions = {
        _RELATION: f"IN ({relations})",
        _SCHEMA: f"IN (SELECT n.oid FROM pg_namespace n WHERE {own})",
        _NUMBER: f">= {_FIRST_OWN}",
    }
    parts = (
        f"SELECT md5('{catalog}' || (to_jsonb(t) - '{_VOLATILE}'::text[])::text) AS part"
        f" FROM {catalog} t WHERE {column} {conditions[kind]}"
        for catalog, (kind, column) in _COMPARED.items()
        if catalog in there
    )
    question = f"SELECT md5(string_agg(part, '' ORDER BY part)) FROM ({' UNION ALL '.join(parts)}) parts"
    [(found,)] = await session.fetch(question)
    return str(found)
