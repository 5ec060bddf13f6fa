"""Reads the text of a statement by the rules of this engine's scanner. Pure.

The rest of the service reads texts as PostgreSQL does. This engine differs in points that decide what runs:

- It folds letters beyond ASCII in names without quotes: `commıt` is COMMIT, and so is a word with U+212A for its K.
- A comment that begins with `--` ends at a line feed only, not at a carriage return.
- `#-` and `//` are operators, so that `#--` and `//*` begin no comment.

`check_text` refuses a text that the two would read differently. A text that passes has the same first word, strings and
comments for both. The exception is a comment behind `#-` or `//`, which only this module knows.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from tuplegate.engine import port
from tuplegate.protocol.statements import find_comment_end

_LETTER: Final = r"A-Za-z_\x80-\U0010ffff"
_ESCAPED: Final = r"'(?>[^'\\]++|\\.|'')*+'"
_TOKEN: Final = re.compile(
    rf"""
      (?P<blank> [ \t\r\n\f]++ )
    | (?P<line> --[^\n]*+ )
    | (?P<block> /\* )
    | (?P<string> [eEb]{_ESCAPED} (?> [ \t\r\f]*+ \n [ \t\r\n\f]*+ {_ESCAPED} )*+ | [xXB]? '(?>[^']++|'')*+' )
    | (?P<quoted> "(?>[^"]++|"")*+" )
    | (?P<dollar> \$ (?: [{_LETTER}][{_LETTER}0-9]*+ )?+ \$ )
    | (?P<word> [{_LETTER}][{_LETTER}0-9$]*+ )
    | (?P<sign> \$[0-9]++ | [0-9]++ | \#- | // | \|\|/ | \|\| | \|/ | !?~\* | \?[?|&] | . )
    """,
    re.VERBOSE | re.DOTALL,
)
_NAME: Final = re.compile(r"[a-z_][a-z_0-9]*+")
_BEYOND_ASCII: Final = re.compile(r"[^\x00-\x7f]")
_CARRIAGE_RETURN: Final = re.compile(r"\r(?!\r*(?:\n|\Z))")
_FOLDED: Final = str.maketrans({"\u0131": "i", "\u0130": "i", "\u212a": "k"})
"""The letters beyond ASCII that this engine takes for ASCII letters."""


class Token(NamedTuple):
    """A piece of a text: `kind` is blank, line, block, string, quoted, dollar, word, or sign."""

    kind: str
    start: int
    end: int


def scan(sql: str) -> Iterator[Token]:
    """Cut the text into the pieces that the engine's scanner sees. Stop at a quote or comment that nothing closes: the
    engine refuses such a text as a whole."""
    at = 0
    while at < len(sql):
        match = _TOKEN.match(sql, at)
        assert match is not None, "a sign is any character"
        kind, end = str(match.lastgroup), match.end()
        if kind == "block":
            end = find_comment_end(sql, at)
        elif kind == "dollar":
            closes = sql.find(match.group(), end)
            if closes < 0:
                return
            end = closes + end - at
        elif sql[at] in "'\"" and kind == "sign":
            return
        yield Token(kind, at, end)
        at = end


def check_text(sql: str) -> None:
    """Raise if this engine would read the text differently from the rest of the service."""
    if sql.isascii() and ("\r" not in sql or "--" not in sql):
        return
    for kind, start, end in scan(sql):
        if kind == "line":
            found = _CARRIAGE_RETURN.search(sql, start, end)
            if found is not None:
                raise _refuse(
                    found.start(),
                    "a comment that begins with -- has a carriage return inside",
                    "This engine ends such a comment at a line feed only. End the line with a line feed.",
                )
        elif kind in ("word", "dollar"):
            found = _BEYOND_ASCII.search(sql, start, end if kind == "word" else sql.index("$", start + 1))
            if found is not None:
                raise _refuse(
                    found.start(),
                    f"{found.group()!r} (U+{ord(found.group()):04X}) stands outside of quotes",
                    'Put the name in double quotes: without them this engine reads some letters as others ("ı" as i).',
                )


def _refuse(index: int, message: str, hint: str) -> port.ParseFailed:
    failure = port.ParseFailed(message, sqlstate="42601", position=index + 1, hint=hint)
    failure.never_ran = True
    return failure


def fold(sql: str) -> str:
    """Return the text in lower case, folded as this engine does, to search it for names. Other characters beyond ASCII
    are replaced."""
    if sql.isascii():
        return sql.lower()
    return sql.translate(_FOLDED).encode("ascii", "replace").decode("ascii").lower()


def find_names(sql: str) -> frozenset[str]:
    """Return every possible name or part of a name in the text, folded, including those in quotes and comments."""
    return frozenset(_NAME.findall(fold(sql)))


def list_words(sql: str) -> list[str]:
    """Return the words outside of quotes and comments, folded, in their order."""
    return [fold(sql[start:end]) for kind, start, end in scan(sql) if kind == "word"]


def find_called(sql: str) -> frozenset[str]:
    """Return the names, folded, that stand before a bracket, as the names of called functions do."""
    pieces = _list_pieces(sql)
    return frozenset(name.strip('"') for name, behind in pairwise(pieces) if behind == "(")


_ARRAYS: Final = frozenset({"[", "array"})
_OF_LENGTH_1: Final = frozenset({"char", "character", "bit", "nchar"})
_WITH_LENGTH: Final = _OF_LENGTH_1 | {"varchar", "varying", "bpchar", "varbit", "string", "text"}


def find_cutting_type(sql: str) -> str:
    """Return the first type in the text that is an array of texts or bits with a length; empty if there is none."""
    pieces = [*_list_pieces(sql), ""]
    for index, piece in enumerate(pieces[:-1]):
        if piece in _OF_LENGTH_1 and pieces[index + 1] in _ARRAYS:
            return f"{piece}[]"
        length = pieces[index + 1 : index + 5]
        if piece in _WITH_LENGTH and length[:1] == ["("] and length[2:3] == [")"] and set(length[3:]) & _ARRAYS:
            return f"{piece}({length[1]})[]"
    return ""


def _list_pieces(sql: str) -> list[str]:
    """Return all pieces except blanks and comments, folded."""
    return [fold(sql[start:end]) for kind, start, end in scan(sql) if kind not in ("blank", "line", "block")]


_BEFORE_HEADS: Final = frozenset({"(", "[", "explain", "analyze", "analyse"})
_HEAD_PIECES: Final = 16


def list_heads(sql: str) -> list[list[str]]:
    """Return the first 16 pieces of each statement in the text: of the text itself, and behind each bracket. After
    EXPLAIN and PREPARE, also behind the options or the AS."""
    pieces = _list_pieces(sql)
    while pieces and pieces[0] == ";":
        del pieces[0]
    first = pieces[0] if pieces else ""
    before = _BEFORE_HEADS | ({")"} if first == "explain" else {"as"} if first == "prepare" else set())
    starts = [index for index in range(len(pieces)) if index == 0 or pieces[index - 1] in before]
    return [pieces[start : start + _HEAD_PIECES] for start in starts]


def find_action(head: Sequence[str]) -> str:
    """Return the word behind the object's name in an ALTER; empty if there is none."""
    rest = head[2:]
    if rest[:2] == ["if", "exists"]:
        rest = rest[2:]
    rest = rest[1:]
    while rest[:1] in (["."], ["@"]):
        rest = rest[2:]
    return rest[0] if rest else ""


def list_options(sql: str) -> frozenset[str]:
    """Return the options of every EXPLAIN in the text, folded."""
    found, options, pieces = set(), False, ["", "", *_list_pieces(sql)]
    for index, piece in enumerate(pieces):
        before = pieces[index - 2 : index]
        if options and piece != "," and before[1:] not in (["("], [","]):
            options = False
        elif options:
            found.add(piece.strip('"'))
        if piece == "(":
            options = before[1:] == ["explain"] or (before[:1] == ["explain"] and before[1] in ("analyze", "analyse"))
    return frozenset(found - {","})
