"""The workload: how much of it is sent in which way, and everything that came of it."""

import asyncio
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field

from tests.histories import Transaction
from tests.list_append.client import Asker, Client
from tests.list_append.sayings import Lack, Sayings, Snapshot
from tests.service import Service

_ANSWER_S = 120.0
_RECENT_MAX = 200
_REST_TICK_S = 0.02


@dataclass(frozen=True)
class Shares:
    """The shares of what is sent in each way; the rest are transactions, sent whole."""

    queries: float = 0.0
    """Single statements: reads, appends, and appends with an Idempotency-Key."""
    interactive: float = 0.0
    """Statement by statement, as a transaction that stays open meanwhile."""
    streams: float = 0.0
    """Single statements whose rows are streamed."""
    snapshots: float = 0.0
    """Reads that a replica may answer, behind the client's position."""
    wire: float = 0.0
    """Through PostgreSQL's own protocol; needs `wire_ports`."""
    chosen_ids: float = 0.0
    """Of whole transactions, those that carry an id of the client's choice, so that their outcome can be asked for."""
    keys: float = 0.0
    """Of the others of these, those that carry an Idempotency-Key."""


# size: half of its fields say what is to be done, and half what has come of it.
@dataclass
class ListAppend:
    """See the package's text. `run` in a thread of its own lets others do harm meanwhile."""

    service: Service
    table: str
    seed: int
    transactions: int
    clients: int = 12
    shares: Shares = field(default_factory=Shares)
    others: tuple[Service, ...] = ()
    """Further nodes of the same service."""
    timeout_ms: int | None = None
    """The time limit of every request; the service's own without it."""
    answer_s: float = _ANSWER_S
    """A client waits no longer for an answer, or to learn an outcome afterwards."""
    may_forget: bool = False
    """The engine may lose what it has acknowledged, so that an outcome can stay unknown."""
    wire_ports: tuple[int, ...] = ()
    """Ports of tunnels to `GET /v2`, in the order of the nodes."""
    askers: int = 0
    """How many ask for outcomes while all this goes on, and sometimes abort what a client has begun."""
    history: list[Transaction] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    lacks: list[Lack] = field(default_factory=list)
    sayings: Sayings = field(default_factory=Sayings)
    recent: deque[tuple[str, bool]] = field(default_factory=lambda: deque(maxlen=_RECENT_MAX))
    """Ids of transactions that run, or have lately; and whether a client chose them."""
    ids: dict[int, str] = field(default_factory=dict)
    """The ids by which the service knows whole transactions, by their numbers in the history."""
    sent: Counter[str] = field(default_factory=Counter)
    """How many were sent in which way."""
    counts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    """How often which code said that nothing was applied."""
    asked: Counter[str] = field(default_factory=Counter)
    """What the askers were told, and who has answered snapshots."""
    _wrong: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set it to have no more begun; what is in doubt is still asked for."""
    rests_until: float = 0.0
    """Clients begin nothing before that time of the monotonic clock, so that the database can fall asleep."""
    at_work: dict[Client, tuple[int, float]] = field(default_factory=dict)
    """The clients that are at work, each with the transaction that it is at, and since when."""

    @property
    def wrong(self) -> list[str]:
        """Answers that no fault can excuse."""
        return [*self._wrong, *self.sayings.wrong, *map(str, self.lacks)]

    def complain(self, line: str) -> None:
        self._wrong.append(line)

    @property
    def done(self) -> int:
        return self.counts.total()

    @property
    def nodes(self) -> tuple[Service, ...]:
        return (self.service, *self.others)

    def rest(self, seconds: float) -> None:
        """Let the clients begin nothing for so long from now on; they go on at once after `rest(0)`."""
        self.rests_until = time.monotonic() + seconds

    async def rested(self) -> None:
        while time.monotonic() < self.rests_until:
            await asyncio.sleep(_REST_TICK_S)

    def run(self) -> None:
        asyncio.run(self._all())

    def describe_waiting(self, seconds: float) -> list[str]:
        """Return a line for every client that has been at one transaction for longer than that."""
        now = time.monotonic()
        return [
            f"client {client.number} is at transaction {id} for {now - since:.0f} s; {'; '.join(client.told)}"
            for client, (id, since) in list(self.at_work.items())
            if now - since > seconds
        ]

    async def _all(self) -> None:
        askers = [asyncio.create_task(Asker(self, number).run()) for number in range(self.askers)]
        async with asyncio.TaskGroup() as group:
            for number in range(self.clients):
                group.create_task(Client(self, number).run())
        for asker in askers:
            asker.cancel()
        for result in await asyncio.gather(*askers, return_exceptions=True):
            if not isinstance(result, asyncio.CancelledError):
                self.complain(f"an asker failed: {result!r}")
