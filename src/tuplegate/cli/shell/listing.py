"""The queries of `\\dt` and similar commands, and the patterns that narrow them down."""

import re
from typing import Any

_SYSTEM = "n.nspname not in ('pg_catalog', 'information_schema', 'tuplegate') and n.nspname !~ '^pg_(toast|temp)'"
_KIND = (
    "case c.relkind when 'r' then 'table' when 'p' then 'partitioned table' when 'v' then 'view' "
    "when 'm' then 'materialized view' when 'f' then 'foreign table' when 'i' then 'index' "
    "when 'I' then 'partitioned index' when 'S' then 'sequence' end"
)
_RELATIONS = (
    f"select n.nspname as schema, c.relname as name, {_KIND} as kind{{more}}{{{{plus}}}} "
    "from pg_class c join pg_namespace n on n.oid = c.relnamespace {join}"
    "where c.relkind in ({kinds}) and {{filter}} order by 1, 2"
)
_SIZE = ", case when c.relkind not in ('v', 'f', 'p') then pg_size_pretty(pg_table_size(c.oid)) end as size"


def _build_relations(kinds: str, more: str = _SIZE, join: str = "") -> str:
    return _RELATIONS.format(kinds=", ".join(f"'{kind}'" for kind in kinds), more=more, join=join)


# {filter} narrows by the schema n.nspname and a name; which name is in NAMES. {plus} is what a + adds.
LISTS = {
    "\\d": _build_relations("rpvmfS"),
    "\\dt": _build_relations("rp"),
    "\\dv": _build_relations("v"),
    "\\dm": _build_relations("m"),
    "\\ds": _build_relations("S"),
    "\\di": _build_relations(
        "iI",
        ", t.relname as on_table" + _SIZE,
        "join pg_index i on i.indexrelid = c.oid join pg_class t on t.oid = i.indrelid ",
    ),
    "\\dn": "select n.nspname as name, obj_description(n.oid, 'pg_namespace') as description{plus} from pg_namespace n "
    "where {filter} order by 1",
    "\\df": "select n.nspname as schema, p.proname as name, pg_get_function_result(p.oid) as result, "
    "pg_get_function_arguments(p.oid) as arguments, "
    "case p.prokind when 'a' then 'aggregate' when 'w' then 'window' when 'p' then 'procedure' else 'function' end "
    "as kind{plus} from pg_proc p join pg_namespace n on n.oid = p.pronamespace where {filter} order by 1, 2, 4",
    "\\dT": "select n.nspname as schema, format_type(t.oid, null) as name, "
    "case t.typtype when 'e' then 'enum' when 'd' then 'domain' when 'c' then 'composite' when 'r' then 'range' "
    "else 'base' end as kind{plus} from pg_type t join pg_namespace n on n.oid = t.typnamespace "
    "where t.typtype in ('e', 'd', 'r', 'b', 'c') and t.typcategory <> 'A' and (t.typrelid = 0 or exists "
    "(select from pg_class c where c.oid = t.typrelid and c.relkind = 'c')) and {filter} order by 1, 2",
    "\\dx": "select x.extname as name, x.extversion as version, n.nspname as schema{plus} "
    "from pg_extension x join pg_namespace n on n.oid = x.extnamespace where {filter} order by 1",
    "\\du": "select r.rolname as role, not pg_has_role(current_user, r.oid, 'usage') as other, r.rolcanlogin as login, "
    "current_setting('default_transaction_read_only') = 'on' as read_only{plus} from pg_roles r "
    "where r.rolname = current_user and {filter}",
}
_PLUS = {
    "\\dn": ", pg_get_userbyid(n.nspowner) as owner, n.nspacl::text as privileges",
    "\\df": ", case p.provolatile when 'i' then 'immutable' when 's' then 'stable' else 'volatile' end as volatility, "
    "(select l.lanname from pg_language l where l.oid = p.prolang) as language, "
    "case when p.prosecdef then 'definer' else 'invoker' end as security, pg_get_userbyid(p.proowner) as owner, "
    "obj_description(p.oid, 'pg_proc') as description",
    "\\dT": ", (select string_agg(e.enumlabel, ', ' order by e.enumsortorder) from pg_enum e "
    "where e.enumtypid = t.oid) as elements, pg_get_userbyid(t.typowner) as owner, "
    "obj_description(t.oid, 'pg_type') as description",
    "\\dx": ", (select count(*) from pg_depend d where d.refclassid = 'pg_extension'::regclass and d.refobjid = x.oid "
    "and d.deptype = 'e') as objects, obj_description(x.oid, 'pg_extension') as description",
    "\\du": ", r.rolconnlimit as connections_max, shobj_description(r.oid, 'pg_authid') as description",
}
_PLUS_OF_RELATIONS = (
    ", pg_get_userbyid(c.relowner) as owner, "
    "case c.relpersistence when 'u' then 'unlogged' when 't' then 'temporary' else 'permanent' end as persistence, "
    "obj_description(c.oid, 'pg_class') as description"
)
_NAMES = {"\\dn": "n.nspname", "\\df": "p.proname", "\\dT": "t.typname", "\\dx": "x.extname", "\\du": "r.rolname"}
_EVERYWHERE = frozenset({"\\dx", "\\du"})


def build_listing(command: str, pattern: str, plus: bool = False) -> tuple[str, list[Any]]:
    """Return the query of a list and its parameters; with `plus`, of a list with more columns."""
    name = _NAMES.get(command, "c.relname")
    added = _PLUS.get(command, _PLUS_OF_RELATIONS) if plus else ""
    if not pattern:
        return LISTS[command].format(plus=added, filter="true" if command in _EVERYWHERE else _SYSTEM), []
    schema, wanted = split_pattern(pattern)
    filters, params = [f"{name} ~ $1"], [wanted]
    if schema is not None:
        filters.append("n.nspname ~ $2")
        params.append(schema)
    elif command not in _EVERYWHERE and command != "\\df":
        filters.append(_SYSTEM)
    return LISTS[command].format(plus=added, filter=" and ".join(filters)), params


def split_pattern(text: str) -> tuple[str | None, str]:
    """Return regular expressions for schema and name. `*` and `?` are wildcards; unquoted letters become lower case."""
    parts: list[str] = [""]
    for piece in re.findall(r'"(?:[^"]|"")*"?|.', text):
        if piece.startswith('"'):
            parts[-1] += re.escape(piece.strip('"').replace('""', '"'))
        elif piece == ".":
            parts.append("")
        else:
            parts[-1] += {"*": ".*", "?": "."}.get(piece, re.escape(piece.lower()))
    wanted = [f"^(?:{part})$" for part in parts[-2:]]
    return (wanted[0] if len(wanted) == 2 else None), wanted[-1]


def is_pattern(text: str) -> bool:
    """Return whether the name may stand for several."""
    return any(mark in re.sub(r'"(?:[^"]|"")*"', "", text) for mark in "*?")
