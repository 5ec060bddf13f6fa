"""Shares of the engine's pool of serializable transactions, for service processes that do not share memory.

Every service process group (a supervisor and its workers) tells the others two numbers through the metadata database,
twenty times a second, or five times while it begins none: the number of transactions that it has begun, and the largest
number that it will have begun, its ceiling. A new ceiling binds the group itself `_SETTLE_S` after the others can read
it; a lower one at once, before they can. Numbers read of other groups are valid for `_SETTLE_S` after they were asked
for. So a group that has asked within that time knows an upper bound of all transactions that have begun:
docs/decisions/0008 has the proof.

A group may begin nothing once it was silent for `_LEASE_S`; so after that time the others no longer count on it.

A group that sees another one tells its workers (`definitions.py`) before it publishes a ceiling that lets the other one
begin.

In each group, the worker that holds the tally's lock does this; when it dies, another takes over. Its findings are in
the tally, for all workers.
"""

import asyncio
import fcntl
import secrets
import time
from dataclasses import dataclass

import structlog

from tuplegate.background import keep
from tuplegate.engine.libpq.connections.commands import Command, ConnectionLost
from tuplegate.engine.libpq.connections.connection import Connection
from tuplegate.engine.libpq.connections.server_errors import check
from tuplegate.engine.libpq.values.text_rows import read_text_rows
from tuplegate.engine.port import EngineFailure, EngineUnavailable
from tuplegate.engine.postgres.safety.tally import (
    LEASE_UNTIL,
    OTHERS_CEILING,
    OTHERS_FLOOR,
    OTHERS_UNTIL,
    OWN_CEILING,
    SEAL_UNTIL,
    VIEW_UNTIL,
    Tally,
)
from tuplegate.engine.postgres.service.admin import METADATA_DATABASE, AdminConnector

_log = structlog.get_logger()

_EVERY_S = 0.05
_IDLE_EVERY_S = 0.2
"""The pause while nothing is begun."""
_SETTLE_S = 0.3
_LEASE_S = 1.0
_START_S = 15.0
_RETRY_S = 0.25
_TAKE_OVER_S = 0.25
"""How often a worker tries to take over from the publishing one: well before the others stop counting on the group."""

_LINGER_S = 60.0
"""How long a silent group may still end statements that it has begun: they are cancelled well before."""

_SHARE_OF_OTHERS = 0.25
"""The share of the pool that all other groups together may begin unseen."""
_SHARE_ALONE = 20
"""How many times the pool a group may begin unseen while there is no other group."""

_PUBLISH = b"""
WITH mine AS (
  INSERT INTO engine.guard (id, begun, ceiling, at) VALUES ($1, $2::bigint, $3::bigint, clock_timestamp())
  ON CONFLICT (id) DO UPDATE SET begun = excluded.begun, ceiling = excluded.ceiling, at = excluded.at
)
SELECT extract(epoch FROM statement_timestamp()), id, begun, ceiling,
       ended OR at < clock_timestamp() - $4::float8 * interval '1 second'
  FROM (SELECT 1) one LEFT JOIN engine.guard ON NOT starts_with(id, $5)
"""
_END = b"UPDATE engine.guard SET ended = true WHERE id = $1"
_CLEAN = b"DELETE FROM engine.guard WHERE at < clock_timestamp() - interval '1 minute'"
# If a crash of the engine loses these, no harm is done: the connection is lost too, and a new one starts over.
_LAZILY = b"SET synchronous_commit = off"


@dataclass(frozen=True, slots=True)
class _Published:
    """A ceiling that the others can read. `counts_at` and `lease_until` are on the monotonic clock, in seconds."""

    ceiling: int
    counts_at: float
    lease_until: float


class Others:
    """The other groups as this one knows them, as two sums that only grow."""

    def __init__(self, offset: int, slots: int) -> None:
        self._offset = offset
        self._slots = slots
        self._seen: dict[str, tuple[int, int]] = {}
        self._gone: set[str] = set()

    def update(self, rows: list[tuple[str, int, int, bool]]) -> None:
        """Take the rows that were read: the id of a group, its begun transactions, its ceiling, and whether it is
        over."""
        for id, begun, ceiling, over in rows:
            if id in self._gone:
                continue
            if over:
                self._gone.add(id)
                # A group never seen alive began nothing since we look; another one nothing beyond its ceiling.
                self._offset += ceiling if self._seen.pop(id, None) is not None else 0
            else:
                self._seen[id] = (begun, ceiling)
        listed = {row[0] for row in rows}
        for id in self._seen.keys() - listed:
            # It ended while we did not look: transactions that are open here may have missed too many.
            self._offset += self._seen.pop(id)[1] + self._slots
        self._gone &= listed

    @property
    def count(self) -> int:
        return len(self._seen)

    @property
    def floor(self) -> int:
        return self._offset + sum(begun for begun, _ in self._seen.values())

    @property
    def ceiling(self) -> int:
        return self._offset + sum(ceiling for _, ceiling in self._seen.values())


class Lease:
    """This group's right to begin transactions. `async with` returns once it holds and the others know of it.

    `allowance` is the number that may begin beyond a ceiling, in requests that were under way when it was reached.
    """

    def __init__(self, connector: AdminConnector, tally: Tally, slots: int, allowance: int) -> None:
        self._connector = connector
        self._tally = tally
        self._slots = slots
        self._allowance = allowance
        self._task: asyncio.Task[None] | None = None
        self._is_lost = False

    async def __aenter__(self) -> "Lease":
        loop = asyncio.get_running_loop()
        self._task = keep("lease", self._run)
        deadline = loop.time() + _START_S
        while not self._is_in_force:
            if loop.time() > deadline:
                await self.__aexit__()
                raise EngineUnavailable("no share of the engine's serializable transactions could be had")
            await asyncio.sleep(_EVERY_S)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def _is_in_force(self) -> bool:
        """Return whether transactions could begin, and commit: groups that do not know of us yet may have no
        ceiling."""
        numbers, now = self._tally.numbers, time.monotonic_ns()
        open_ended = numbers[OTHERS_CEILING] - numbers[OTHERS_FLOOR] > self._slots
        return numbers[LEASE_UNTIL] > now and numbers[VIEW_UNTIL] > now and not open_ended

    async def _run(self) -> None:
        """Wait for the lock, then publish. After a lost connection, start over under a new id."""
        while True:
            try:
                assert self._tally.lock is not None, "a tally that is shared has one"
                fcntl.lockf(self._tally.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                await asyncio.sleep(_TAKE_OVER_S)
                continue
            try:
                await self._publish_always()
            except (EngineFailure, ConnectionLost) as exc:
                self._tally.numbers[LEASE_UNTIL] = 0
                if self._is_lost:
                    await asyncio.sleep(_RETRY_S)
                else:
                    _log.warning("the share of serializable transactions was lost", reason=str(exc))
                self._is_lost = True

    async def _publish_always(self) -> None:
        connection = await self._connector.connect(METADATA_DATABASE)
        try:
            check(await connection.run(Command(_LAZILY), Command(_CLEAN)))
            publisher = Publisher(connection, self._tally, self._slots, self._allowance)
            try:
                await publisher.publish()
                if self._is_lost:
                    self._is_lost = False
                    _log.info("a share of serializable transactions was had again")
                await publisher.run()
            finally:
                # Nothing more begins under this id, even if other workers of the group continue.
                self._tally.numbers[LEASE_UNTIL] = 0
                if not connection.closed:
                    await connection.run(Command(_END, [publisher.id.encode()]))
        finally:
            connection.close()


class Publisher:
    """The publications over one connection, under an id of its own. `base` is what the group had begun before."""

    def __init__(self, connection: Connection, tally: Tally, slots: int, allowance: int) -> None:
        self.id = f"{tally.group}.{secrets.token_hex(4)}"
        self._connection = connection
        self._tally = tally
        self._slots = slots
        self._allowance = allowance
        self._base = tally.begun
        # Open transactions were not watched since the last publisher; they must run again.
        self._others = Others(tally.numbers[OTHERS_CEILING] + slots, slots)
        self._published: list[_Published] = []
        self._last_begun = -1

    async def run(self) -> None:
        """Publish until the connection is lost, or until it is so late that the others no longer count on this
        group."""
        while True:
            if self._published and time.monotonic() > self._published[-1].lease_until:
                raise EngineUnavailable("this process stood still for too long")
            begun = self._tally.begun
            await self.publish()
            await asyncio.sleep(_EVERY_S if self._tally.begun != begun or begun != self._last_begun else _IDLE_EVERY_S)
            self._last_begun = begun
            self._apply()

    async def publish(self) -> None:
        """Tell the others once, and read their numbers."""
        sent_at = time.monotonic()
        begun = self._tally.begun - self._base
        ceiling = begun + self._share()
        # A ceiling that is lower than before must bind before anybody can read it.
        self._bound_by(ceiling)
        params = [self.id, str(begun), str(ceiling), str(_LEASE_S), self._tally.group]
        results = await self._connection.run(Command(_PUBLISH, [param.encode() for param in params]))
        check(results)
        self._published.append(_Published(ceiling, time.monotonic() + _SETTLE_S, sent_at + _LEASE_S))
        rows = read_text_rows(results[-1])
        self._others.update([(str(r[1]), int(str(r[2])), int(str(r[3])), r[4] == "t") for r in rows if r[1]])
        numbers, now = self._tally.numbers, time.monotonic()
        if self._others.count:
            numbers[OTHERS_UNTIL] = int((now + _LINGER_S) * 1e9)
        self._tally.versions.note_others(are_there=numbers[OTHERS_UNTIL] > now * 1e9)
        # In this order: a reader that reads the time first gets the ceiling that belongs to it, or a higher one.
        numbers[OTHERS_CEILING] = self._others.ceiling
        numbers[OTHERS_FLOOR] = self._others.floor
        numbers[SEAL_UNTIL] = int((float(str(rows[0][0])) + _SETTLE_S) * 1e6)
        numbers[VIEW_UNTIL] = int((sent_at + _SETTLE_S) * 1e9)
        self._apply()

    def _share(self) -> int:
        """Return the number that may begin between two looks of the others."""
        if self._others.count == 0:
            return self._slots * _SHARE_ALONE
        return max(int(self._slots * _SHARE_OF_OTHERS) // self._others.count, 2 * self._allowance)

    def _bound_by(self, ceiling: int) -> None:
        own = self._base + ceiling - self._allowance
        if own < self._tally.numbers[OWN_CEILING]:
            self._tally.numbers[OWN_CEILING] = max(own, 0)

    def _apply(self) -> None:
        """Apply the latest ceiling that binds by now, unless a lower one was published since."""
        now = time.monotonic()
        counting = [published for published in self._published if published.counts_at <= now]
        if not counting:
            return
        self._published = [counting[-1], *(p for p in self._published if p.counts_at > now)]
        lowest = min(published.ceiling for published in self._published)
        self._tally.numbers[OWN_CEILING] = max(self._base + lowest - self._allowance, 0)
        self._tally.numbers[LEASE_UNTIL] = int(counting[-1].lease_until * 1e9)
