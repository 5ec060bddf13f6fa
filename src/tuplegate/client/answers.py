"""Converts answers of the service to what a call returns."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuplegate.client.records import Transaction
from tuplegate.client.rows import Rows


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
