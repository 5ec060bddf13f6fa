"""Large arrays are cut between their elements, and nothing else is."""

import json
import random
import re
from typing import Any

import pytest

from tuplegate.protocol import pieces
from tuplegate.protocol.pieces import split_array, unescape

ODD: tuple[Any, ...] = (
    1,
    None,
    True,
    "a",
    "",
    ",",
    '"',
    "\\",
    '\\"',
    "{",
    "}",
    "[1,2]",
    {"a": 1, "b": [1, {"c": [2, 3]}]},
    {},
)


@pytest.fixture(params=[4, 16, 300], autouse=True)
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(pieces, "PIECE", request.param)
    size: int = request.param
    return size


def make_array(chance: random.Random, depth: int) -> list[Any]:
    count = range(chance.randrange(1, 8))
    if depth and chance.random() < 0.5:
        return [make_array(chance, depth - 1) for _ in count]
    return [chance.choice((*ODD, "x" * chance.randrange(60), '"\\' * chance.randrange(30))) for _ in count]


def as_engine_text(value: Any) -> bytes:
    if isinstance(value, list):
        return b"{" + b",".join(map(as_engine_text, value)) + b"}"
    if value is None:
        return b"NULL"
    text = value if isinstance(value, str) else json.dumps(value)
    if text and not set(text) & set('{},"\\ '):
        return text.encode()
    return b'"' + text.replace("\\", "\\\\").replace('"', '\\"').encode() + b'"'


@pytest.mark.parametrize("deepest", [1, 2, 7])
def test_pieces_of_json_are_arrays_once_more(deepest: int) -> None:
    """Each piece is well-formed with the arrays around it opened and closed, and together they are the whole."""
    for seed in range(300):
        text = json.dumps(make_array(random.Random(seed), 4), separators=(",", ":")).encode()
        parts = [piece for piece in split_array(text, b"[]", b",", deepest) if piece is not None]
        assert b",".join(part for part, _, _ in parts) == text
        for part, before, behind in parts:
            assert max(before, behind) <= deepest
            assert isinstance(json.loads(b"[" * before + part + b"]" * behind), list)


def test_a_large_element_of_the_engine_s_is_a_piece_of_its_own(window: int) -> None:
    """With nothing but brackets next to it, and it can be read without its escapes."""
    for seed in range(300):
        text = as_engine_text(make_array(random.Random(seed), 4))
        parts = [piece for piece in split_array(text, b"{}", b",", 7) if piece is not None]
        assert b",".join(part for part, _, _ in parts) == text
        for part, _, _ in parts:
            if len(part) <= 2 * window:
                continue
            whole = re.fullmatch(rb'\{*(?:"((?:[^"\\]|\\.)*)"|[^{},"]*)\}*', part)
            assert whole is not None, part
            quoted = whole.group(1) or b""
            assert b"".join(unescape(quoted)) == re.sub(rb"\\(.)", rb"\1", quoted)
