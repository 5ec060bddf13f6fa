"""Reads the scripts of extensions, to prove that running one as superuser runs nothing of a tenant's.

Contract: `find_hazard` names the first statement of a script that is not proved harmless, or returns None. It is pure.

PostgreSQL runs the script of a trusted extension as superuser, in a schema that the tenant chose and where the tenant
may have defined objects under any name. The proof has two parts. First, no statement that is allowed here evaluates an
expression, so no code of a tenant's has a reason to run; what they call are functions in C, of the server or of the
extension's own library. Second, the statements look names up in `pg_catalog` first, then in the schema, and by exact
types; what the script refers to it has made itself, and what exists already it cannot make: PostgreSQL refuses to
replace, or to fill in, an object that does not belong to the extension. docs/decisions/0018-extensions.md has the
details and what was tried.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

_TOKEN: Final = re.compile(
    r"""
      (?P<space>\s+|--[^\n]*)
    | (?P<comment>/\*)
    | (?P<dollar>\$(?:[a-z_\x80-\U0010ffff][a-z_0-9\x80-\U0010ffff]*)?\$)
    | (?P<escaped>e'(?:[^'\\]|''|\\[^'])*')
    | (?P<text>'(?:[^'\\]|'')*')
    | (?P<quoted>"(?:[^"\\]|"")+")
    | (?P<word>[a-z_\x80-\U0010ffff][a-z_0-9$\x80-\U0010ffff]*(?!['&]))
    | (?P<number>\d+(?:\.\d+)?)
    | (?P<parameter>\$\d+)
    | (?P<symbol>[-+*/<>=~!@\#%^&|`?.,:()\[\]{};])
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Strings with a backslash match nothing: what they mean depends on a setting of the tenant's."""

_ECHO: Final = re.compile(r"^\\echo.*$", re.MULTILINE)
"""Lines that PostgreSQL leaves out."""

_ALLOWED: Final = (
    "create type",
    "create domain",
    "create function",
    "create cast",
    "create operator",
    "create aggregate",
    "create access method",
    "create text search template",
    "create text search dictionary",
    "alter function",
    "alter operator",
    "alter type",
    "alter extension",
    "drop function",
    "drop operator",
    "drop cast",
    "comment on",
)
"""Operators include their classes and families."""

_REFUSED_WORDS: Final = {
    "atomic": "a body that is analysed when it is made",
    "begin": "a body that is analysed when it is made",
    "return": "a body that is analysed when it is made",
    "check": "an expression",
    "generated": "an expression",
    "security": "a function that runs with the rights of its owner",
    "definer": "a function that runs with the rights of its owner",
    "cascade": "a change of what depends on it",
    "owner": "a change of owner",
}
_REFUSED_PAIRS: Final = {
    ("or", "replace"): "an object that may be there already",
    ("if", "not"): "an object that may be there already",
    ("if", "exists"): "an object that may be there already",
}
_LANGUAGES: Final = frozenset({"c", "internal", "sql"})
"""While a script runs, PostgreSQL looks at no body that is a string: check_function_bodies is off."""

_LITERALS: Final = ("text", "number")
_WORD_LITERALS: Final = ("null", "true", "false")

REVIEWED: Final[dict[str, str]] = {
    "1ece52185fcbeaf78b43984c9923d1949ddca64d30350a5b96e3d42fe5e1ee72": "cube--1.3--1.4",
    "59e7d2875e78467c18349da9b0648e213be07654c0c52c0ef4cf89e719acc78f": "seg--1.2--1.3",
    "2d658cf2defb2a9e510939e84cbe65f5af8eba61c9b0aa76512c65d6f98342e6": "citext--1.6--1.7",
    "f498dbcfd839b21536d1e474430bd0161b84ee116cb2bdfe88c51d83380c66a2": "citext--1.7--1.8",
    "8e2a2180cefa65513bfe122dce821acb5c16abcb569f98830671d68ef9700a61": "lo--1.1--1.2",
}
"""SHA-256 of scripts that the rules refuse and that were read by hand, with their names.

- cube and seg: a DO block that updates pg_depend. Its names are qualified; for its operators it sets the path to
  pg_catalog.
- citext: replaces functions that an earlier script has made, which belong to the superuser. 1.8 gives them bodies that
  are analysed. The functions in these are qualified, and the operators have types that pg_catalog has exactly.
- lo: replaces one such function; its body is a cast to a type of the server.
"""


class UnreadableScript(Exception):
    """The text has something in it whose meaning is not certain."""


def find_hazard(script: bytes) -> str | None:
    """Return the first statement that is not proved harmless, with the reason, or None."""
    if hashlib.sha256(script).hexdigest() in REVIEWED:
        return None
    seen: set[str] = set()
    try:
        for statement in split_script(script.decode()):
            reason = _judge(statement) or _judge_type(statement, seen)
            if reason is not None:
                return f"{reason}: {' '.join(text for _, text in statement)[:200]}"
            seen.update(text for kind, text in statement if kind in ("word", "quoted"))
    except (UnreadableScript, UnicodeDecodeError) as exc:
        return str(exc)
    return None


def split_script(script: str) -> Iterator[list[tuple[str, str]]]:
    """Split a script into statements of tokens: their kinds and texts; words in lower case, bodies as one token."""
    statement: list[tuple[str, str]] = []
    for kind, text in _tokens(_ECHO.sub("", script)):
        if text == ";":
            if statement:
                yield statement
            statement = []
        else:
            statement.append((kind, text.lower() if kind == "word" else text))
    if statement:
        yield statement


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise UnreadableScript(f"text that is not understood: {text[position : position + 60]!r}")
        kind, position = str(match.lastgroup), match.end()
        if kind == "comment":
            position = _end_of_comment(text, match.start())
        elif kind == "dollar":
            end = text.find(match[0], position)
            if end < 0:
                raise UnreadableScript("a body without end")
            position = end + len(match[0])
            yield "text", text[match.start() : position]
        elif kind != "space":
            yield kind, match[0]


def _end_of_comment(text: str, start: int) -> int:
    depth = 0
    for match in re.compile(r"/\*|\*/").finditer(text, start):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return match.end()
    raise UnreadableScript("a comment without end")


def _judge(statement: Sequence[tuple[str, str]]) -> str | None:
    """Return the reason why a statement is not proved harmless, or None."""
    words = [text if kind == "word" else "" for kind, text in statement]
    start = " ".join(words[:4])
    if not any(start == kind or start.startswith(f"{kind} ") for kind in _ALLOWED):
        return "a kind of statement that is not on the list"
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if reason := _REFUSED_WORDS.get(word) or _REFUSED_PAIRS.get((word, following)):
            return reason
    if any(kind == "escaped" for kind, _ in statement):
        return "a string with escapes"
    languages = _languages(statement)
    if (start.startswith("create function") and not languages) or not languages <= _LANGUAGES:
        return "a language that may look at the body"
    if start.startswith(("create domain", "alter type")) and "default" in words:
        return "an expression"
    for index, (kind, text) in enumerate(statement):
        if "function" in words[:2] and ((kind, text) == ("word", "default") or text == "="):
            value, after = (*statement[index + 1 : index + 3], ("", ""), ("", ""))[:2]
            if not (value[0] in _LITERALS or value[1] in _WORD_LITERALS) or after[1] not in (",", ")"):
                return "an expression"
    return None


def _judge_type(statement: Sequence[tuple[str, str]], seen: set[str]) -> str | None:
    """Return a reason where a type is mentioned before it is made: until then it could be one in pg_temp.

    A base type is made only where the mention has left a shell of it in the schema, which PostgreSQL checks.
    """
    words = [text for _, text in statement[:4]]
    if words[:2] not in (["create", "type"], ["create", "domain"]) or words[3:] == ["("]:
        return None
    return "a type that is mentioned before it is made" if words[2] in seen else None


def _languages(statement: Sequence[tuple[str, str]]) -> set[str]:
    return {name.strip("'").lower() for (_, word), (_, name) in pairwise(statement) if word == "language"}
