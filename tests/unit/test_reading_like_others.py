"""The service reads requests as h11 and llhttp do, or refuses them by a rule that is listed with its reason.

tests/extended/test_reading_at_length.py tries more cases, and others each time.
"""

from collections.abc import Callable

import pytest
from attack.door.fuzz import rules_met, run_cases
from attack.door.readings import (
    BLANK_LINE,
    STRICTER,
    Reader,
    Reading,
    Request,
    differences,
    read_h11,
    read_llhttp,
    read_ours,
    service_reader,
)
from attack.door.strict_h11 import End, Head, StrictH11

SEED = 20_261_116
CASES = 5_000
HEAD = b"POST /a HTTP/1.1\r\nHost: x\r\n"


def test_the_service_reads_as_h11_and_llhttp_do_or_refuses_by_a_listed_rule() -> None:
    outcome = run_cases(SEED, 0, CASES, service_reader())
    assert not outcome.wrong, "\n".join(outcome.wrong)
    assert outcome.tally["requests accepted"] > CASES / 3
    assert outcome.tally["refused"] > CASES / 3


def test_a_reader_that_follows_h11_and_the_rules_passes() -> None:
    outcome = run_cases(SEED, 0, CASES // 5, StrictH11)
    assert not outcome.wrong, "\n".join(outcome.wrong)
    assert outcome.tally["requests accepted"] > CASES / 15


def test_every_stricter_rule_is_met_by_cases() -> None:
    met = rules_met(SEED, CASES)
    assert {*STRICTER, BLANK_LINE} == set(met)


def judged(data: bytes, ours: Reading) -> list[str]:
    return differences(data, ours, read_h11(data), read_llhttp(data))


def request(body: bytes = b"", **headers: bytes) -> Request:
    named = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    return Request("POST", b"/a", {b"host": b"x", **named}, True, body, complete=True)


FAULTS = {
    "blanks behind a value": (HEAD + b"X-Y: job \r\n\r\n", [request(x_y=b"job ")]),
    "a length that is not heeded": (HEAD + b"Content-Length: 2\r\n\r\nok", [request(content_length=b"2")]),
    "a body that lost a byte": (HEAD + b"Content-Length: 2\r\n\r\nok", [request(b"o", content_length=b"2")]),
    "framing taken for body": (
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        [request(b"1\r\nx\r\n0\r\n\r\n", transfer_encoding=b"chunked")],
    ),
    "two Host headers": (HEAD + b"Host: y\r\n\r\n", [request(host=b"x, y")]),
    "two lengths": (
        HEAD + b"Content-Length: 2\r\nContent-Length: 0\r\n\r\nok",
        [request(b"ok", content_length=b"2, 0")],
    ),
    "a coding that nobody knows": (
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        [request(transfer_encoding=b"gzip, chunked")],
    ),
    "a request that is not seen": (2 * (HEAD + b"\r\n"), [request()]),
    "a request that is not there": (HEAD + b"\r\n", [request(), request()]),
    "a connection that should close": (HEAD + b"Connection: close\r\n\r\n", [request(connection=b"close")]),
    "a lost header": (HEAD + b"X-Y: 1\r\nX-Y: 2\r\n\r\n", [request(x_y=b"2")]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_comparison_finds(fault: str) -> None:
    data, requests = FAULTS[fault]
    assert judged(data, Reading(requests))


def test_a_refusal_without_a_listed_reason_is_a_difference() -> None:
    data = HEAD + b"Content-Length: 2\r\n\r\nok"
    assert judged(data, Reading([], "refused"))
    assert judged(data, Reading([Request("POST", b"/a", {b"host": b"x", b"content-length": b"2"}, True)], "refused"))


def test_a_refusal_with_a_listed_reason_is_none() -> None:
    assert not judged(b"POST /a HTTP/1.1\nHost: x\n\n", Reading([], "refused"))
    assert not judged(HEAD + b"X-Y: a\x01\r\n\r\n", Reading([], "refused"))


def test_what_both_refuse_is_no_difference() -> None:
    assert not judged(b"POST /a HTTP/1.1\r\nHost x\r\n\r\n", Reading([], "refused"))


class Forgetful(StrictH11):
    """Loses a body where it comes in more than one piece."""

    def feed(self, data: bytes) -> None:
        before = len(self._waiting)
        whole = not self._is_head_given
        super().feed(data)
        if not whole:
            self._waiting[before:] = [b"" if isinstance(event, bytes) else event for event in self._waiting[before:]]


def test_pieces_that_change_the_reading_are_a_difference() -> None:
    assert any("in pieces" in line for line in run_cases(SEED, 0, CASES // 5, Forgetful).wrong)


def test_events_become_requests() -> None:
    class Told(StrictH11):
        def feed(self, data: bytes) -> None:
            self._waiting += [Head("PUT", b"/b", {b"host": b"x"}, False), b"1", b"2", End()]

    new: Callable[[], Reader] = Told
    assert read_ours(new, [b"any"]).requests == [Request("PUT", b"/b", {b"host": b"x"}, False, b"12", complete=True)]
