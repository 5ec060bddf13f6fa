"""Writes a column of texts as one array literal of PostgreSQL. Pure.

No Python code runs for each value unless there are NULLs: the texts are joined by a character that no text of the
engine contains, and escapes are applied to the whole.
"""

from collections.abc import Sequence

_BETWEEN = "\0"
_NULL = "\x01"
# Characters that end, split or escape an element, or are stripped from it. Blanks are stripped only at its ends.
_SPECIAL = ('"', "\\", "{", "}", ",", "\t", "\n", "\r", "\v", "\f", f"{_BETWEEN} ", f" {_BETWEEN}")


def array_literal(values: Sequence[str | None], null: str | None = None) -> str:
    """Return the values as `{…}`. None, or the text that stands for it, becomes NULL."""
    if not values:
        return "{}"
    joined, nulls = _join(values, null)
    if joined.count(_BETWEEN) != len(values) - 1 or joined.count(_NULL) != nulls:
        return "{" + ",".join(map(_element, values, [null] * len(values))) + "}"
    if _is_plain(joined):
        return "{" + joined.replace(_BETWEEN, ",").replace(_NULL, "NULL") + "}"
    escaped = joined.replace("\\", "\\\\").replace('"', '\\"').replace(_BETWEEN, '","')
    return "{" + f'"{escaped}"'.replace(f'"{_NULL}"', "NULL") + "}"


def _join(values: Sequence[str | None], null: str | None) -> tuple[str, int]:
    """Return all values in one text, with a mark for each NULL, and the number of NULLs. Given a text for NULL, no
    value is None."""
    if null == "":
        joined = _BETWEEN.join(values)  # type: ignore[arg-type]  # no None is in it
        if not _has_empty(joined):
            return joined, 0
    elif null not in values:
        return _BETWEEN.join(values), 0  # type: ignore[arg-type]  # no None is in it
    marked = [_NULL if value is None or value == null else value for value in values]
    return _BETWEEN.join(marked), values.count(null)


def _is_plain(joined: str) -> bool:
    """Return whether no element needs quotes: none is empty, spells NULL, or has a special character."""
    if any(special in joined for special in _SPECIAL) or "null" in joined.lower():
        return False
    return not _has_empty(joined) and joined[0] != " " and joined[-1] != " "


def _has_empty(joined: str) -> bool:
    return not joined or joined[0] == _BETWEEN or joined[-1] == _BETWEEN or _BETWEEN * 2 in joined


def _element(value: str | None, null: str | None) -> str:
    if value is None or value == null:
        return "NULL"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
