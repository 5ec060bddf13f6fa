"""Explains mistakes in the body of a request: the place, the mistake, and a correct value. Pure.

The decoder's own messages are for Python programmers. An unknown message is passed on.
"""

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import cache
from typing import Any

import msgspec

from tuplegate.protocol.control import RULES
from tuplegate.protocol.errors import ServiceError

_SHOWN_MAX = 80
"""Characters of a name or value that an error repeats."""

_SEARCHED_MAX = 8 * _SHOWN_MAX
"""Characters of the decoder's message that are searched, at either end: it repeats names and values of any length."""
_PLACE = " - at `$"
_STEP = re.compile(r"\.(\w+)|\[[^\]]*\]")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(.*)`")
_WRONG_TYPE = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_WRONG_TEXT = re.compile(r"Expected `str` matching regex .*", re.DOTALL)
_WRONG_NUMBER = re.compile(r"Expected `(?:int|float)` (>=|<=) (\S+)")
_WRONG_LENGTH = re.compile(r"Expected `array` of length (>=|<=) (\d+)")
_WRONG_CHOICE = re.compile(r"Invalid enum value (.*)", re.DOTALL)

_TYPES = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number with a fraction",
    "bool": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}
_BOUNDS = {">=": "at least", "<=": "at most"}


def explain_not_json(body: bytes, problem: Exception, kind: Any) -> ServiceError:
    """Return the error for a body that is no JSON."""
    if not body.strip():
        return ServiceError("malformed_request", "the body is empty; it must be JSON", hint=_fields_hint(kind, "$"))
    said = str(problem).replace("Input data was truncated", "it ends too early")
    return ServiceError("malformed_request", f"the body is not JSON: {said}", hint=_fields_hint(kind, "$"))


def explain_mistake(said: str, kind: Any) -> ServiceError:
    """Return the error for a body that is JSON, but no message of this kind. `said` is the message of the decoder."""
    what, place = _split_place(said)
    for pattern, words in _WORDS:
        found = pattern.fullmatch(what)
        if found is not None:
            message, hint = words(found, kind, place)
            return ServiceError("malformed_request", message, hint=hint)
    return ServiceError("malformed_request", f"the body is not what this route takes: {said[: 4 * _SHOWN_MAX]}")


def _split_place(said: str) -> tuple[str, str]:
    """Return the decoder's message, cut in the middle if it is long, and the place that it gives at the end."""
    end, place = len(said), "$"
    at = said.rfind(_PLACE, max(0, end - _SEARCHED_MAX))
    if at >= 0 and said.endswith("`") and said.find("`", at + len(_PLACE)) == end - 1:
        end, place = at, said[at + len(_PLACE) - 1 : -1]
    return (said[:end] if end <= _SEARCHED_MAX else said[:_SEARCHED_MAX] + said[end - 1]), place


Words = tuple[str, str | None]


def _unknown_field(found: "re.Match[str]", kind: Any, place: str) -> Words:
    name = found[1][:_SHOWN_MAX]
    message = f"there is no field `{name}`{_place_suffix(place)}{_suggest(name, _fields(kind, place))}"
    return message, _fields_hint(kind, place)


def _missing_field(found: "re.Match[str]", kind: Any, place: str) -> Words:
    return f"the field `{found[1]}` is missing{_place_suffix(place)}", _fields_hint(kind, place)


def _wrong_type(found: "re.Match[str]", kind: Any, place: str) -> Words:
    wanted = " or ".join(_TYPES.get(name, name) for name in found[1].split(" | "))
    hint = _fields_hint(kind, place) if place == "$" else None
    return f"{_name_place(place)} must be {wanted}, not {_TYPES.get(found[2], found[2])}", hint


def _wrong_text(_: "re.Match[str]", kind: Any, place: str) -> Words:
    rules = [RULES[schema["pattern"]] for schema in _schemas_at(kind, place) if schema.get("pattern") in RULES]
    return f"{_name_place(place)} must be {' or '.join(rules) or 'another text'}", None


def _wrong_number(found: "re.Match[str]", _: Any, place: str) -> Words:
    return f"{_name_place(place)} must be {_BOUNDS[found[1]]} {found[2]}", None


def _wrong_length(found: "re.Match[str]", _: Any, place: str) -> Words:
    entries = "entry" if found[2] == "1" else "entries"
    return f"{_name_place(place)} must have {_BOUNDS[found[1]]} {found[2]} {entries}", None


def _wrong_choice(found: "re.Match[str]", kind: Any, place: str) -> Words:
    choices = [choice for schema in _schemas_at(kind, place) for choice in schema.get("enum", ())]
    given = found[1][:_SHOWN_MAX]
    takes = ", ".join(msgspec.json.encode(choice).decode() for choice in choices)
    meant = _suggest(given.strip("'"), [choice for choice in choices if isinstance(choice, str)])
    return f"{_name_place(place)} cannot be {given}{meant}", f"It takes: {takes}" if takes else None


_WORDS: tuple[tuple["re.Pattern[str]", Callable[["re.Match[str]", Any, str], Words]], ...] = (
    (_UNKNOWN_FIELD, _unknown_field),
    (_MISSING_FIELD, _missing_field),
    (_WRONG_TYPE, _wrong_type),
    (_WRONG_TEXT, _wrong_text),
    (_WRONG_NUMBER, _wrong_number),
    (_WRONG_LENGTH, _wrong_length),
    (_WRONG_CHOICE, _wrong_choice),
)


def _name_place(place: str) -> str:
    return "the body" if place == "$" else f"`{place.removeprefix('$').removeprefix('.')}`"


def _place_suffix(place: str) -> str:
    return "" if place == "$" else f" in {_name_place(place)}"


def _suggest(given: str, known: Iterable[str]) -> str:
    near = get_close_matches(given, list(known), 1)
    return f"; did you mean `{near[0]}`?" if near else ""


def _fields(kind: Any, place: str) -> dict[str, bool]:
    """Return the names of the fields that an object at this place may have, and for each whether it is required."""
    return {
        name: name in schema.get("required", ())
        for schema in _schemas_at(kind, place)
        for name in schema.get("properties", ())
    }


def _fields_hint(kind: Any, place: str) -> str | None:
    fields = _fields(kind, place)
    if not fields:
        return None
    listed = ", ".join(f"{name} (required)" if required else name for name, required in fields.items())
    return f"The fields are: {listed}"


@cache
def _describe(kind: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    [schema], components = msgspec.json.schema_components([kind], ref_template="{name}")
    return schema, components


def _schemas_at(kind: Any, place: str) -> list[dict[str, Any]]:
    """Return the schemas of which a value at this place must match one; none if the kind has no such place."""
    schema, components = _describe(kind)
    found = _alternatives(schema, components)
    for step in _STEP.finditer(place):
        inner = [one.get("properties", {}).get(step[1]) if step[1] else one.get("items") for one in found]
        found = [part for one in inner if one for part in _alternatives(one, components)]
    return found


def _alternatives(schema: dict[str, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    if "$ref" in schema:
        return _alternatives(components[schema["$ref"]], components)
    if "anyOf" in schema:
        return [part for one in schema["anyOf"] for part in _alternatives(one, components)]
    return [schema]
