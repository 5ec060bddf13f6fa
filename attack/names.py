"""Names that hostile objects should bear: every word of the service's own SQL that could be a name."""

import ast
import functools
import re
from pathlib import Path

import tuplegate

_SQL = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|CREATE|GRANT|REVOKE|ALTER|DECLARE|FETCH|SET LOCAL|RETURN|FROM)\b")
_WORD = re.compile(r"(?<![%{$:\\])\b[a-z_][a-z0-9_]{1,40}\b(?!})")

TYPES = (
    "bool", "int2", "int4", "int8", "float8", "numeric", "text", "name", "oid", "bytea", "json", "jsonb", "timestamptz",
    "interval", "regclass", "regrole", "regproc", "xid8", "void", "anyelement", "cstring", "text[]", "int4[]",
)  # fmt: skip
SIGNS = (
    "=",
    "<>",
    "<",
    ">",
    "<=",
    ">=",
    "||",
    "~",
    "!~",
    "~*",
    "~~",
    "!~~",
    "+",
    "-",
    "*",
    "/",
    "->",
    "->>",
    "@>",
    "&&",
)


@functools.cache
def of_service() -> tuple[str, ...]:
    """Found by a rough look at all strings in the package that have SQL in them; sorted, so that a seed repeats."""
    found: set[str] = set()
    for path in sorted(Path(tuplegate.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                text = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
                if _SQL.search(text):
                    found |= set(_WORD.findall(text))
    return tuple(sorted(found))
