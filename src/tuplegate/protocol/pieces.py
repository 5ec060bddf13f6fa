"""Cuts large values into pieces, so that converting them does not block the event loop.

Converting a piece takes a few milliseconds. The text of an array, the engine's or JSON, is cut between two elements, at
any depth; the converter of a piece opens and closes the surrounding arrays again. Pure.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Final

PIECE: Final = 1 << 15
"""Bytes of an array's text: short elements of this size together are converted in about five milliseconds."""
LARGE: Final = 1 << 16
"""Bytes of a value that may be converted at once."""

_TRIES: Final = 8

Piece = tuple[bytes, int, int]
"""A part of an array's text without the delimiters around it, and how many arrays are open before and after it."""

_QUOTE, _BRACE, _END_BRACE = b'"{}'
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_IN_STRING: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_STRINGS: Final = re.compile(_STRING, re.DOTALL)
_WHOLE_STRINGS: Final = re.compile(rb'(?:[^"]++|%b)*+' % _STRING, re.DOTALL)
"""Text up to a string that does not end within the window."""
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]")


@cache
def _tokens(delimiter: bytes) -> "re.Pattern[bytes]":
    """Match tokens. A string that does not end within the window matches as a single quote."""
    return re.compile(rb'%b|["{}\[\]]|%b' % (_STRING, re.escape(delimiter)), re.DOTALL)


def split_array(text: bytes, brackets: bytes, delimiter: bytes, deepest: int) -> Iterator[Piece | None]:
    """Yield pieces of the text of an array, which must be well-formed; None for a window without a place to cut.

    `brackets` are those of an array. Nothing is cut inside more than `deepest` arrays or inside a JSON object. An
    element that is larger than a window is a piece of its own, with the brackets next to it.
    """
    start = opened = 0
    for cut in _cuts(text, brackets, delimiter, deepest):
        if cut is None:
            yield None
            continue
        end, depth = cut
        yield text[start:end], opened, depth
        start, opened = end + 1, depth
    yield text[start:], opened, 0


def _cuts(text: bytes, brackets: bytes, delimiter: bytes, deepest: int) -> Iterator[tuple[int, int] | None]:
    """Yield the delimiters to cut at, and how many arrays are open there."""
    opening, closing, between = brackets[0], brackets[1], delimiter[0]
    has_objects = opening != _BRACE
    tokens = _tokens(delimiter)
    at = depth = objects = 0
    in_string = oversized = False
    while at < len(text):
        end = at + PIECE
        if end >= len(text) and not oversized:
            return
        if in_string:
            at = _end_of_string(text, at, end)
            if text[at : at + 1] == b'"':
                in_string = False
                at += 1
            elif at + 1 >= len(text):
                return
            yield None
            continue
        if depth > deepest and has_objects:
            passed = _pass_deep(text, at, end, depth, deepest)
            if passed is not None:
                at, more, more_objects = passed
                depth, objects, oversized = depth + more, objects + more_objects, True
                if at < end:
                    at, in_string = at + 1, True
                yield None
                continue
        elif depth > deepest and all(text.find(sign, at, end) < 0 for sign in (b'"', b"{", b"}", brackets[1:])):
            # Only elements of an array that must not be cut. Arrays inside it must not be cut either.
            depth += text.count(brackets[:1], at, end)
            at, oversized = end, True
            yield None
            continue
        cut, cut_depth = (-1, 0) if oversized else _last_cut(text, at, brackets, delimiter, depth, deepest)
        if cut < 0:
            for token in tokens.finditer(text, at, end):
                place = token.start()
                byte = text[place]
                if byte == between:
                    if depth <= deepest and not objects:
                        cut, cut_depth = place, depth
                        if oversized:
                            break
                elif byte == opening:
                    depth += 1
                elif byte == closing:
                    depth -= 1
                elif byte == _QUOTE:
                    if token.end() == place + 1:
                        in_string, end = True, place + 1
                        break
                elif has_objects and byte == _BRACE:
                    objects += 1
                elif has_objects and byte == _END_BRACE:
                    objects -= 1
        if cut < 0:
            at, oversized = end, True
            yield None
        else:
            at, depth, objects, in_string, oversized = cut + 1, cut_depth, 0, False, False
            yield cut, cut_depth


def _pass_deep(text: bytes, start: int, end: int, depth: int, deepest: int) -> tuple[int, int, int] | None:
    """Pass over a window of JSON that lies as a whole in an array that must not be cut. Return where it ends, which is
    before a string that does not, and by how many arrays and objects it is deeper there; None if the array ends."""
    match = _WHOLE_STRINGS.match(text, start, end)
    assert match is not None, "it matches the empty text"
    outside = _STRINGS.sub(b"", match[0])
    brackets = outside.translate(None, _NO_BRACKETS)
    for _ in range(_TRIES):
        brackets = brackets.replace(b"[]", b"")
    closed = brackets.count(b"]")
    if depth - closed <= deepest:
        return None
    return match.end(), brackets.count(b"[") - closed, outside.count(b"{") - outside.count(b"}")


def _last_cut(text: bytes, start: int, brackets: bytes, delimiter: bytes, depth: int, deepest: int) -> tuple[int, int]:
    """Return one of the last delimiters of a window that begins between two elements; -1 if none is found quickly."""
    found = start + PIECE
    for _ in range(_TRIES):
        found = text.rfind(delimiter, start, found)
        if found < 0:
            break
        # Without escaped characters, every other part is outside of strings.
        parts = text[start:found].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        if len(parts) % 2 == 0:
            continue
        outside = b"".join(parts[::2])
        found_depth = depth + outside.count(brackets[:1]) - outside.count(brackets[1:])
        if found_depth <= deepest and (brackets == b"{}" or outside.count(b"{") == outside.count(b"}")):
            return found, found_depth
    return -1, 0


def _end_of_string(text: bytes, start: int, end: int) -> int:
    inside = _IN_STRING.match(text, start, end)
    assert inside is not None, "it matches the empty text"
    return inside.end()


def unescape(text: bytes) -> Iterator[bytes]:
    """Yield the content of a quoted element without its backslashes, in pieces."""
    at = 0
    while at < len(text):
        end = max(_end_of_string(text, at, at + PIECE), at + 1)
        yield b"\\".join([part.replace(b"\\", b"") for part in text[at:end].split(b"\\\\")])
        at = end
