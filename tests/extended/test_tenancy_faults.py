"""Whatever dies while databases and organizations come and go, the catalog and the engine agree in the end."""

import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.control import (
    OPEN_ROUTES,
    Control,
    Disagreements,
    disagreements,
    engine,
    engine_pid,
    error_of,
    new_organization,
    worker_pid,
)
from tests.service import Service, needs_bundled, new_data_dir, remove, start_service
from tests.waiting import eventually

SEED = 4711
SETTLED_S = 60.0
DELAY_MAX_S = 0.2
UNDER_WAY = (
    "select from database where state in ('creating', 'deleting')"
    " union all select from organization where deleted_at is not null"
)
_numbers = count(1)


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    data_dir = new_data_dir()
    yield data_dir
    remove(data_dir)


@pytest.fixture(scope="module")
def own_service(home: Path) -> Iterator[Service]:
    """One for all of these tests; the last of them kills it as a whole."""
    running = start_service(home)
    sql = Control(running, running.key).sql()
    sql("create table filling as select g as id, repeat('x', 100) as text from generate_series(1, 1000) g")
    yield running
    running.stop()


def settled(service: Service) -> None:
    """Waits until nothing is half done, and then everything must be as the catalog says."""
    last: list[Disagreements] = []

    def agree() -> bool:
        try:
            last[:] = [disagreements(service)]
        except psycopg.OperationalError:
            return False  # the engine was killed and is not back yet
        return last[0].none

    try:
        eventually(agree, SETTLED_S)
    except AssertionError:
        raise AssertionError(f"after {SETTLED_S:g} s still: {last}") from None


def serving(service: Service) -> bool:
    try:
        return httpx.get(service.control_url + "/health", trust_env=False, verify=False, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def choose(draw: random.Random, control: Control) -> tuple[str, str, Any]:
    """A request that makes or removes something, of those that are possible now."""
    name = f"n-{next(_numbers)}"
    databases = [d["name"] for d in control.all("/v1/databases") if d["name"] != "main" and d["state"] != "creating"]
    organizations = [o["id"] for o in control.all("/v1/organizations") if o["name"] != "default"]
    choices: list[tuple[str, str, Any]] = [
        ("POST", "/v1/databases", {"name": name}),
        ("POST", "/v1/databases", {"name": name, "clone_of": "main"}),
        ("POST", "/v1/organizations", {"name": name}),
    ]
    if databases:
        choices += [("DELETE", f"/v1/databases/{draw.choice(databases)}", None)] * 2
    if organizations:
        choices.append(("DELETE", f"/v1/organizations/{draw.choice(organizations)}", None))
    return draw.choice(choices)


def interrupt(service: Service, request: tuple[str, str, Any], delay_s: float, victim: int) -> httpx.Response | None:
    """Sends the request and kills a process a moment after its work has begun; the answer, if there was one."""
    answers: list[httpx.Response | None] = []
    control = Control(service, service.key)
    control.get("/v1/organization")  # so that nothing but the request itself takes time

    def send() -> None:
        method, path, body = request
        try:
            answers.append(control.ask(method, path, body))
        except httpx.TransportError:
            answers.append(None)  # it was cut off

    thread = threading.Thread(target=send)
    with engine(service) as connection:
        thread.start()
        while not answers and connection.execute(UNDER_WAY).fetchone() is None:
            time.sleep(0.002)
    time.sleep(delay_s)
    os.kill(victim, signal.SIGKILL)
    thread.join()
    return answers[0]


def check_kept(service: Service, request: tuple[str, str, Any], answer: httpx.Response | None) -> None:
    """What was answered as done is so."""
    if answer is None or answer.status_code >= 400:
        return
    control = Control(service, service.key)
    method, path, body = request
    if method == "DELETE":
        control.refused(404, "not_found", "GET", path)
    elif path == "/v1/databases":
        assert control.get(f"{path}/{body['name']}")["state"] == "active"
    else:
        assert control.sql(answer.json()["key"]).value("select 1") == 1


def check_usable(service: Service) -> None:
    """Every database that is active answers; those that could not be made can be removed."""
    control = Control(service, service.key)
    assert control.sql().value("select count(*) from filling") == 1000
    for database in control.all("/v1/databases"):
        if database["state"] == "active":
            assert control.sql(database=database["name"]).value("select 1") == 1
        else:
            assert database["state"] == "failed"
            control.delete(f"/v1/databases/{database['name']}")
    assert all(d["state"] == "active" for d in control.all("/v1/databases"))


def test_a_worker_that_is_killed_leaves_nothing_half_done(own_service: Service) -> None:
    """At any moment of making, copying and removing; another worker finishes it."""
    draw = random.Random(SEED)
    control = Control(own_service, own_service.key)
    for _ in range(14):
        request = choose(draw, control)
        answer = interrupt(own_service, request, draw.uniform(0, DELAY_MAX_S), worker_pid(own_service))
        eventually(lambda: serving(own_service), 30)
        settled(own_service)
        check_kept(own_service, request, answer)
    check_usable(own_service)
    settled(own_service)


@needs_bundled
def test_an_engine_that_is_killed_leaves_nothing_half_done(own_service: Service) -> None:
    """It comes back, and the worker that lives on finishes what it had begun."""
    draw = random.Random(SEED)
    control = Control(own_service, own_service.key)
    for _ in range(3):
        request = choose(draw, control)
        answer = interrupt(own_service, request, draw.uniform(0, DELAY_MAX_S), engine_pid(own_service))
        assert answer is not None, "the worker lives, so there is an answer"
        assert answer.status_code in (200, 201) or answer.json()["error"]["code"] in (
            "engine_unavailable",
            "outcome_unknown",
        ), answer.text
        eventually(lambda: serving(own_service), 30)
        settled(own_service)
        check_kept(own_service, request, answer)
    check_usable(own_service)


# -- while the engine is away ------------------------------------------------------------------------------------


@needs_bundled
def test_every_route_says_that_the_engine_is_away(own_service: Service) -> None:
    """503 with its code, never 500; and all is well when it is back."""
    control = Control(own_service, own_service.key)
    key = control.post("/v1/keys", {"name": "k", "scopes": ["read"]})["id"]
    organization = new_organization(own_service).id
    session = control.with_token(control.post("/v1/session")["token"])
    code = control.post("/v1/console/codes")["code"]
    engine_process = engine_pid(own_service)
    os.kill(own_service.process.pid, signal.SIGSTOP)  # so that nobody starts the engine again
    try:
        os.kill(engine_process, signal.SIGKILL)
        eventually(lambda: control.ask("GET", "/health").status_code == 503, 30)
        bodies = {
            "POST /v1/console/sessions": {"code": code},
            "POST /v1/databases": {"name": "x"},
            "POST /v1/databases/{name}/move": {"engine": "first"},
            "PATCH /v1/engines/{name}": {"weight": 1},
            "PATCH /v1/databases/{name}": {"delete_protection": True},
            "POST /v1/keys": {"name": "k", "scopes": ["read"]},
            "PATCH /v1/keys/{id}": {"name": "x"},
            "POST /v1/organizations": {"name": "x"},
            "PATCH /v1/organizations/{id}": {"tier": "free"},
        }
        for endpoint in control.client.get("/").json()["endpoints"]:
            method, path = endpoint.split(" ")
            if path in (*OPEN_ROUTES, "/metrics"):  # what they say is not in the engine
                continue
            asker = session if path.startswith("/v1/session") and endpoint != "POST /v1/session" else control
            id = organization if "organizations" in path else key
            answer = asker.ask(method, path.replace("{name}", "main").replace("{id}", id), bodies.get(endpoint))
            error = error_of(answer, 503, "engine_unavailable")
            assert error["retryable"] is True, endpoint
            assert int(answer.headers["retry-after"]) >= 1
        fresh = control.with_token(control.token)
        time_out = time.monotonic() + 4
        while time.monotonic() < time_out:  # longer than an identity is remembered
            fresh.refused(503, "engine_unavailable", "GET", "/v1/organization")
    finally:
        os.kill(own_service.process.pid, signal.SIGCONT)
    eventually(lambda: serving(own_service), 30)
    assert control.get("/v1/databases/main")["delete_protection"] is False
    assert control.get(f"/v1/keys/{key}")["name"] == "k"
    assert session.get("/v1/session")["session"]["scopes"] == ["admin", "operator"]
    settled(own_service)


# -- clients that leave ------------------------------------------------------------------------------------------


def send_and_leave(service: Service, method: str, path: str, body: str, seen: Any) -> None:
    """Closes the connection once the catalog has seen the request."""
    host, port = service.control_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {service.key}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        eventually(seen)


def test_what_a_client_asked_for_is_finished_when_it_leaves(own_service: Service) -> None:
    """A database made, copied and deleted, an organization made and deleted: each left while it is under way."""
    control = Control(own_service, own_service.key)

    def under_way(sql: str) -> Any:
        def look() -> bool:
            with engine(own_service) as connection:
                return connection.execute(sql.encode()).fetchone() is not None

        return look

    for number in range(3):
        name = f"left-{number}"
        for body in (f'{{"name": "{name}"}}', f'{{"name": "{name}-copy", "clone_of": "main"}}'):
            send_and_leave(own_service, "POST", "/v1/databases", body, under_way("select from database where name like"
                           f" '{name}%'"))  # fmt: skip
        for made in (name, f"{name}-copy"):
            eventually(lambda made=made: control.get(f"/v1/databases/{made}")["state"] == "active", SETTLED_S)  # type: ignore[misc]
        gone = under_way(f"select 1 where not exists (select from database where name = '{name}' and state = 'active')")
        send_and_leave(own_service, "DELETE", f"/v1/databases/{name}", "", gone)
        eventually(lambda name=name: control.ask("GET", f"/v1/databases/{name}").status_code == 404, SETTLED_S)  # type: ignore[misc]
    send_and_leave(own_service, "POST", "/v1/organizations", '{"name": "left-org"}',
                   under_way("select from organization where name = 'left-org'"))  # fmt: skip
    settled(own_service)
    [id] = [item["id"] for item in control.all("/v1/organizations") if item["name"] == "left-org"]
    send_and_leave(own_service, "DELETE", f"/v1/organizations/{id}", "",
                   under_way(f"select 1 where not exists (select from organization where id = '{id}'"
                             " and deleted_at is null)"))  # fmt: skip
    settled(own_service)
    control.refused(404, "not_found", "GET", f"/v1/organizations/{id}")
    assert control.sql(database="left-0-copy").value("select count(*) from filling") == 1000


# -- last, since nothing of the service is left ------------------------------------------------------------------


def test_a_service_that_is_killed_leaves_nothing_half_done(own_service: Service) -> None:
    """The bundled engine goes with it; the next start finishes it."""
    draw = random.Random(SEED)
    service, key = own_service, own_service.key
    for _ in range(4):
        request = choose(draw, Control(service, key))
        answer = interrupt(service, request, draw.uniform(0, DELAY_MAX_S), service.process.pid)
        service.process.wait()
        service = start_service(own_service.data_dir)
        service.key = key
        settled(service)
        check_kept(service, request, answer)
    check_usable(service)
    assert service.stop() == 0
