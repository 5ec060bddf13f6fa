"""Finds the literals in a simple statement, so that the engine need not parse and plan it for each value. Pure.

`select name from users where id = 7` is the template `select name from users where id = $1` with the value 7. Only
statements of four forms are taken, each matched from its first to its last character, and literals only on the right of
an equals sign and in a list of VALUES. A text with anything else, a function, an operator, a comment, an escape, stays
as it was sent. Whether the value means the same as the literal is decided by the engine's catalog: see `plans`.
"""

import re
from typing import Final

from tuplegate.engine.sql.facts import read_facts

_TEXT_MAX: Final = 2000
_KNOWN_MAX: Final = 1000
_DIGITS: Final = "0123456789"

_S: Final = r"[ \t\n\r\f\v]"
_NAME: Final = r'(?:[A-Za-z_][A-Za-z_0-9]*+|"[^"\0]++")'
_NAMES: Final = rf"{_NAME}(?:{_S}*+,{_S}*+{_NAME})*+"
_DOTTED: Final = rf"{_NAME}(?:\.{_NAME})*+"
_COLUMNS: Final = rf"(?:\*|{_DOTTED}(?:{_S}*+,{_S}*+{_DOTTED})*+)"
_PLACE: Final = r"\$[0-9]++"
_VALUE: Final = rf"(?:{_PLACE}|null|true|false|default)"
_EQUAL: Final = rf"{_DOTTED}{_S}*+={_S}*+{_PLACE}"
_WHERE: Final = rf"where{_S}++{_EQUAL}(?:{_S}++and{_S}++{_EQUAL})*+"
_ORDER: Final = rf"{_DOTTED}(?:{_S}++(?:asc|desc))?+"
_TAIL: Final = rf"(?:{_S}++order{_S}++by{_S}++{_ORDER}(?:{_S}*+,{_S}*+{_ORDER})*+)?+(?:{_S}++limit{_S}++[0-9]++)?+"
_RETURNING: Final = rf"(?:{_S}++returning{_S}++{_COLUMNS})?+"
# An amount that is added to a column stays in the text: it is computed for a row, and never before.
_SUM: Final = rf"{_DOTTED}{_S}*+[+\-]{_S}*+[0-9]++"
_SET: Final = rf"{_NAME}{_S}*+={_S}*+(?:{_VALUE}|{_SUM})"
_END: Final = rf"{_S}*+;?{_S}*+"

_FORM: Final = re.compile(
    "(?:"
    rf"select{_S}++{_COLUMNS}{_S}++from{_S}++{_DOTTED}{_S}++{_WHERE}{_TAIL}"
    "|"
    rf"insert{_S}++into{_S}++{_DOTTED}{_S}*+(?:\({_S}*+{_NAMES}{_S}*+\){_S}*+)?+values{_S}*+"
    rf"\({_S}*+{_VALUE}(?:{_S}*+,{_S}*+{_VALUE})*+{_S}*+\){_RETURNING}"
    "|"
    rf"update{_S}++{_DOTTED}{_S}++set{_S}++{_SET}(?:{_S}*+,{_S}*+{_SET})*+{_S}++{_WHERE}{_RETURNING}"
    "|"
    rf"delete{_S}++from{_S}++{_DOTTED}{_S}++{_WHERE}{_RETURNING}"
    ")" + _END,
    re.IGNORECASE | re.ASCII,
)
_KEYWORDS: Final = frozenset({"select", "insert", "update", "delete"})

# In a statement of one of the forms, literals, and nothing else, stand behind one of three signs. A minus right behind
# an equals sign would be part of an operator in other texts; a backslash means two things.
_LITERAL: Final = rf"""([=(,]{_S}*+)((?:(?<!=)-)?[0-9]++(?:\.[0-9]++)?+(?![0-9A-Za-z_.'"$])|'[^'\\\0]*+'(?!'))"""
_LITERALS: Final = re.compile(_LITERAL, re.ASCII)
# The same for texts with names in quotes, which are skipped as a whole. It takes three times as long.
_LITERALS_AND_QUOTED: Final = re.compile(rf"{_LITERAL}|(\"[^\"]*+\")", re.ASCII)

_INT4, _INT8, _NUMERIC, _INFERRED = 23, 20, 1700, 0
_INT4_MAX, _INT8_MAX = 2**31 - 1, 2**63 - 1


class Template:
    """A statement with placeholders for its literals. `types` are the engine's numbers; 0 if the engine is to infer
    one."""

    def __init__(self, text: str, types: tuple[int, ...], values: list[bytes | None]) -> None:
        self.text = text
        self.types = types
        self.values = values


class Place:
    """The place of a placeholder: beside a column that it is compared with, or that it is stored in.

    The column is known by its name, or by its number if a list of VALUES names none.
    """

    def __init__(self, number: int, column: str, index: int, stored: bool) -> None:
        self.number = number
        self.column = column
        self.index = index
        self.stored = stored


class Form:
    """A statement of one of the simple forms, reduced to its placeholders. `table` is as it was written."""

    def __init__(self, table: str, places: list[Place]) -> None:
        self.table = table
        self.places = places


_LIST_MARKS: Final = frozenset("(),")
_TOKEN: Final = re.compile(rf"{_NAME}|{_PLACE}|[0-9]++|[(),.=]", re.ASCII)


def find_form(text: str, keyword: str) -> Form | None:
    """Return the form of a text with its placeholders; None if the text is of no simple form."""
    if keyword not in _KEYWORDS or _FORM.fullmatch(text) is None or not read_facts(text, keyword).plain:
        return None
    tokens: list[str] = _TOKEN.findall(text)
    words = [token.lower() for token in tokens]
    if keyword == "insert" and words.count("values") > 1:  # one of them is a name
        return None
    start = 1 if keyword == "update" else words.index("into" if keyword == "insert" else "from") + 1
    end = start + 1
    while end < len(words) and words[end] == ".":
        end += 2
    places = _find_listed(tokens, words, end) if keyword == "insert" else _find_compared(tokens, words)
    return Form("".join(tokens[start:end]), places)


def _find_compared(tokens: list[str], words: list[str]) -> list[Place]:
    where = words.index("where")
    return [
        Place(int(token[1:]), _read_column(tokens[index - 2]), -1, index < where)
        for index, token in enumerate(tokens)
        if token[0] == "$"
    ]


def _find_listed(tokens: list[str], words: list[str], table_end: int) -> list[Place]:
    values = words.index("values", table_end)
    names = [_read_column(token) for token in tokens[table_end:values] if token not in _LIST_MARKS]
    listed = [token for token in tokens[values + 1 :] if token not in _LIST_MARKS]
    places = []
    for index, token in enumerate(listed):
        if token[0] == "$":
            name = names[index] if index < len(names) else ""
            places.append(Place(int(token[1:]), name, -1 if names else index, stored=True))
    return places


def _read_column(token: str) -> str:
    return token[1:-1] if token[0] == '"' else token.lower()


_known: dict[str, bool] = {}
"""Whether a text with placeholders is of a simple form: to check costs more than all the rest."""

_stems: dict[str, str] = {}
"""Templates by the text before their one literal, if that is a whole number and the last word. Other digits in the same
place are the same kind of literal, and need not be searched for."""


def find_template(sql: str, keyword: str) -> Template | None:
    """Return the template of a statement; None if the statement is of no simple form."""
    if keyword not in _KEYWORDS or len(sql) > _TEXT_MAX or "$" in sql:
        return None
    stem = sql.rstrip(_DIGITS)
    digits = sql[len(stem) :]
    known = _stems.get(stem)
    if known is not None and digits:
        return Template(known, (_find_integer_type(digits),), [digits.encode()])
    quoted = '"' in sql
    parts: list[str | None] = (_LITERALS_AND_QUOTED if quoted else _LITERALS).split(sql)
    types: list[int] = []
    values: list[bytes | None] = []
    step = 4 if quoted else 3
    for index in range(2, len(parts), step):
        literal = parts[index]
        if literal is None:
            continue
        if literal[0] == "'":
            values.append(literal[1:-1].encode())
            types.append(_INFERRED)
        else:
            values.append(literal.encode())
            types.append(_NUMERIC if "." in literal else _find_integer_type(literal))
        parts[index] = f"${len(values)}"
    if not values:
        return None
    text = "".join([part for part in parts if part is not None])
    simple = _known.get(text)
    if simple is None:
        if len(_known) >= _KNOWN_MAX:
            _known.clear()
        simple = _known[text] = _FORM.fullmatch(text) is not None and read_facts(text, keyword).plain
        if simple and digits and text == f"{stem}$1":
            if len(_stems) >= _KNOWN_MAX:
                _stems.clear()
            _stems[stem] = text
    return Template(text, tuple(types), values) if simple else None


def _find_integer_type(literal: str) -> int:
    """Return the type that the engine's own parser gives to the literal."""
    if len(literal) < 10:
        return _INT4
    number = int(literal)
    if -_INT4_MAX - 1 <= number <= _INT4_MAX:
        return _INT4
    return _INT8 if -_INT8_MAX - 1 <= number <= _INT8_MAX else _NUMERIC


# Used on a text without blanks and quotes, so that a literal in several pieces, or with quotes inside, is whole.
_MOMENT: Final = re.compile(
    "now|today|tomorrow|yesterday|timetz|timewithtimezone|reg(?:conf|dict|oper|proc|role|type|name|coll)"
)
_BETWEEN: Final = re.compile(r"['\"\s]+")
_ESCAPED: Final = re.compile(r"\\|\$[^0-9]|--")


def is_lasting(sql: str) -> bool:
    """Return whether preparing the statement once is safe: no literal in it depends on the current time. The engine
    reads literals when it prepares a statement, and some mean the current moment, or the object that has a name just
    then. A wrong no does no harm."""
    if _ESCAPED.search(sql) is not None:
        return False
    return "'" not in sql or _MOMENT.search(_BETWEEN.sub("", sql.lower())) is None
