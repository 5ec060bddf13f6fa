"""A fresh service with its bundled engine, and the parties: attackers, a victim, a bystander.

An attack gets an attacker of its own. When it is over, the walls are checked as a whole and the attacker's organization
is deleted, so that one attack leaves nothing to the next.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import psycopg
from tests.control import engine_pid
from tests.service import Service, new_data_dir, remove, start_service

from attack.bystander import Bystander
from attack.party import Party, new_party

SETTINGS = ("--tiers", "free=200, small=/24MB, unlimited", "--engine-temp-mb", "200")
SMALL_BYTES = 24 * 2**20
SEED = 0.25
"""What hostile code sets the random seed to."""

_STOP_S = 60.0
_numbers = count(1)
Row = tuple[Any, ...]


class Breach(AssertionError):
    """A wall did not hold."""


@dataclass
class Arena:
    """`attacker` is the one of the attack that runs now. `broken_probes` stop the engine by themselves, whoever runs
    them, and are left out of what all attacks try."""

    service: Service
    victim: Party
    bystander: Bystander
    marker: str
    seeded: frozenset[float]
    broken_probes: frozenset[str]
    attacker: Party
    others: list[Party] = field(default_factory=list)
    own_schemas: set[str] = field(default_factory=set)
    own_reads: int = 0
    """How often the check itself has read what the victim has."""

    def look(self, sql: str, params: list[Any] | None = None, database: str = "tuplegate") -> list[Row]:
        """Ask the engine as its superuser, to verify; on a path that has nothing of a tenant on it."""
        info = f"{self.service.conninfo(database)} options='-c search_path=pg_catalog -c statement_timeout=20s'"
        with _connected(info) as engine:
            cursor = engine.execute(sql.encode(), params)
            return cursor.fetchall() if cursor.description else []

    def another(self, tier: str = "unlimited") -> Party:
        """One more tenant for this attack, who is gone after it."""
        made = new_party(self.service, f"other-{next(_numbers)}", tier)
        self.others.append(made)
        return made

    def operate(self, method: str, path: str) -> tuple[int, str]:
        """Ask the control plane with the operator's key."""
        operator = Party(self.service, "", "operator", {"admin": self.service.key})
        try:
            answer = operator.ask("admin", method, path, control=True)
        finally:
            operator.close()
        return answer.status, answer.text

    def busy(self, database: str) -> list[Row]:
        """Server processes that work in the database, or are inside a transaction there."""
        return self.look(
            "select pid, state, left(query, 100) from pg_stat_activity"
            " where datname = %s and state <> 'idle' and pid <> pg_backend_pid()",
            [database],
            database,
        )

    @contextmanager
    def fresh_attacker(self, tier: str = "unlimited") -> Iterator[Party]:
        self.attacker = new_party(self.service, f"attacker-{next(_numbers)}", tier)
        self.others = []
        self.own_schemas = set()
        # So that a look afterwards can tell which functions ran, also in transactions that were rolled back.
        for sql in ("alter system set track_functions = 'pl'", "select pg_reload_conf()"):
            self.look(sql, database=self.attacker.database)
        try:
            yield self.attacker
        finally:
            for party in (self.attacker, *self.others):
                party.close()


def _connected(info: str) -> "psycopg.Connection[Row]":
    """A connection, also to an engine that an attack has just brought down."""
    deadline = time.monotonic() + _STOP_S
    while True:
        try:
            return psycopg.connect(info, autocommit=True)
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@contextmanager
def open_arena(service: Service) -> Iterator[Arena]:
    """On a service that nobody else uses."""
    marker = f"coveted-{os.urandom(8).hex()}"
    victim, standing_by = new_party(service, "victim"), new_party(service, "bystander")
    try:
        victim.must("create table coveted (secret text)")
        victim.must("insert into coveted values ($1)", [marker])
        broken = _broken_probes(victim)
        with Bystander(standing_by) as bystander:
            arena = Arena(service, victim, bystander, marker, frozenset(), broken, victim)
            seeded = f"select setseed({SEED}), random(), random(), random()"
            arena.seeded = frozenset(float(value) for value in arena.look(seeded)[0][1:])
            yield arena
    finally:
        victim.close()
        standing_by.close()


@contextmanager
def running_service(*settings: str) -> Iterator[Service]:
    """A service that is stopped in the end, with an engine that is ended where an attack keeps it from stopping."""
    data_dir = new_data_dir()
    service = start_service(data_dir, *(settings or SETTINGS))
    engine = engine_pid(service)
    try:
        yield service
    finally:
        try:
            service.process.send_signal(signal.SIGTERM)
            service.process.wait(_STOP_S)
        except Exception:  # noqa: BLE001 - whatever keeps it from stopping, nothing of it may outlive the run
            service.kill()
        _end(engine)
        remove(data_dir)


def _end(engine: int) -> None:
    """A server process that hears no signal keeps the engine alive; they all are of the engine's process group."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            os.kill(engine, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    with suppress(ProcessLookupError):
        children = _children(engine)
        os.kill(engine, signal.SIGKILL)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def _broken_probes(party: Party) -> frozenset[str]:
    """Probes that lose the engine even where nobody attacks: on some machines an extension's code cannot run."""
    if party.ask("admin", "GET", "/capabilities/vector_distance").status != 503:
        return frozenset()
    deadline = time.monotonic() + _STOP_S
    while not party.query("select 1 as one").succeeded and time.monotonic() < deadline:
        time.sleep(0.1)
    return frozenset({"vector_distance", "vector_hnsw", "vector_ivfflat"})
