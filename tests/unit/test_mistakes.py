"""What is wrong with a body is said in words: what, where, and what would be right."""

import json
import time
from typing import Any

import msgspec
import pytest

from tuplegate.data_plane.engine_errors import to_service_error
from tuplegate.engine.port import StatementFailed
from tuplegate.http.requests import read_json
from tuplegate.protocol import control, messages
from tuplegate.protocol.errors import ServiceError
from tuplegate.protocol.mistakes import explain_mistake
from tuplegate.protocol.placeholders import foreign_placeholder

REQUESTS = [
    messages.QueryRequest,
    messages.TransactionRequest,
    control.SessionRequest,
    control.DatabaseRequest,
    control.DatabaseChange,
    control.KeyRequest,
    control.KeyChange,
    control.RotateRequest,
    control.OrganizationRequest,
    control.OrganizationChange,
]
QUERY, TRANSACTION = messages.QueryRequest, messages.TransactionRequest
NAME = "1 to 63 lower-case letters, digits, hyphens and underscores, a letter first"


def refusal(kind: Any, body: str) -> tuple[str, str | None]:
    with pytest.raises(ServiceError) as caught:
        read_json(msgspec.json.Decoder(kind).decode, body.encode(), kind)
    assert caught.value.body.code == "malformed_request"
    return caught.value.body.message, caught.value.body.hint


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        (QUERY, "", "the body is empty; it must be JSON"),
        (QUERY, " \n", "the body is empty; it must be JSON"),
        (QUERY, '{"sql": "select 1"', "the body is not JSON: it ends too early"),
        (QUERY, "select 1", "the body is not JSON: JSON is malformed: invalid character (byte 0)"),
        (QUERY, "[]", "the body must be an object, not a list"),
        (QUERY, '{"sql": "", "parms": []}', "there is no field `parms`; did you mean `params`?"),
        (QUERY, '{"sql": "", "zzz": []}', "there is no field `zzz`"),
        (QUERY, "{}", "the field `sql` is missing"),
        (QUERY, '{"sql": 5}', "`sql` must be a string, not a whole number"),
        (QUERY, '{"sql": "", "params": 5}', "`params` must be a list or null, not a whole number"),
        (QUERY, '{"sql": "", "timeout_ms": 0}', "`timeout_ms` must be at least 1"),
        (QUERY, '{"sql": "", "timeout_ms": 86400001}', "`timeout_ms` must be at most 86400000"),
        (QUERY, '{"sql": "", "row_mode": "array"}', "`row_mode` cannot be 'array'; did you mean `arrays`?"),
        (TRANSACTION, '{"statements": "a"}', "`statements` must be a list, not a string"),
        (TRANSACTION, '{"statements": ["a", 5]}', "`statements[1]` must be a string or an object, not a whole number"),
        (TRANSACTION, '{"statements": [{"sql": "a", "param": []}]}',
         "there is no field `param` in `statements[0]`; did you mean `params`?"),
        (TRANSACTION, '{"statements": [{"params": []}]}', "the field `sql` is missing in `statements[0]`"),
        (control.DatabaseRequest, '{"name": "My Data"}', f"`name` must be {NAME}"),
        (control.DatabaseRequest, '{"name": "a", "clone_of": ""}', f"`clone_of` must be {NAME}"),
        (control.KeyRequest, '{"name": "", "scopes": ["read"]}',
         "`name` must be 1 to 200 characters, without line breaks and other control characters"),
        (control.KeyRequest, '{"name": "a", "scopes": []}', "`scopes` must have at least 1 entry"),
        (control.KeyRequest, '{"name": "a", "scopes": ["reed"]}', "`scopes[0]` cannot be 'reed'; did you mean `read`?"),
    ],
)  # fmt: skip
def test_a_body_is_refused_in_words(kind: Any, body: str, message: str) -> None:
    """Each names the field and its place."""
    assert refusal(kind, body)[0] == message


def test_the_fields_that_there_are_are_listed() -> None:
    """Where one is unknown or missing, or the body is none at all; those of the object that is meant."""
    everything = "The fields are: sql (required), params, timeout_ms, max_rows, row_mode, big_numbers, export"
    assert {refusal(QUERY, body)[1] for body in ("", "{", "{}", "[]", '{"sql": "", "x": 1}')} == {everything}
    assert refusal(TRANSACTION, '{"statements": [{"x": 1}]}')[1] == "The fields are: sql (required), params"
    assert refusal(QUERY, '{"sql": "", "row_mode": "x"}')[1] == 'It takes: "arrays", "objects"'


@pytest.mark.parametrize("kind", REQUESTS)
def test_no_request_is_refused_in_the_words_of_the_decoder(kind: type[msgspec.Struct]) -> None:
    """For every field a value of each type, and an unknown field beside it."""
    values: list[Any] = [None, True, 5, 5.5, "", "\n", [], [""], [{"zzz": 1}], [[]], {}, -1, 10**15]
    for field in kind.__struct_fields__:
        for value in values:
            try:
                read_json(msgspec.json.Decoder(kind).decode, json.dumps({field: value, "zzz": 1}).encode(), kind)
            except ServiceError as exc:
                said = exc.body.message
                assert not any(word in said for word in ("what this route takes", "regex", "enum", "Expected")), said
                assert "another text" not in said, f"RULES has no words for {kind.__name__}.{field}"


def test_what_is_repeated_of_a_body_is_bounded() -> None:
    """Names and values can be as long as a body; quotes and places in them mislead nobody."""
    for body in (
        {"sql": "", "x" * 100_000: 1},
        {"sql": "", "row_mode": "y" * 100_000},
        {"sql": "", "` - at `$.sql": 1},
    ):
        message, hint = refusal(QUERY, json.dumps(body))
        assert len(message) + len(hint or "") < 1000
    assert len(explain_mistake("z" * 100_000, QUERY).body.message) < 1000


def test_a_long_name_takes_no_longer_than_a_short_one() -> None:
    """A name can be as long as a body, and nobody else is answered meanwhile."""

    def take_s(length: int) -> float:
        said = f"Object contains unknown field `{'x' * length}` - at `$.statements[0]`"
        times = []
        for _ in range(5):
            began = time.perf_counter()
            message = explain_mistake(said, TRANSACTION).body.message
            times.append(time.perf_counter() - began)
            assert message == f"there is no field `{'x' * 80}` in `statements[0]`"
        return min(times)

    assert take_s(10_000_000) < 100 * take_s(1000)


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("select * from t where id = ?", "?"),
        ("insert into t values (?, ?)", "?"),
        ("select * from t where id = %s", "%s"),
        ("select * from t where id = %(id)s", "%(id)s"),
        ("select * from t where id = :id", ":id"),
        ("select '?' from", None),
        ('select "?" from', None),
        ("select 1 -- ?", None),
        ("select /* ? */ 1", None),
        ("select $1 ? 'a'", None),
        ("select a::text from", None),
        ("select a ?| b from", None),
        ("select ? " + "x" * 5000, None),
    ],
)
def test_placeholders_of_other_drivers_are_recognised(sql: str, found: str | None) -> None:
    """But not in quotes and comments, not beside the right ones, and not as parts of operators."""
    assert foreign_placeholder(sql) == found


def test_a_full_disk_is_told_to_those_who_cannot_look_at_it() -> None:
    """The engine's own advice is for its operator; that of the service, where a database is too large, stays."""
    said = "could not extend file: No space left on device"
    full = StatementFailed(said, sqlstate="53100", hint="Check free disk space.")
    assert "Whoever runs it must make room" in (to_service_error(full).body.hint or "")
    large = StatementFailed("the database has reached its size limit", sqlstate="53100", hint="Delete something.")
    assert to_service_error(large).body.hint == "Delete something."
