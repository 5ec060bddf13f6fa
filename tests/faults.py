"""Harm done to a running service, and what is asked of it after: its processes, its engine, outcomes."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psycopg

from tests.processes import alive, children, is_worker, numbers
from tests.service import Service
from tests.waiting import eventually
from tuplegate.engine.bundled.data_directory import SOCKET_NAME

_T = TypeVar("_T")
DOUBT_S = 30.0


def as_superuser(service: Service, sql: str, database: str = "") -> list[Any]:
    """On the server of a database, of the first one as a rule, which must be awake."""
    conninfo = service.conninfo(database) if database else service.server_of()
    with psycopg.connect(conninfo, autocommit=True) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


def child(service: Service, *, engine: bool, database: str = "") -> int:
    """The first process of a database's server, of the first one as a rule, or the worker, once there is one."""
    return _find(service, _cell(service, database) / "data" if engine else None)


def engine_socket_directory(service: Service) -> Path:
    """Where the first database's server takes connections; it does by now, as somebody uses it."""
    once_back(lambda: as_superuser(service, "select 1") == [(1,)])
    return _cell(service) / "run"


def _cell(service: Service, database: str = "") -> Path:
    return service.data_dir / "cells" / (database or service.first_database)


def has_server(service: Service) -> bool:
    """Whether the first database's server runs, or is being started."""
    return _look(service, _cell(service) / "data") > 0


def is_awake(service: Service) -> bool:
    """Whether the first database's server has its socket, and so takes connections."""
    return (_cell(service) / "run" / SOCKET_NAME).exists()


def catalog(service: Service) -> int:
    """The first process of the catalog's server, once there is one."""
    return _find(service, service.data_dir / "catalog" / "data")


def _find(service: Service, data: Path | None) -> int:
    """The server of the bundled engine on the data, or the worker."""
    return eventually(lambda: _look(service, data), DOUBT_S)


def _look(service: Service, data: Path | None) -> int:
    for found in children(service.process.pid):
        with suppress(OSError):  # it has just ended
            if is_worker(found) if data is None else _serves_data(found, data):
                return found
    return 0


def _serves_data(pid: int, data: Path) -> bool:
    return f"\0-D\0{data}\0" in Path(f"/proc/{pid}/cmdline").read_text()


def backends(service: Service, condition: str = "true") -> list[int]:
    """The processes of connections to the first database's server, by what its pg_stat_activity shows of them. It has
    numbers of its own for its processes."""
    inside = {pid for (pid,) in as_superuser(service, f"select pid from pg_stat_activity where {condition}")}
    found = []
    for pid in children(child(service, engine=True)):
        with suppress(OSError):  # it has just ended
            if numbers(pid)[-1] in inside:
                found.append(pid)
    return found


def once_back(ask: Callable[[], _T | None], seconds: float = DOUBT_S) -> _T:
    """Return the first true answer, as `eventually` does; while a server starts again nobody answers, which is no
    error."""

    def answered() -> _T | None:
        with suppress(psycopg.OperationalError, httpx.TransportError):
            return ask()
        return None

    return eventually(answered, seconds)


def definite(client: httpx.Client, id: str) -> str | None:
    """The outcome once it is one; None for an id that is not known."""
    answers: list[httpx.Response] = []

    def is_definite() -> bool:
        answers.append(answer := client.get(f"/v1/transaction/{id}"))
        return answer.status_code == 404 or (answer.status_code == 200 and answer.json()["state"] != "in_progress")

    eventually(is_definite, DOUBT_S, last=lambda: answers[-1].text)
    return None if answers[-1].status_code == 404 else str(answers[-1].json()["state"])


def send_signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it has ended by itself


def kill_worker(service: Service) -> None:
    """Returns when it is dead; the supervisor starts another by itself."""
    kill(child(service, engine=False))


def kill(pid: int) -> None:
    """Returns when it is dead."""
    send_signal(pid, signal.SIGKILL)
    eventually(lambda: not alive(pid))


def kill_engine(service: Service) -> None:
    """Kills the first database's server with all of its processes, so that nothing is left that could still write;
    returns when they are dead. The next request starts it again."""
    _kill_server(child(service, engine=True))


def kill_catalog(service: Service) -> None:
    """The same with the server of the catalog, which the service starts again by itself."""
    _kill_server(catalog(service))


def _kill_server(postmaster: int) -> None:
    pids = [postmaster, *children(postmaster)]
    for pid in pids:
        send_signal(pid, signal.SIGKILL)
    eventually(lambda: not any(alive(pid) for pid in pids))


def answers(service: Service) -> bool:
    """Whether the first database answers. Its server is started again for that, if it was killed."""
    with service.client() as client:
        return client.post("/v1/query", json={"sql": "select 1"}).status_code == 200


def none_in_doubt(service: Service) -> bool:
    return (
        answers(service)
        and as_superuser(service, "select gid from pg_prepared_xacts where gid like 'tuplegate%'") == []
    )


def serves(service: Service) -> bool:
    with service.client() as client:
        return client.get("/health").status_code == 200
