"""Converts answers of the service to the results of calls."""

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import httpx

from tuplegate.client.collecting import LARGE_BYTES, pause_collector
from tuplegate.client.errors import make_error
from tuplegate.client.failures import explain_foreign
from tuplegate.client.records import Transaction
from tuplegate.client.rows import Rows
from tuplegate.client.values import read_json


class RowsCut(UserWarning):
    """Rows of an answer were cut because it was too large."""


@dataclass(frozen=True)
class Answer:
    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str]

    @property
    def replayed(self) -> bool:
        """True if this is the answer of an earlier request with the same Idempotency-Key, or the same sequence within
        its transaction."""
        return "idempotency-replayed" in self.headers or "tuplegate-replayed" in self.headers


def decode_answer(response: httpx.Response, content: bytes, exact: bool = False) -> Answer:
    """Decode the answer, and raise the error that it holds."""
    status = response.status_code
    try:
        with pause_collector() if len(content) > LARGE_BYTES else nullcontext():
            body = read_json(content, exact=exact)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise explain_foreign(response)
    if isinstance(body.get("error"), dict):
        request_id = body.get("request_id") or response.headers.get("x-request-id")
        error = make_error(status, body["error"], request_id, _retry_after_s(response))
        error.answer = body
        raise error
    if status >= 300 and "checks" not in body:  # health answers 503 with its checks
        raise explain_foreign(response)
    return Answer(status, body, response.headers)


def _retry_after_s(response: httpx.Response) -> float | None:
    try:
        return max(float(response.headers["retry-after"]), 0.0)
    except (KeyError, ValueError):
        return None


def read_rows(answer: Answer, max_rows: int | None, convert: bool) -> Rows:
    return _warn_if_cut(Rows.of_answer(answer.body, answer.replayed, max_rows, convert), max_rows)


def _warn_if_cut(rows: Rows, max_rows: int | None) -> Rows:
    """Warn if rows were cut that the caller had not limited: they must not pass for all rows."""
    if rows.truncated and (max_rows is None or len(rows) < max_rows):
        warnings.warn("the answer was too large and its rows were cut; stream() gets all of them", RowsCut, 4)
    return rows


def read_transaction(answer: Answer) -> Transaction:
    body = answer.body
    return Transaction(
        body["transaction_id"],
        [_warn_if_cut(Rows.of_answer(result), None) for result in body["results"]],
        body["affected_rows"],
        body["attempts"],
        body["commit"],
        answer.replayed,
    )
