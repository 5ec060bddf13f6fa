"""What is held for clients is bounded: for one organization, without others noticing."""

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from tests.http.test_bad_input import answers_in, connect, head, read_all
from tests.service import Service, running_service
from tests.tenants import Tenant, make_tenant_fixture
from tests.waiting import eventually

MEMORY_MB = 16
SHARE = MEMORY_MB * 2**20 // 4
BODY = 1_500_000


@pytest.fixture(scope="module")
def tight() -> Iterator[Service]:
    with running_service("--http-memory-mb", str(MEMORY_MB), "--body-timeout-s", "20") as running:
        yield running


one = make_tenant_fixture("tight", "tenant-one")
two = make_tenant_fixture("tight", "tenant-two")


def begin_body(tenant: Tenant) -> socket.socket:
    """A request whose body is announced, and begun."""
    sock = connect(tenant.service)
    lines = ("Content-Type: text/plain", f"Content-Length: {BODY}")
    sock.sendall(head(tenant.service, *lines, first="POST /query HTTP/1.1", key=tenant.admin) + b"select 7 as n --")
    return sock


def test_bodies_that_are_coming_in(one: Tenant, two: Tenant) -> None:
    """As many as there is room for are taken, the next is refused at once, and those that were taken are run."""
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(begin_body(one)) for _ in range(SHARE // BODY)]
        deadline = time.monotonic() + 20
        while True:  # they are asked for in turn, each on its own connection
            with begin_body(one) as more:
                more.settimeout(1)
                with contextlib.suppress(TimeoutError):
                    refused = answers_in(read_all(more))
                    if refused:
                        break
            assert time.monotonic() < deadline, "more is held than there is room for"
        assert [answer.status for answer in refused] == [503]
        assert refused[0].error["code"] == "busy"
        assert refused[0].error["retryable"] is True
        assert two.write.value("select 7") == 7
        with begin_body(two) as others:
            rest = b"x" * (BODY - len(b"select 7 as n --"))
            for sock in (*taken, others):
                sock.sendall(rest)
                received = b""
                while b'"rows"' not in received:
                    received += sock.recv(1 << 16)
                assert answers_in(received)[0].json["rows"] == [{"n": 7}]
    assert one.write.value("select 7") == 7


def test_answers_that_are_not_taken(one: Tenant, two: Tenant) -> None:
    """Its organization hears that it is to read them; when they were read, or given up, it is served again."""
    large = b"select repeat('x', 12000000)"
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            sock = stack.enter_context(connect(one.service))
            lines = ("Content-Type: text/plain", f"Content-Length: {len(large)}")
            sock.sendall(head(one.service, *lines, first="POST /query HTTP/1.1", key=one.admin) + large)
        refused = eventually(lambda: one.write.answer("select 7").json().get("error"))
        assert refused["code"] == "busy"
        assert two.write.value("select 7") == 7
    eventually(lambda: one.write.answer("select 7").status_code == 200)
