"""Cursors: what was written is read, and nothing else is."""

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuplegate.catalog.paging import BadCursor, make_cursor, read_cursor

IDS = st.text("0123456789abcXYZ_", min_size=1, max_size=20)


@dataclass
class Record:
    id: str
    created_at: datetime


@given(st.datetimes(timezones=st.just(UTC)), IDS)
def test_a_cursor_names_the_record_it_was_made_of(at: datetime, id: str) -> None:
    """To the microsecond."""
    assert read_cursor(make_cursor(Record(id, at))) == (at, id)


@given(st.text())
def test_other_text_is_no_cursor(text: str) -> None:
    """Whatever it is, it is refused and nothing else is raised."""
    with pytest.raises(BadCursor):
        read_cursor(text)
