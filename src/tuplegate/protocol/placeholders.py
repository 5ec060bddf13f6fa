"""Placeholders of other drivers, which the engine mistakes for something else. Pure."""

import re

_LOOKED_AT_MAX = 4096
"""Characters: longer statements get only the error of the engine."""

_QUOTED = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n\r]*|/\*.*?\*/", re.DOTALL)
_OWN = re.compile(r"\$[0-9]")
_FOREIGN = re.compile(r"(?<![?|&<>@#~!*/+-])\?(?![?|&<>@#~!*/+-])|%s\b|%\([a-z_]\w*\)s|(?<![:\w]):[a-z_]\w*", re.I)


def foreign_placeholder(sql: str) -> str | None:
    """Return the first `?`, `%s` or `:name` of a text without `$1`, outside of quotes and comments."""
    if len(sql) > _LOOKED_AT_MAX:
        return None
    bare = _QUOTED.sub(" ", sql)
    found = None if _OWN.search(bare) else _FOREIGN.search(bare)
    return None if found is None else found.group()
