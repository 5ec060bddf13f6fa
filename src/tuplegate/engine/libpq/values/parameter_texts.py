"""Writes JSON parameters as the text that the server reads for the types of their placeholders."""

import re
from collections.abc import Generator, Iterator, Sequence
from typing import Final

import msgspec

from tuplegate.engine.libpq.values.types import (
    ARRAYS_MAX,
    DIMENSIONS_MAX,
    JSON_OIDS,
    TEXT_ARRAY,
    TypeInfo,
    TypeRegistry,
)
from tuplegate.engine.port import ParameterMismatch
from tuplegate.protocol.pieces import LARGE, split_array

PARAMS_AT_ONCE: Final = 1000
"""The number of parameters that are written without a return to the event loop."""


def needs_types(params: Sequence[msgspec.Raw]) -> bool:
    """Return whether a parameter is written differently for different placeholders.

    Arrays and objects are. So is a string that a json placeholder could take for JSON text. All other strings are sent
    as they are, and a json placeholder refuses them: see `is_json_refusal`.
    """
    return any(_is_ambiguous(bytes(raw)) for raw in params)


def _is_ambiguous(raw: bytes) -> bool:
    """Return whether the type decides the text. A wrong yes costs a question; a wrong no would store another value."""
    if raw[:1] != b'"':
        return raw[:1] in (b"[", b"{")
    if len(raw) > LARGE:
        return True
    text = _read_string(raw)
    return text.lstrip(" \t\n\r")[:1] in _JSON_STARTS or "\0" in text


_JSON_STARTS: Final = frozenset('"{[-0123456789tfn')


def _read_string(raw: bytes) -> str:
    return msgspec.json.decode(raw, type=str)


def to_texts(params: Sequence[msgspec.Raw], oids: Sequence[int] | None, types: TypeRegistry) -> list[bytes | None]:
    """Return the parameters as the server reads them; `oids` are the placeholders' types, None if they do not
    matter."""
    texts: list[bytes | None] = []
    for number, raw in enumerate(params, start=1):
        info = types.strip_domains(oids[number - 1]) if oids is not None else None
        written = bytes(raw)
        texts.append(_check_text(number, written, _to_text(written, info, types)))
    return texts


def to_untyped_texts(params: Sequence[msgspec.Raw], types: TypeRegistry) -> list[bytes | None] | None:
    """Return the parameters as text for any placeholders; None if they must be written in pieces."""
    if len(params) > PARAMS_AT_ONCE or any(len(bytes(raw)) > LARGE for raw in params):
        return None
    return to_texts(params, [TEXT_ARRAY] * len(params), types)


def add_untyped_texts(texts: list[bytes | None], params: Sequence[msgspec.Raw], types: TypeRegistry) -> Iterator[None]:
    """Write as `to_untyped_texts` does, with a stop after each piece of work."""
    # For an array of texts, an array is written as one, and everything else as for a text.
    return add_texts(texts, params, [TEXT_ARRAY] * len(params), types)


def _check_text(number: int, written: bytes, text: bytes | None) -> bytes | None:
    if text is not None and text is not written and b"\0" in text:
        raise ParameterMismatch(
            f"parameter ${number} contains a NUL character, which PostgreSQL text cannot hold", sqlstate="22021"
        )
    return text


def add_texts(
    texts: list[bytes | None], params: Sequence[msgspec.Raw], oids: Sequence[int], types: TypeRegistry
) -> Iterator[None]:
    """Write as `to_texts` does, with a stop after each piece of work."""
    size = 0
    for number, (raw, oid) in enumerate(zip(params, oids, strict=True), start=1):
        info = types.strip_domains(oid)
        written = bytes(raw)
        size += len(written) + _PARAM_BYTES
        if size > LARGE:
            size = 0
            yield
        if len(written) > LARGE and info.element and written[:1] == b"[":
            text: bytes | None = yield from _write_array_in_pieces(written, info, types, ARRAYS_MAX - 1)
        else:
            text = _to_text(written, info, types)
        texts.append(_check_text(number, written, text))


_PARAM_BYTES: Final = 32
"""The size that a parameter counts for at least."""


def _to_text(raw: bytes, info: TypeInfo | None, types: TypeRegistry, arrays: int = ARRAYS_MAX) -> bytes | None:
    """Write one parameter. `arrays` bounds how deep array types may still nest; the engine refuses deeper ones."""
    if raw == b"null":
        return None
    if info is not None and info.oid in JSON_OIDS:
        return raw
    if info is not None and info.element and raw[:1] == b"[" and arrays:
        return _write_array(raw, info, types, DIMENSIONS_MAX, arrays - 1)
    return _read_string(raw).encode() if raw[:1] == b'"' else raw


def _write_array(raw: bytes, array: TypeInfo, types: TypeRegistry, depth: int, arrays: int) -> bytes:
    element = types.strip_domains(array.element)
    texts = (_write_element(bytes(part), array, element, types, depth, arrays) for part in _split_array(raw))
    return b"{" + array.delimiter.encode().join(texts) + b"}"


# Numbers and booleans are written as they are if no string, object or null is among them.
_NOT_BARE: Final = re.compile(rb'["{n]')
_BARE: Final = re.compile(rb"[^{},]+")
_BRACES: Final = bytes.maketrans(b"[]", b"{}")


def _write_array_in_pieces(
    raw: bytes, array: TypeInfo, types: TypeRegistry, arrays: int
) -> Generator[None, None, bytes]:
    """Write as `_write_array` does, with a stop after each piece of work."""
    element = types.strip_domains(array.element)
    is_flat = element.oid in JSON_OIDS or bool(element.element)
    texts: list[bytes] = []
    for piece in split_array(raw, b"[]", b",", 1 if is_flat else DIMENSIONS_MAX + 1):
        yield
        if piece is None:
            continue
        part, before, behind = piece
        if element.element and arrays and len(part) > LARGE:
            # One element, next to a bracket where it is the first or the last.
            inner = part[1 - before : len(part) - 1 + behind].strip()
            if inner[:1] == b"[":
                text = yield from _write_array_in_pieces(inner, element, types, arrays - 1)
                texts.append(b"{" * (1 - before) + _quote(text) + b"}" * (1 - behind))
                continue
        wrapped = b"[" * before + part + b"]" * behind
        if is_flat or array.delimiter != "," or _NOT_BARE.search(wrapped) is not None:
            text = _write_array(wrapped, array, types, DIMENSIONS_MAX, arrays)
        else:
            text = _BARE.sub(rb'"\g<0>"', wrapped.translate(_BRACES, b" \t\n\r"))
        texts.append(text[before : len(text) - behind])
    return array.delimiter.encode().join(texts)


def _write_element(
    item: bytes, array: TypeInfo, element: TypeInfo, types: TypeRegistry, depth: int, arrays: int
) -> bytes:
    if item == b"null":
        return b"NULL"
    if item[:1] == b"[" and depth and element.oid not in JSON_OIDS and not element.element:
        return _write_array(item, array, types, depth - 1, arrays)
    text = _to_text(item, element, types, arrays)
    assert text is not None
    return _quote(text)


def _quote(text: bytes) -> bytes:
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def _split_array(raw: bytes) -> list[msgspec.Raw]:
    return msgspec.json.decode(raw, type=list[msgspec.Raw])


def is_json_refusal(sqlstate: str | None, message: str) -> bool:
    """Return whether the server refused a string because its placeholder is json: it must be sent as a JSON string."""
    return sqlstate == "22P02" and "type json" in message
