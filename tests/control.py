"""A client of the control plane, and what its tests share: own organizations, races, a look into the engine."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import httpx
import psycopg
from psycopg.rows import TupleRow

from tests.activity import Activity
from tests.faults import catalog
from tests.service import ENGINE, Service, Sql, with_database
from tests.workers import workers
from tuplegate.engine.cells.layout import CellsDirectory

WINDOW_S = 60
"""Requests are counted in windows of that length, by the engine's clock."""

TIERS = ("--tiers", "free=200, pro=6000, tiny=10, unlimited")
"""The usual tiers, and one that is used up at once."""

_T = TypeVar("_T")
_numbers = count(1)
_clients: list[httpx.Client] = []

OPEN_ROUTES = ("/", "/health", "/openapi.json", "/docs")
"""What needs no token."""


def kept(client: httpx.Client) -> httpx.Client:
    """The same client, which is closed when all tests are over."""
    _clients.append(client)
    return client


def close_clients() -> None:
    while _clients:
        _clients.pop().close()


class Control:
    """Requests to the control plane with one token; each call says what it expects and fails otherwise."""

    def __init__(self, service: Service, token: str | None) -> None:
        self.service = service
        self.token = token
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.client = kept(
            httpx.Client(base_url=service.control_url, headers=headers, timeout=60, trust_env=False, verify=False)
        )

    def ask(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        if body is None:
            return self.client.request(method, path, **more)
        return self.client.request(method, path, json=body, **more)

    def get(self, path: str, **params: str | int) -> dict[str, Any]:
        return _success(self.client.get(path, params=params or None), 200)

    def post(self, path: str, body: Any = None, status: int = 201) -> dict[str, Any]:
        return _success(self.ask("POST", path, body), status)

    def patch(self, path: str, body: Any) -> dict[str, Any]:
        return _success(self.ask("PATCH", path, body), 200)

    def delete(self, path: str) -> dict[str, Any]:
        return _success(self.ask("DELETE", path), 200)

    def refused(self, status: int, code: str, method: str, path: str, body: Any = None, **more: Any) -> dict[str, Any]:
        """The error of a request that must be refused so."""
        answer = self.ask(method, path, body, **more)
        return error_of(answer, status, code)

    def all(self, path: str, limit: int = 100) -> list[Any]:
        """Everything that a list holds, page by page."""
        items: list[Any] = []
        cursor: str | None = None
        while True:
            page = self.get(path, limit=limit) if cursor is None else self.get(path, limit=limit, cursor=cursor)
            items += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return items

    def sql(self, token: str | None = None, database: str | None = None) -> Sql:
        """The data plane, with this token or another."""
        client = kept(self.service.client(token or self.token))
        if database is not None:
            client.headers["Tuplegate-Database"] = database
        return Sql(client)

    def with_token(self, token: str | None) -> "Control":
        return Control(self.service, token)


@dataclass
class Organization:
    """An organization of a test's own, and the control plane with its first key."""

    id: str
    name: str
    key: str
    control: Control


def new_organization(service: Service, tier: str = "unlimited") -> Organization:
    name = f"org-{next(_numbers)}"
    made = Control(service, service.key).post("/v1/organizations", {"name": name, "tier": tier})
    return Organization(made["id"], name, made["key"], Control(service, made["key"]))


def error_of(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    body = answer.json()
    assert (answer.status_code, body["error"]["code"]) == (status, code), body
    assert body["success"] is False
    assert body["request_id"] == answer.headers["x-request-id"]
    error: dict[str, Any] = body["error"]
    return error


def _success(answer: httpx.Response, status: int) -> dict[str, Any]:
    body: dict[str, Any] = answer.json()
    assert answer.status_code == status, body
    assert body["success"] is True
    return body


def in_one_window(now: Callable[[], float], work: Callable[[], _T]) -> _T:
    """What the work gives when the minute does not turn in it; otherwise it is done again, where there is room for it.

    `now` is the engine's clock.
    """
    for _ in range(3):
        began = now()
        result = work()
        ended = now()
        if ended // WINDOW_S == began // WINDOW_S:
            return result
        left_s = WINDOW_S - ended % WINDOW_S
        if left_s < 2 * (ended - began):
            time.sleep(left_s + 0.1)
    raise AssertionError(f"it does not fit into {WINDOW_S} s")


def at_once(works: Sequence[Callable[[], _T]]) -> list[_T]:
    """Runs them all from one moment on, and gives their results in order."""
    barrier = threading.Barrier(len(works))
    results: dict[int, _T] = {}
    failures: list[BaseException] = []

    def run(place: int, work: Callable[[], _T]) -> None:
        barrier.wait()
        try:
            results[place] = work()
        except BaseException as exc:  # noqa: BLE001 - raised again below, in the test's own thread
            failures.append(exc)

    threads = [threading.Thread(target=run, args=entry) for entry in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [results[place] for place in range(len(works))]


def engine(service: Service, database: str = "tuplegate") -> psycopg.Connection[TupleRow]:
    """The engine itself, as the installation's owner."""
    return psycopg.connect(service.conninfo(database), autocommit=True)


def engine_name(service: Service, database_id: str) -> str:
    with engine(service) as connection:
        row = connection.execute("select engine_name from database where id = %s", [database_id]).fetchone()
        assert row is not None
        return str(row[0])


def sleeping(service: Service, database_id: str) -> bool:
    """Whether a statement calls pg_sleep in the database just now. In one that is not awake yet none does."""
    try:
        activity = Activity(service, engine_name(service, database_id))
    except psycopg.OperationalError:
        return False
    with activity.connection:
        return activity.count_running("pg_sleep(") > 0


def worker_pid(service: Service) -> int:
    """The only worker."""
    [pid] = workers(service)
    return pid


def engine_pid(service: Service) -> int:
    """The bundled engine's server of the catalog."""
    return catalog(service)


@dataclass(frozen=True)
class Disagreements:
    """What the catalog says that the engine does not, and the other way round. Empty when all is well."""

    unfinished: list[str]
    missing: list[str]
    left: list[str]

    @property
    def none(self) -> bool:
        return not (self.unfinished or self.missing or self.left)


def disagreements(service: Service) -> Disagreements:
    """Every record that is active has its cell, or its database and two roles in an engine of one's own, and nothing
    else is there.

    In an engine that several installations share, what else is there is in the records of another.
    """
    with engine(service) as connection:
        records = connection.execute("select engine_name, state from database").fetchall()
        leftovers = connection.execute("select engine_name from leftover").fetchall()
        deleted = connection.execute("select id from organization where deleted_at is not null").fetchall()
    there = list_engine(service)
    endings = ("", "_w", "_r") if service.engine else ("",)
    wanted = {f"{name}{ending}" for name, state in records if state == "active" for ending in endings}
    unfinished = [str(name) for name, state in records if state in ("creating", "deleting")]
    unfinished += [str(row[0]) for row in [*leftovers, *deleted]]
    return Disagreements(unfinished, sorted(wanted - there), sorted(there - wanted - _of_others(service)))


def list_engine(service: Service) -> set[str]:
    """The names of all databases and roles of tenants in the engine, and of all cells."""
    with engine(service) as connection:
        databases = connection.execute("select datname from pg_database where datname ~ '^tg_'").fetchall()
        roles = connection.execute("select rolname from pg_roles where rolname ~ '^tg_'").fetchall()
    cells = [] if service.engine else CellsDirectory(service.data_dir).list_cells()
    return {str(row[0]) for row in [*databases, *roles]} | {*cells} - {"template"}


def _of_others(service: Service) -> set[str]:
    """What the other installations of the tests have, or are about to remove, in the engine that was given."""
    if not ENGINE:
        return set()
    names: set[str] = set()
    with engine(service) as connection:
        found = connection.execute("select datname from pg_database where datname ~ '^tgt_' and datname <> %s",
                                   [connection.info.dbname]).fetchall()  # fmt: skip
    for (metadata,) in found:
        with psycopg.connect(with_database(ENGINE, metadata)) as other:
            rows = other.execute("select engine_name from database union select engine_name from leftover").fetchall()
        names |= {f"{name}{ending}" for (name,) in rows for ending in ("", "_w", "_r", "_d")}
    return names
