"""The forms in which each file format carries values, by type: one table for export and import. Pure.

In every form, an exported value is imported as the same value, to the letter of the engine's text. If a format has no
exact form of its own for a type, it carries the engine's text, which the input function of the type reads back. A value
that a format cannot carry is refused by the name of its column, and never changed.
"""

import json
from collections.abc import Collection
from enum import Enum

import msgspec

from tuplegate.client.values import JsonText


class Form(Enum):
    NATIVE = "native"
    """The value as the service answers it: a number, a bool, or text."""
    LIST = "list"
    """A list of such values. An array has bounds too, and its dimensions: where a list cannot tell them, it is text."""
    DOCUMENT = "document"
    """JSON as the engine has it, or its text in an object where that would not be the same value."""
    TEXT = "text"
    """The engine's text."""


class Kind(Enum):
    """Kinds of types, as far as formats differ in how they carry them."""

    DOCUMENT = "json, jsonb"
    DOCUMENTS = "arrays of json and jsonb, and of domains"
    ARRAY = "other arrays"
    SCALAR = "all others"


FORMS: dict[Kind, dict[str, Form]] = {
    Kind.DOCUMENT: {"csv": Form.TEXT, "ndjson": Form.DOCUMENT, "parquet": Form.TEXT},
    Kind.DOCUMENTS: {"csv": Form.TEXT, "ndjson": Form.TEXT, "parquet": Form.TEXT},
    Kind.ARRAY: {"csv": Form.TEXT, "ndjson": Form.LIST, "parquet": Form.LIST},
    Kind.SCALAR: {"csv": Form.NATIVE, "ndjson": Form.NATIVE, "parquet": Form.NATIVE},
}
"""The table. Types of Parquet's own for scalars are in `parquet_file`."""

_DOCUMENT_TYPES = frozenset({"json", "jsonb"})


def find_kind(type: str, domains: Collection[str]) -> Kind:
    """Return the kind of a type, given by its name in an answer. `domains` are names of domains."""
    element = type.removesuffix("[]")
    if element == type:
        return Kind.DOCUMENT if type in _DOCUMENT_TYPES else Kind.SCALAR
    return Kind.DOCUMENTS if element in _DOCUMENT_TYPES or element in domains else Kind.ARRAY


# -- in SQL --------------------------------------------------------------------------------------------------------


def is_own(type: str) -> bool:
    """Return whether a type is not the engine's own: its name has a schema."""
    return "." in type


def text_sql(expression: str, type: str) -> str:
    """Return SQL for the engine's text of a value. A cast that a tenant has made for a type of its own is not asked."""
    if is_own(type) or type in ("bpchar", "character"):
        return f"case when {expression} is distinct from null then format('%s', {expression}) end"
    return f"{expression}::text"


DOCUMENT_SQL = (
    "(with recursive under(type) as (select t.oid union all "
    "select d.typbasetype from under u join pg_type d on d.oid = u.type where d.typtype = 'd') "
    "select u.type::regtype::text from under u where u.type in ('json'::regtype::oid, 'jsonb'::regtype::oid))"
)
"""`json` or `jsonb` if `t`, a row of pg_type, is one of them or a domain over it; else NULL."""

# -- documents in JSON ---------------------------------------------------------------------------------------------

_BLANKS = " \t\r\n"
_IN_OBJECT = '{"$text":'
_IN_OBJECT_BYTES = _IN_OBJECT.encode()


class _TextInObject(msgspec.Struct, forbid_unknown_fields=True):
    text: str = msgspec.field(name="$text")


_decode_object = msgspec.json.Decoder(_TextInObject).decode


def write_document(text: str) -> JsonText:
    """Return a json or jsonb value as JSON on one line, from which `read_document` returns the same text.

    A JSON null would be read as NULL, and a text with line breaks or blanks around it does not fit: these are written
    as `{"$text":"…"}`.
    """
    if (
        text == "null"
        or text[0] in _BLANKS
        or text[-1] in _BLANKS
        or "\n" in text
        or "\r" in text
        or text.startswith(_IN_OBJECT)
    ):
        return JsonText(f"{_IN_OBJECT}{json.dumps(text)}}}")
    return JsonText(text)


def read_document(raw: bytes) -> str:
    """Return the text of a document in a line of JSON."""
    if raw.startswith(_IN_OBJECT_BYTES):
        try:
            return _decode_object(raw).text
        except msgspec.ValidationError:
            pass  # a document that only looks like it
    return raw.decode()
