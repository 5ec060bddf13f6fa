"""Suggests what could stand at the cursor: keywords, schemas, relations, columns, aliases, functions. Pure.

This is no parser: it only finds the relations that a statement names, their aliases, and the word before the cursor.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tuplegate.cli.shell.completion.keywords import KEYWORDS, RESERVED
from tuplegate.cli.shell.completion.names import Names
from tuplegate.cli.splitting import CommandLine, Reader
from tuplegate.client.statements import quote

_TYPED = re.compile(r'(?:(?:"[^"]*"|[\w$]+)\.)*(?:"[^"]*|[\w$]*)$')
_TOKEN = re.compile(
    r"""--[^\n]* | /\*.*?(?:\*/|\Z) | '(?:[^']|'')*(?:'|\Z) | \$(\w*)\$.*?(?:\$\1\$|\Z)
    | "(?:[^"]|"")*"? | [^\W\d][\w$]* | \d[\w.]* | [^\s\w]""",
    re.VERBOSE | re.DOTALL,
)
_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*")
_RELATIONS_AFTER = frozenset(
    {"from", "join", "into", "update", "table", "truncate", "view", "analyze", "vacuum", "only"}
)
_NOT_ALIASES = frozenset(KEYWORDS) - {"text", "key", "time", "type", "role", "date", "range", "row", "rows"}
_SILENT = frozenset({"as"})


@dataclass(frozen=True)
class Candidate:
    """A suggestion; `text` replaces the last `typed` letters before the cursor."""

    text: str
    typed: int
    kind: str


def suggest(before: str, after: str, names: Names) -> list[Candidate]:
    """Return suggestions for a cursor between two texts."""
    reader = Reader()
    parts = list(reader.feed(before))
    typed = _TYPED.search(before)
    assert typed is not None, "it matches the empty text"
    word = typed.group()
    if parts and isinstance(parts[-1], CommandLine) and before.endswith(parts[-1].text):
        return []  # the cursor is in a command, not in a statement
    if reader.inside and reader.inside != "(" and not (reader.inside == '"' and '"' in word):
        return []
    if any(token.group().startswith("--") for token in _TOKEN.finditer(reader.pending.rpartition("\n")[2])):
        return []
    head = reader.pending[: len(reader.pending) - len(word)]
    statement = _first_statement(head + " " + after)
    *qualifier, prefix = _parts(word)
    typed_last = len(word) - word.rfind(".") - 1 if qualifier else len(word)
    if qualifier:
        found = _suggest_qualified([_fold(part) for part in qualifier], statement, names)
    else:
        found = _suggest_unqualified(_words(head), statement, names)
    return list(_filter_matching(found, prefix, typed_last))


def suggest_relations(before: str, names: Names) -> list[Candidate]:
    """Return suggestions after a command that takes a relation."""
    typed = _TYPED.search(before)
    assert typed is not None, "it matches the empty text"
    *qualifier, prefix = _parts(typed.group())
    if qualifier:
        found: Iterable[tuple[str, str]] = _list_schema(_fold(qualifier[0]), names)
    else:
        found = [*_list_relations(names), *_list_schemas(names)]
    return list(_filter_matching(found, prefix, len(typed.group()) - typed.group().rfind(".") - 1))


def _filter_matching(found: Iterable[tuple[str, str]], prefix: str, typed: int) -> Iterator[Candidate]:
    quoted, wanted = prefix.startswith('"'), prefix.strip('"')
    seen = set()
    for name, kind in found:
        matches = name.startswith(wanted) if quoted else name.lower().startswith(wanted.lower())
        if not matches or name in seen or (kind == "keyword" and quoted):
            continue
        seen.add(name)
        if kind == "keyword":
            yield Candidate(name.upper() if wanted.isupper() else name, typed, kind)
        else:
            yield Candidate(quote_if_needed(name), typed, kind)


def quote_if_needed(name: str) -> str:
    if _PLAIN.fullmatch(name) and name not in RESERVED:
        return name
    return quote(name)


# -- where the cursor is -------------------------------------------------------------------------------------------


def _suggest_qualified(qualifier: list[str], statement: str, names: Names) -> Iterator[tuple[str, str]]:
    """Suggest what can follow a dot: columns of a relation or alias, or the contents of a schema."""
    if len(qualifier) >= 2:
        yield from ((column, "column") for column in names.columns(qualifier[-2], qualifier[-1]))
        return
    [name] = qualifier
    for relation in find_relations(statement):
        if name in (relation.alias, relation.name):
            yield from ((column, "column") for column in names.columns(relation.schema, relation.name))
    if name in names.schemas:
        yield from _list_schema(name, names)
    else:
        yield from ((column, "column") for column in names.columns(None, name))


def _list_schema(schema: str, names: Names) -> Iterator[tuple[str, str]]:
    yield from ((name, "relation") for found, name in sorted(names.relations) if found == schema)
    yield from ((name, "function") for found, name in sorted(names.functions) if found == schema)


def _suggest_unqualified(words: list[str], statement: str, names: Names) -> Iterator[tuple[str, str]]:
    last = words[-1] if words else ""
    if last in _SILENT:
        return
    if last in _RELATIONS_AFTER or (last == "," and _is_in_from(words)):
        yield from ((name, "with") for name in _find_common_tables(statement))
        yield from _list_relations(names)
        yield from _list_schemas(names)
        yield from (("only", "keyword"), ("lateral", "keyword"), ("select", "keyword"))
        return
    named = list(find_relations(statement))
    for relation in named:
        yield from ((column, "column") for column in names.columns(relation.schema, relation.name))
    yield from ((relation.alias or relation.name, "alias") for relation in named)
    yield from ((word, "keyword") for word in KEYWORDS)
    yield from ((name, "function") for schema, name in sorted(names.functions, key=lambda key: key[0] == "pg_catalog"))
    if not named:
        yield from _list_relations(names)
        yield from _list_schemas(names)


def _list_relations(names: Names) -> list[tuple[str, str]]:
    """Return all relations, the user's own first. Those of the system need no schema."""
    shown = [key for key in names.relations if key[0] != "information_schema"]
    return [(name, "relation") for _, name in sorted(shown, key=lambda key: (key[0] == "pg_catalog", key[1]))]


def _list_schemas(names: Names) -> list[tuple[str, str]]:
    return [(name, "schema") for name in sorted(names.schemas)]


def _is_in_from(words: list[str]) -> bool:
    """Return whether a comma here is in a list of relations."""
    for word in reversed(words):
        if word in ("select", "where", "by", "set", "values", "having", "returning", "(", "on", "using"):
            return False
        if word == "from":
            return True
    return False


# -- what a statement names ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NamedRelation:
    schema: str | None
    name: str
    alias: str | None


def find_relations(statement: str) -> Iterator[NamedRelation]:
    """Yield the relations after FROM, JOIN, INTO and UPDATE, with their aliases."""
    tokens = _tokenize(statement)
    i = 0
    while i < len(tokens):
        word = tokens[i].lower()
        i += 1
        if word not in ("from", "join", "into", "update", "using"):
            continue
        while True:
            while i < len(tokens) and tokens[i].lower() in ("only", "lateral"):
                i += 1
            named, i = _read_relation(tokens, i)
            if named is None:
                break
            yield named
            if i >= len(tokens) or tokens[i] != ",":
                break
            i += 1


def _read_relation(tokens: list[str], i: int) -> tuple[NamedRelation | None, int]:
    """Read the relation that begins at a token; return it and the index after it."""
    if i >= len(tokens) or not _is_name(tokens[i]):
        return None, i
    parts = [_fold(tokens[i])]
    i += 1
    while i + 1 < len(tokens) and tokens[i] == "." and _is_name(tokens[i + 1]):
        parts.append(_fold(tokens[i + 1]))
        i += 2
    alias = None
    if i < len(tokens) and tokens[i].lower() == "as":
        i += 1
    if i < len(tokens) and _is_name(tokens[i]) and tokens[i].lower() not in _NOT_ALIASES:
        alias = _fold(tokens[i])
        i += 1
    return NamedRelation(parts[-2] if len(parts) > 1 else None, parts[-1], alias), i


def _find_common_tables(statement: str) -> Iterator[str]:
    tokens = _tokenize(statement)
    if not tokens or tokens[0].lower() != "with":
        return
    for i, token in enumerate(tokens[:-2]):
        if _is_name(token) and tokens[i + 1].lower() == "as" and tokens[i + 2] in ("(", "materialized", "not"):
            yield _fold(token)


def _is_name(token: str) -> bool:
    return token.startswith('"') or token[:1].isidentifier()


def _tokenize(text: str) -> list[str]:
    found = (match.group() for match in _TOKEN.finditer(text))
    return [token for token in found if not token.startswith(("--", "/*"))]


def _words(text: str) -> list[str]:
    return [token.lower() for token in _tokenize(text)]


def _first_statement(text: str) -> str:
    return next((part.sql for part in Reader().feed(text) if not isinstance(part, CommandLine)), text)


def _parts(word: str) -> list[str]:
    return re.findall(r'"[^"]*"?|[\w$]+|(?<=\.)$|^$', word) or [""]


def _fold(name: str) -> str:
    return name.strip('"').replace('""', '"') if name.startswith('"') else name.lower()
