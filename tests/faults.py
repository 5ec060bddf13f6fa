"""Harm done to a running service, and what is asked of it after: its processes, its engine, outcomes."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psycopg

from tests.service import Service

DOUBT_S = 30.0


def as_superuser(service: Service, sql: str, database: str = "postgres") -> list[Any]:
    with psycopg.connect(service.conninfo(database), autocommit=True) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


def child(service: Service, *, engine: bool) -> int:
    """The engine's first process, or the worker, once there is one."""
    pid = service.process.pid
    deadline = time.monotonic() + DOUBT_S
    while time.monotonic() < deadline:
        for found in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            try:
                if (Path(f"/proc/{found}/comm").read_text() == "postgres\n") is engine:
                    return found
            except OSError:
                continue  # it has just ended
        time.sleep(0.005)
    raise AssertionError("there is none")


def eventually(condition: Callable[[], bool], seconds: float = DOUBT_S) -> None:
    deadline = time.monotonic() + seconds
    while not _holds(condition):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except (psycopg.OperationalError, httpx.TransportError):
        return False  # it is starting again


def definite(client: httpx.Client, id: str) -> str | None:
    """The outcome once it is one; None for an id that is not known."""
    deadline = time.monotonic() + DOUBT_S
    while True:
        answer = client.get(f"/v1/transaction/{id}")
        if answer.status_code == 404:
            return None
        if answer.status_code == 200 and answer.json()["state"] != "in_progress":
            return str(answer.json()["state"])
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.05)


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
    eventually(lambda: not runs(pid))


def kill_engine(service: Service) -> None:
    """Kills all of its processes, so that nothing is left that could still write; returns when they are dead."""
    postmaster = child(service, engine=True)
    pids = [postmaster, *children(postmaster)]
    for pid in pids:
        send_signal(pid, signal.SIGKILL)
    eventually(lambda: not any(runs(pid) for pid in pids))


def children(pid: int) -> list[int]:
    return [int(found) for found in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def runs(pid: int) -> bool:
    """Whether it is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def none_in_doubt(service: Service) -> bool:
    return as_superuser(service, "select gid from pg_prepared_xacts where gid like 'tuplegate%'") == []


def serves(service: Service) -> bool:
    with service.client() as client:
        return client.get("/health").status_code == 200
