# Made by tools/sync_client.py of asynchronous/delivery.py. Do not edit.
"""Sends a single statement in the way that suits it, so that a lost answer never makes it write twice."""

import secrets
from dataclasses import replace

from tuplegate.client.answers import Answer
from tuplegate.client.errors import OutcomeUnknown, ReadOnlyTransaction, SqlError
from tuplegate.client.requests import Call
from tuplegate.client.retries import AnswerLost, Course, Repeat
from tuplegate.client.synchronous.transport import Transport

_NO_BLOCK = "25001"
"""SQLSTATE of a statement that cannot run inside a transaction block."""


def send_keyed(transport: Transport, call: Call, key: str, course: Course) -> Answer:
    """Send the call with an Idempotency-Key; it is repeated until its answer is known."""
    headers = {**call.headers, "Idempotency-Key": key}
    return transport.call(replace(call, headers=headers, repeat=Repeat.KEYED), course)


def send_keyed_if_possible(transport: Transport, call: Call, course: Course) -> Answer:
    """Send the call with a new key, or without one where the statement cannot run in a transaction block."""
    try:
        return send_keyed(transport, call, secrets.token_hex(16), course)
    except SqlError as error:
        if error.status != 400 or error.sqlstate != _NO_BLOCK:
            raise
    # The service has refused it, so nothing was run.
    return send_unkeyed(transport, call, course)


def send_unkeyed(transport: Transport, call: Call, course: Course) -> Answer:
    """Send the call once. A lost answer raises OutcomeUnknown."""
    try:
        return transport.call(call, course)
    except AnswerLost as error:
        raise _unknown(error) from error


def send_read(transport: Transport, call: Call, repetition: Call, course: Course) -> Answer:
    """Send a statement that seems to read; after a lost answer, send the repetition, a read-only transaction."""
    try:
        return transport.call(call, course)
    except (AnswerLost, OutcomeUnknown) as error:
        lost = error
    try:
        answer = transport.call(repetition, course)
    except ReadOnlyTransaction:
        raise _unknown(lost) from lost
    [result] = answer.body["results"]
    return replace(answer, body=result)


def _unknown(lost: AnswerLost | OutcomeUnknown) -> OutcomeUnknown:
    return OutcomeUnknown(f"{lost.message}; the statement may have been applied")
