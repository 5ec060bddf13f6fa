"""An engine that stands still: it takes connections and answers nothing. The service does not stand still with it."""

import threading
import time

import httpx

from tests.extended.test_lost_outcome import standing_still
from tests.service import Service, Sql, needs_bundled


@needs_bundled
def test_a_cancel_that_nobody_hears_stops_nobody(service: Service, sql: Sql) -> None:
    """The statement's time is over while the engine is frozen, and the engine is told."""
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(sql.answer("select pg_sleep(60)", timeout_ms=200))

    sql("select 1")
    asking = threading.Thread(target=ask)
    with service.client() as client:
        with standing_still(service):
            asking.start()
            end = time.monotonic() + 2
            while time.monotonic() < end:
                assert client.get("/").status_code == 200
        asking.join()
        assert not answers[0].json()["success"]
        assert sql.value("select 1") == 1
