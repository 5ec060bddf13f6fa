"""The collector is paused while a large answer is decoded, and then is as it was."""

import gc

import pytest

from tests.service import Service
from tuplegate import dbapi
from tuplegate.client.collecting import pause_collector


def test_it_goes_on_after_the_last_pause() -> None:
    """Also where one ends with an exception."""
    with pause_collector():
        with pytest.raises(ZeroDivisionError), pause_collector():
            raise ZeroDivisionError
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_was_off_stays_off() -> None:
    gc.disable()
    try:
        with pause_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_large_answer_leaves_it_on(service: Service) -> None:
    """Large enough for both pauses, of the text and of the rows."""
    with dbapi.connect(service.url, api_key=service.key) as connection:
        cursor = connection.cursor()
        cursor.execute("select i, i::int8, null::int8, now() from generate_series(1, 20000) i")
        rows = cursor.fetchall()
    assert (len(rows), rows[-1][:3]) == (20000, (20000, 20000, None))
    assert gc.isenabled()
