"""Whether anybody gets a byte of anybody else's answer: many connections of three organizations, all at once.

On the data port and the alias, with and without TLS. Clients pipeline, leave at every moment, lose patience and close
their half; now and then a worker is killed. Every request carries a mark of its own (`marks.py`).
"""

import asyncio
import os
import signal
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random

import uvloop
from tests.service import Service, new_data_dir, remove, start_service
from tests.workers import workers

from attack.door.marks import Asker, Wanted, ask, ask_at_length, ask_shortly, judge, judge_bytes, statements
from attack.door.raw import Broken, RawConnection, open_raw, unchecked
from attack.party import new_party

CONNECTIONS = 64
ORGANIZATIONS = 3
WORKERS = 2

_ANSWER_S = 60.0
_DISTURBED_S = 5.0
"""How long after a worker was killed answers may say that something is not available."""
_WRONG_MAX = 30


@dataclass(frozen=True)
class Place:
    """Where a connection goes, and with what key for which organization."""

    name: str
    url: str
    keys: list[str]


@dataclass
class Run:
    """One run, from a seed. `kill` ends some worker and returns whether there was one."""

    places: list[Place]
    seed: int
    requests: int
    kills: int
    kill: Callable[[Random], bool]
    connections: int = CONNECTIONS
    trust: ssl.SSLContext = field(default_factory=unchecked)
    sent: int = 0
    wrong: list[str] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)
    request_ids: set[bytes] = field(default_factory=set)
    killed_at: float = -1e9
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    latency_s: dict[str, float] = field(default_factory=dict)
    """Of short requests by place, as they were lately: to leave in the moment in which the answer comes."""

    def is_disturbed(self, since: float) -> bool:
        return self.killed_at + _DISTURBED_S > since

    def note(self, place: Place, line: str) -> None:
        self.tally["wrong"] += 1
        if len(self.wrong) < _WRONG_MAX or "FOREIGN" in line:
            self.wrong.append(f"{place.name}: {line}")


@dataclass
class Session:
    """One connection from its opening to its end."""

    run: Run
    place: Place
    random: Random
    asker: Asker
    connection: RawConnection
    behaviour: str
    began: float = field(default_factory=time.monotonic)
    asked: list[Wanted] = field(default_factory=list)
    answered: int = 0
    was_refused: bool = False
    """By an answer that came before its request was there as a whole, and that says that it is the last."""

    def send(self, *wanted: Wanted) -> None:
        self.asked += wanted
        self.run.sent += len(wanted)
        self.connection.send(b"".join(each.data for each in wanted))

    def make(self, maker: Callable[[Random, Asker, int], Wanted], number: int = 1) -> list[Wanted]:
        return [maker(self.random, self.asker, len(self.asked) + place) for place in range(number)]

    def take(self) -> bool:
        """Judge the next answer, if one is there as a whole."""
        if self.answered >= len(self.asked):
            if self.connection.answers.rest:
                raise Broken(f"bytes that answer nothing: {bytes(self.connection.answers.rest[:300])!r}")
            return False
        wanted = self.asked[self.answered]
        answer = self.connection.answers.next(has_body=wanted.has_body)
        if answer is None:
            return False
        self.answered += 1
        self.was_refused = answer.closes and answer.status >= 400
        run = self.run
        run.tally["answers"] += 1
        run.tally[f"status {answer.status}"] += 1
        wrong = judge(wanted, answer, run.is_disturbed(self.began))
        if wrong is None and (not answer.request_id or answer.request_id in run.request_ids):
            wrong = f"request id {answer.request_id!r} is not its own"
        run.request_ids.add(answer.request_id)
        if wrong is not None:
            run.note(self.place, f"{wanted.kind} {wanted.mark.decode()}: {wrong}")
        return True

    async def take_all(self, timeout_s: float = _ANSWER_S) -> None:
        """Judge every answer that is due. Raises TimeoutError."""
        while self.answered < len(self.asked):
            if self.take():
                continue
            if self.connection.is_over:
                break
            await self.connection.news(timeout_s)
        self.take_rest()
        if self.answered < len(self.asked) and not self.was_refused and not self.run.is_disturbed(self.began):
            missing = len(self.asked) - self.answered
            kinds = ", ".join(wanted.kind for wanted in self.asked[self.answered :][:5])
            ended = f"the connection ended without {missing} of {len(self.asked)} answers ({kinds})"
            self.run.note(self.place, f"{self.behaviour}: {ended}")

    def take_rest(self) -> None:
        """Judge what has come, also where it is the beginning of an answer only."""
        while self.take():
            pass
        if self.answered < len(self.asked):
            wanted = self.asked[self.answered]
            if (foreign := judge_bytes(wanted.mark, wanted.owner, self.connection.answers.partial())) is not None:
                self.run.note(self.place, f"{wanted.kind}, in part: {foreign}")


# -- how clients behave -----------------------------------------------------------------------------------------------


async def _politely(session: Session) -> None:
    for _ in range(session.random.randrange(1, 16)):
        (wanted,) = session.make(ask)
        began = time.monotonic()
        session.send(wanted)
        await session.take_all()
        if wanted.kind in ("parameter", "literal", "text"):
            before = session.run.latency_s.get(session.place.name, 0.005)
            session.run.latency_s[session.place.name] = 0.9 * before + 0.1 * (time.monotonic() - began)
        if session.connection.is_over:
            return


async def _pipelined(session: Session) -> None:
    for _ in range(session.random.randrange(1, 4)):
        session.send(*session.make(ask, session.random.randrange(2, 13)))
        await session.take_all()
        if session.connection.is_over:
            return


async def _in_pieces(session: Session) -> None:
    """Pipelined, and cut anywhere."""
    wanted = session.make(ask, session.random.randrange(1, 6))
    session.asked += wanted
    session.run.sent += len(wanted)
    data = b"".join(each.data for each in wanted)
    cuts = sorted(session.random.randrange(len(data)) for _ in range(session.random.randrange(1, 6)))
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        session.connection.send(data[begin:end])
        await asyncio.sleep(session.random.choice((0, 0, 0.001)))
    await session.take_all()


async def _half_closed(session: Session) -> None:
    session.send(*session.make(ask, session.random.randrange(1, 4)))
    if session.connection.transport.can_write_eof():
        session.connection.transport.write_eof()
    await session.take_all()


async def _leaves_at_once(session: Session) -> None:
    session.send(*session.make(ask, session.random.randrange(1, 6)))
    if session.random.random() < 0.5:
        await asyncio.sleep(0)


async def _leaves_in_the_moment(session: Session) -> None:
    """Right when the answer should arrive: the service learns of both in one turn of its loop."""
    for _ in range(session.random.randrange(3)):
        session.send(*session.make(ask_shortly))
        await session.take_all()
        if session.connection.is_over:
            return
    session.send(*session.make(ask_shortly, session.random.choice((1, 1, 1, 2))))
    latency_s = session.run.latency_s.get(session.place.name, 0.005)
    await asyncio.sleep(latency_s * session.random.uniform(0.1, 1.3))


async def _leaves_at_the_first_byte(session: Session) -> None:
    session.send(*session.make(ask, session.random.randrange(1, 4)))
    await session.connection.news(_ANSWER_S)


async def _leaves_in_the_middle(session: Session) -> None:
    session.send(*session.make(ask_at_length), *session.make(ask, session.random.randrange(3)))
    enough = session.random.randrange(1, 200_000)
    while session.connection.received < enough and session.answered < len(session.asked):
        if not session.take():
            if session.connection.is_over:
                return
            await session.connection.news(_ANSWER_S)


async def _loses_patience(session: Session) -> None:
    session.send(*session.make(ask, session.random.randrange(1, 4)))
    with suppress(TimeoutError):
        async with asyncio.timeout(session.random.uniform(0.001, 0.06)):
            await session.take_all()


_BEHAVIOURS: tuple[Callable[[Session], Awaitable[None]], ...] = (
    _politely, _politely, _pipelined, _pipelined, _in_pieces, _half_closed, _leaves_at_once, _leaves_in_the_moment,
    _leaves_in_the_moment, _leaves_in_the_moment, _leaves_at_the_first_byte, _leaves_in_the_middle, _loses_patience,
)  # fmt: skip


# -- the run ----------------------------------------------------------------------------------------------------------


async def _serve_place(run: Run, index: int) -> None:
    """One of the connections, opened anew as often as it ends."""
    place = run.places[index % len(run.places)]
    organization = index // len(run.places) % ORGANIZATIONS
    random = Random(run.seed * 1000 + index)
    while run.sent < run.requests:
        try:
            connection = await open_raw(place.url, run.trust)
        except (OSError, TimeoutError) as exc:
            if not run.is_disturbed(time.monotonic()):
                run.note(place, f"no connection: {exc!r}")
            await asyncio.sleep(0.05)
            continue
        asker = Asker(organization, next(run.numbers), place.keys[organization])
        behave = random.choice(_BEHAVIOURS)
        await _hold(Session(run, place, random, asker, connection, behave.__name__[1:]), behave)


async def _hold(session: Session, behave: Callable[[Session], Awaitable[None]]) -> None:
    session.run.tally[session.behaviour] += 1
    try:
        await behave(session)
        session.take_rest()
    except TimeoutError:
        missing = [wanted.kind for wanted in session.asked[session.answered :]]
        session.run.note(session.place, f"{session.behaviour}: no answer in {_ANSWER_S:.0f} s to {missing[:5]}")
    except Broken as exc:
        session.run.note(session.place, f"{session.behaviour}: {exc}")
    if session.random.random() < 0.3:
        session.connection.reset()
    await session.connection.gone()


async def _kill(run: Run) -> None:
    random = Random(run.seed)
    for number in range(run.kills):
        while run.sent < run.requests * (number + 1) / (run.kills + 1):
            await asyncio.sleep(0.05)
        run.killed_at = time.monotonic()
        run.tally["workers killed"] += run.kill(random)


async def _converse(run: Run) -> None:
    killing = asyncio.create_task(_kill(run))
    await asyncio.gather(*(_serve_place(run, index) for index in range(run.connections)))
    killing.cancel()
    with suppress(asyncio.CancelledError):
        await killing


def converse(run: Run) -> None:
    """Fill `wrong` and `tally` of the run."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_converse(run))


@contextmanager
def several_workers(*flags: str) -> Iterator[Service]:
    """A service whose workers can be killed without an end of it."""
    service = start_service(new_data_dir(), "--workers", str(WORKERS), "--tiers", "unlimited", *flags)
    try:
        yield service
    finally:
        service.stop()
        remove(service.data_dir)


TLS = ("--tls", "self-signed")


def places_of(service: Service) -> list[Place]:
    """The data port and the alias, with a key of each organization."""
    keys = []
    for organization in range(ORGANIZATIONS):
        party = new_party(service, f"organization-{organization}")
        for statement in statements(organization):
            party.must(statement)
        party.close()
        keys.append(party.keys["write"])
    secure = " with TLS" if service.url.startswith("https") else ""
    return [Place(f"data{secure}", service.url, keys), Place(f"alias{secure}", service.alias_url, keys)]


def kill_some(services: list[Service]) -> Callable[[Random], bool]:
    def kill(random: Random) -> bool:
        found = workers(random.choice(services))
        if not found:
            return False
        os.kill(random.choice(found), signal.SIGKILL)
        return True

    return kill


def check(services: list[Service], seed: int, requests: int, kills: int, connections: int = CONNECTIONS) -> Run:
    """Run it all; `wrong` of what is returned is empty where nobody got what is not theirs."""
    places = [place for service in services for place in places_of(service)]
    run = Run(places, seed, requests, kills, kill_some(services), connections)
    converse(run)
    return run
