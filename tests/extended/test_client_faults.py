"""The client while the service is killed: calls are repeated, and a stream that is cut says so."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.service import new_data_dir, remove, start_service
from tuplegate.client import Client, StreamCut


def test_calls_outlive_a_restart_of_the_service() -> None:
    """Killed and started again on the same port, while a client writes: every write counts once."""
    data_dir = new_data_dir()
    running = start_service(data_dir)
    port = running.url.rsplit(":", 1)[1]
    with Client(running.url, running.key, timeout_s=300, retries=300) as client:
        client.query("create table t (n int)")
        written = threading.Event()

        def write() -> int:
            for n in range(150):
                client.query("insert into t values ($1)", [n])
                if n == 20:
                    written.set()
            return 150

        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(write)
            assert written.wait(60)
            running.kill()
            again = start_service(data_dir, "--data-port", port)
            assert done.result(120) == 150
        assert client.query("select count(*), count(distinct n) from t").tuples() == [(150, 150)]
    assert again.stop() == 0
    remove(data_dir)


def test_a_stream_that_is_cut_says_so() -> None:
    """The service is killed in the middle of it."""
    data_dir = new_data_dir()
    running = start_service(data_dir)
    with (
        Client(running.url, running.key) as client,
        client.stream("select pg_sleep(0.1) from generate_series(1, 500)") as rows,
    ):
        assert next(rows) is not None
        running.kill()
        with pytest.raises(StreamCut):
            list(rows)
    remove(data_dir)
