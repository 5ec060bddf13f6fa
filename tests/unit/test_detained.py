"""Requests that wait for their lane before anything was made of them: a real server and plane, and handlers that do as
the test says."""

import asyncio
import gc
import json
import socket
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from tests.unit.stage import WAIT_S, Line, until
from tuplegate.admission.fairness import _KEPT_TICKS, Lane, Lanes
from tuplegate.admission.identity import Identity, IdentityCache
from tuplegate.admission.plane import Plane, Route
from tuplegate.http import server
from tuplegate.http.exchange import Exchange
from tuplegate.http.server import HttpBounds, HttpServer
from tuplegate.metrics.cells import PlaneCounts
from tuplegate.protocol.errors import ServiceError

_HEAD = b"POST /work HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\nContent-Length: 4\r\n\r\n"
_OWN_HEAD = _HEAD.replace(b"Host: x", b"Host: own")


def new_head(number: int) -> bytes:
    """Of a request that is new to the server, and so waits inside of its handler."""
    return _HEAD.replace(b"Host: x", b"Host: %d" % number)


class Client(Line):
    """A connection, whose head the server knows."""

    def send(self, name: str, head: bytes = _HEAD) -> None:
        self.writer.write(head + name.encode())

    async def outcome(self) -> str:
        """Whose answer came, or the code of the error."""
        status, body = await self.answer()
        said = json.loads(body)
        return str(said["error"]["code"]) if status != 200 else str(said["name"])


class Stage:
    """One organization. A request is known by its body, of four letters: one that begins with `h` holds its place until
    it is let go, the others end at once."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.ran: list[str] = []
        self.held: dict[str, asyncio.Future[None]] = {}
        self.clean_up: asyncio.Future[None] | None = None
        """What one that is cancelled waits for."""
        self.is_fresh = True
        """What is known of the token; else it is `looked_up`."""
        self.looked_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.use_lane(lanes.of("org"))
        routes = {("POST", "/work"): Route("", None, guarded=self._work)}
        plane = Plane(routes, cast(IdentityCache, self), PlaneCounts("data"), in_lanes=True)
        self.server = HttpServer(plane.handle, HttpBounds(1000, 1000, 60.0, 60.0, 60.0, 60.0))
        self._clients: list[Client] = []

    async def __aenter__(self) -> "Stage":
        self._socket = socket.create_server(("127.0.0.1", 0))
        await self.server.start(self._socket)
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            client.writer.close()
        for future in self.held.values():
            if not future.done():
                future.set_result(None)
        await self.server.stop(WAIT_S, lambda: None)
        self._socket.close()
        await until(lambda: not self.server.connections)

    def use_lane(self, lane: Lane) -> None:
        nothing = cast(Any, None)
        self.lane = lane
        self._identity = Identity(nothing, frozenset(), None, None, lane, nothing, "")

    # -- as identities --------------------------------------------------------------------------------------------

    def find(self, exchange: Exchange, now: float) -> Identity | None:
        return self._identity if self.is_fresh else None

    async def identify(self, authorization: bytes | None, now: float) -> Identity:
        await asyncio.shield(self.looked_up)
        return self._identity

    # -- the work -------------------------------------------------------------------------------------------------

    async def _work(self, exchange: Exchange, _: Identity) -> None:
        name = exchange.read_body().decode()
        self.ran.append(name)
        assert self.lane.running <= self.lanes.share
        if name.startswith("h"):
            self.held[name] = asyncio.get_running_loop().create_future()
            try:
                await self.held[name]
            except asyncio.CancelledError:
                if self.clean_up is not None:
                    await self.clean_up
                raise
        exchange.respond(200, json.dumps({"name": name}).encode())

    async def client(self, head: bytes = _HEAD) -> Client:
        """The second request with a head is the first that notes the lane."""
        made = Client(*await asyncio.open_connection(*self._socket.getsockname()))
        self._clients.append(made)
        for _ in range(2):
            made.send("know", head)
            assert await made.outcome() == "know"
            self.ran.pop()
        return made

    async def clients(self, count: int) -> list[Client]:
        return [await self.client() for _ in range(count)]

    async def hold(self, client: Client, name: str = "hold", head: bytes = _HEAD) -> None:
        client.send(name, head)
        await until(lambda: name in self.held)

    async def wait_in_lane(self, client: Client, name: str, head: bytes = _HEAD) -> None:
        """Sends it, and waits until it waits."""
        before = self.lane.waiting
        client.send(name, head)
        await until(lambda: self.lane.waiting == before + 1)

    def let_go(self, name: str = "hold") -> None:
        self.held[name].set_result(None)

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.lanes.pass_tick()

    @property
    def in_lane(self) -> tuple[int, int]:
        return self.lane.running, self.lane.waiting


def on_stage(lanes: Lanes, play: Callable[[Stage], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Stage(lanes) as stage:
            await play(stage)

    asyncio.run(run())


def test_they_are_let_in_in_the_order_they_came() -> None:
    """Those that wait inside of their handler and those that were detained stand in one queue."""

    async def play(stage: Stage) -> None:
        holder, *others = await stage.clients(7)
        await stage.hold(holder)
        names = [f"no {number}" for number in range(6)]
        for number, (client, name) in enumerate(zip(others, names, strict=True)):
            await stage.wait_in_lane(client, name, new_head(number) if number % 2 else _HEAD)
        stage.let_go()
        assert [await client.outcome() for client in [holder, *others]] == ["hold", *names]
        assert stage.ran == ["hold", *names]
        assert stage.in_lane == (0, 0)

    on_stage(Lanes(1, 1, 10, 10.0), play)


def test_what_is_detained_has_not_begun() -> None:
    """That is what it is for: nothing is looked up or made for it."""

    async def play(stage: Stage) -> None:
        holder, waiting = await stage.clients(2)
        await stage.hold(holder)
        await stage.wait_in_lane(waiting, "wait")
        assert sorted(exchange.run is None for exchange in stage.server._running()) == [False, True]
        stage.let_go()
        assert await waiting.outcome() == "wait"

    on_stage(Lanes(1, 1, 10, 10.0), play)


def test_one_whose_client_left_is_not_run() -> None:
    async def play(stage: Stage) -> None:
        holder, leaving, staying = await stage.clients(3)
        await stage.hold(holder)
        await stage.wait_in_lane(leaving, "left")
        await stage.wait_in_lane(staying, "stay")
        leaving.writer.close()
        await until(lambda: len(stage.server.connections) == 2)
        assert stage.in_lane == (1, 1)
        stage.let_go()
        assert await staying.outcome() == "stay"
        assert stage.ran == ["hold", "stay"]
        assert stage.in_lane == (0, 0)

    on_stage(Lanes(1, 1, 10, 10.0), play)


@pytest.mark.parametrize("head", [_HEAD, new_head(1)])
def test_one_whose_client_left_stands_in_no_queue(head: bytes) -> None:
    """Nor does what it has sent stay in memory for the rest of its time."""

    async def play(stage: Stage) -> None:
        holder, leaving, staying = await stage.clients(3)
        await stage.hold(holder)
        await stage.wait_in_lane(leaving, "left", head)
        (sent,) = [weakref.ref(exchange) for exchange in stage.server._running() if exchange.body == b"left"]
        leaving.writer.close()
        await until(lambda: stage.in_lane == (1, 0))
        gc.collect()
        assert sent() is None
        await stage.wait_in_lane(staying, "stay")
        stage.let_go()
        assert await staying.outcome() == "stay"

    on_stage(Lanes(1, 1, 1, 10.0), play)


def test_one_whose_time_is_over_hears_it() -> None:
    """And its connection goes on."""

    async def play(stage: Stage) -> None:
        holder, waiting = await stage.clients(2)
        await stage.hold(holder)
        await stage.wait_in_lane(waiting, "late")
        stage.tick(10)
        assert stage.in_lane == (1, 1)
        stage.tick()
        status, body = await waiting.answer()
        error = json.loads(body)["error"]
        assert (status, error["code"], error["retryable"]) == (503, "busy", True)
        assert stage.in_lane == (1, 0)
        stage.let_go()
        assert await holder.outcome() == "hold"
        waiting.send("next")
        assert await waiting.outcome() == "next"
        assert stage.ran == ["hold", "next"]
        assert stage.in_lane == (0, 0)

    on_stage(Lanes(1, 1, 10, 1.0), play)


def test_what_follows_one_that_was_turned_away_waits_its_own_time() -> None:
    """It is run within the end of the other, and is not meant by what that is told; nor does it jump the queue."""

    async def play(stage: Stage) -> None:
        holder, first, second = await stage.clients(3)
        await stage.hold(holder)
        await stage.wait_in_lane(first, "late")
        first.send("next")
        await until(lambda: any(connection._waiting for connection in stage.server.connections))
        stage.tick(5)
        await stage.wait_in_lane(second, "wait")
        stage.tick(6)
        assert await first.outcome() == "busy"
        assert stage.in_lane == (1, 2)
        stage.let_go()
        assert [await second.outcome(), await first.outcome()] == ["wait", "next"]
        assert stage.ran == ["hold", "wait", "next"]
        assert stage.in_lane == (0, 0)

    on_stage(Lanes(1, 1, 10, 1.0), play)


def test_what_follows_one_that_was_let_in_goes_behind_those_that_wait() -> None:
    async def play(stage: Stage) -> None:
        holder, first, second = await stage.clients(3)
        await stage.hold(holder)
        await stage.wait_in_lane(first, "wait")
        first.send("last")
        await until(lambda: any(connection._waiting for connection in stage.server.connections))
        await stage.wait_in_lane(second, "then")
        stage.let_go()
        assert [await first.outcome(), await second.outcome(), await first.outcome()] == ["wait", "then", "last"]
        assert stage.ran == ["hold", "wait", "then", "last"]
        assert stage.in_lane == (0, 0)

    on_stage(Lanes(1, 1, 10, 10.0), play)


def test_more_than_may_wait_hear_it_at_once() -> None:
    async def play(stage: Stage) -> None:
        holder, first, second, third = await stage.clients(4)
        await stage.hold(holder)
        await stage.wait_in_lane(first, "no 1")
        await stage.wait_in_lane(second, "no 2")
        third.send("no 3")
        assert await third.outcome() == "busy"
        stage.let_go()
        assert [await first.outcome(), await second.outcome()] == ["no 1", "no 2"]

    on_stage(Lanes(1, 1, 2, 10.0), play)


def test_one_whose_turn_has_come_is_not_told_busy_when_shares_shrink_just_then() -> None:
    """Another organization came first in this tick: the share is less from the moment this one is noted again."""

    async def play(stage: Stage) -> None:
        waiting, *holders = await stage.clients(5)
        for number, client in enumerate(holders):
            await stage.hold(client, f"h{number:03}")
        await stage.wait_in_lane(waiting, "wait")
        stage.tick()
        stage.lanes.of("another").enter(Exchange(cast(Any, None), b""))
        assert stage.lanes.share == 4
        stage.let_go("h000")
        assert await holders[0].outcome() == "h000"
        for number in range(1, 4):
            stage.let_go(f"h{number:03}")
        assert await waiting.outcome() == "wait"
        await until(lambda: stage.in_lane == (0, 0))

    on_stage(Lanes(4, 4, 10, 10.0), play)


def test_one_whose_turn_has_come_keeps_it_while_its_token_is_looked_up() -> None:
    """What is known of a token is fresh for less time than a request may wait. Nobody else gets the place meanwhile."""

    async def play(stage: Stage) -> None:
        holder, first, second, third = await stage.clients(4)
        await stage.hold(holder)
        await stage.wait_in_lane(first, "no 1")
        await stage.wait_in_lane(second, "no 2")
        stage.is_fresh = False
        stage.let_go()
        assert await holder.outcome() == "hold"
        assert stage.in_lane == (1, 1), "the second is not begun as long as the first has not ended"
        stage.is_fresh = True
        await stage.wait_in_lane(third, "no 3", new_head(3))
        stage.looked_up.set_result(None)
        assert [await client.outcome() for client in (first, second, third)] == ["no 1", "no 2", "no 3"]
        assert stage.ran == ["hold", "no 1", "no 2", "no 3"]
        assert stage.in_lane == (0, 0)

    on_stage(Lanes(1, 1, 10, 10.0), play)


def test_one_whose_turn_has_come_is_not_told_busy_because_the_queue_is_full() -> None:
    async def play(stage: Stage) -> None:
        holder, first, second, third = await stage.clients(4)
        await stage.hold(holder)
        await stage.wait_in_lane(first, "no 1")
        stage.is_fresh = False
        stage.let_go()
        assert await holder.outcome() == "hold"
        stage.is_fresh = True
        await stage.wait_in_lane(second, "no 2", new_head(2))
        third.send("no 3")
        assert await third.outcome() == "busy"
        stage.looked_up.set_result(None)
        assert [await first.outcome(), await second.outcome()] == ["no 1", "no 2"]

    on_stage(Lanes(1, 1, 1, 10.0), play)


def test_one_whose_time_is_over_hears_it_also_when_its_token_is_looked_up_first() -> None:
    """It does not begin to wait anew."""

    async def play(stage: Stage) -> None:
        holder, waiting = await stage.clients(2)
        await stage.hold(holder)
        await stage.wait_in_lane(waiting, "late")
        stage.is_fresh = False
        stage.tick(11)
        stage.looked_up.set_result(None)
        assert await waiting.outcome() == "busy"
        assert stage.in_lane == (1, 0)

    on_stage(Lanes(1, 1, 10, 1.0), play)


def test_one_that_is_refused_when_its_turn_has_come_gives_the_place_back() -> None:
    """Its token was revoked while it waited."""

    async def play(stage: Stage) -> None:
        holder, first, second = await stage.clients(3)
        await stage.hold(holder)
        await stage.wait_in_lane(first, "no 1")
        await stage.wait_in_lane(second, "no 2")
        stage.is_fresh = False
        stage.let_go()
        assert await holder.outcome() == "hold"
        stage.is_fresh = True
        stage.looked_up.set_exception(ServiceError("unauthenticated", "it is revoked"))
        assert [await first.outcome(), await second.outcome()] == ["unauthenticated", "no 2"]
        assert stage.in_lane == (0, 0)

    on_stage(Lanes(1, 1, 10, 10.0), play)


def test_they_are_detained_while_the_token_of_one_with_the_same_head_is_looked_up() -> None:
    async def play(stage: Stage) -> None:
        looked_up, waiting, holder = *await stage.clients(2), await stage.client(_OWN_HEAD)
        stage.is_fresh = False
        looked_up.send("no 1")
        await until(lambda: stage.server.running == 1)
        stage.is_fresh = True
        await stage.hold(holder, head=_OWN_HEAD)
        await stage.wait_in_lane(waiting, "no 2")
        assert sorted(exchange.run is None for exchange in stage.server._running()) == [False, False, True]
        stage.let_go()
        stage.looked_up.set_result(None)
        assert [await client.outcome() for client in (looked_up, holder, waiting)] == ["no 1", "hold", "no 2"]
        assert stage.in_lane == (0, 0)

    on_stage(Lanes(1, 1, 10, 10.0), play)


def test_one_that_was_refused_does_not_wait_with_the_others_again() -> None:
    """Whoever has a key that was revoked cannot fill the queue with it."""

    async def play(stage: Stage) -> None:
        holder, refused = await stage.client(), await stage.client(_OWN_HEAD)
        stage.is_fresh = False
        stage.looked_up.set_exception(ServiceError("unauthenticated", "it is revoked"))
        refused.send("no 1", _OWN_HEAD)
        assert await refused.outcome() == "unauthenticated"
        stage.is_fresh = True
        await stage.hold(holder)
        stage.is_fresh = False
        refused.send("no 2", _OWN_HEAD)
        assert await refused.outcome() == "unauthenticated"
        assert stage.in_lane == (1, 0)

    on_stage(Lanes(1, 1, 10, 10.0), play)


def test_one_whose_client_leaves_when_its_turn_has_come_gives_the_place_back() -> None:
    async def play(stage: Stage) -> None:
        holder, first, second = await stage.clients(3)
        await stage.hold(holder)
        await stage.wait_in_lane(first, "no 1")
        await stage.wait_in_lane(second, "no 2")
        stage.is_fresh = False
        stage.let_go()
        assert await holder.outcome() == "hold"
        stage.is_fresh = True
        first.writer.close()
        assert await second.outcome() == "no 2"
        assert stage.ran == ["hold", "no 2"]
        assert stage.in_lane == (0, 0)

    on_stage(Lanes(1, 1, 10, 10.0), play)


def test_a_lane_that_was_forgotten_detains_nobody() -> None:
    """A connection knows the lane that its head came to last; the organization has another one since."""

    async def play(stage: Stage) -> None:
        holder, waiting = await stage.clients(2)
        old = stage.lane
        stage.tick(_KEPT_TICKS + 1)
        stage.use_lane(stage.lanes.of("org"))
        assert stage.lane is not old
        await stage.hold(holder)
        await stage.wait_in_lane(waiting, "wait")
        assert (old.running, old.waiting) == (0, 0)
        stage.let_go()
        assert await waiting.outcome() == "wait"
        await stage.hold(holder, "hnew")
        await stage.wait_in_lane(waiting, "then")
        stage.let_go("hnew")
        assert await waiting.outcome() == "then"
        assert stage.in_lane == (0, 0)

    on_stage(Lanes(1, 1, 10, 100.0), play)


def test_one_whose_organization_has_another_lane_when_its_turn_comes_gives_the_place_back() -> None:
    async def play(stage: Stage) -> None:
        holder, waiting = await stage.clients(2)
        await stage.hold(holder)
        await stage.wait_in_lane(waiting, "wait")
        old = stage.lane
        stage.use_lane(stage.lanes.of("another"))
        stage.let_go()
        assert await waiting.outcome() == "wait"
        assert (old.running, old.waiting) == (0, 0)
        assert stage.in_lane == (0, 0)

    on_stage(Lanes(1, 1, 10, 10.0), play)


def test_a_stop_lets_it_finish() -> None:
    async def play(stage: Stage) -> None:
        holder, waiting = await stage.clients(2)
        await stage.hold(holder)
        await stage.wait_in_lane(waiting, "wait")
        stopping = asyncio.create_task(stage.server.stop(WAIT_S, lambda: None))
        await until(lambda: stage.server.stopping)
        stage.let_go()
        assert [await holder.outcome(), await waiting.outcome()] == ["hold", "wait"]
        assert await waiting.is_cut()
        waiting.writer.close()
        await stopping
        assert stage.in_lane == (0, 0)

    on_stage(Lanes(1, 1, 10, 10.0), play)


def test_a_stop_that_is_out_of_time_refuses_it_and_nothing_is_run() -> None:
    """Also when a place becomes free just then: it was answered, so it is not begun any more."""

    async def play(stage: Stage) -> None:
        holder, waiting = await stage.clients(2)
        await stage.hold(holder)
        await stage.wait_in_lane(waiting, "wait")
        stopping = asyncio.create_task(stage.server.stop(0.0, stage.let_go))
        assert await waiting.outcome() == "shutting_down"
        assert await waiting.is_cut()
        assert await holder.outcome() == "hold"
        await stopping
        assert stage.ran == ["hold"]
        assert stage.in_lane == (0, 0)

    on_stage(Lanes(1, 1, 10, 10.0), play)


def test_a_stop_that_cuts_off_what_runs_begins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LATE_S", 0.01)

    async def play(stage: Stage) -> None:
        holder, waiting = await stage.clients(2)
        await stage.hold(holder)
        await stage.wait_in_lane(waiting, "wait")
        await asyncio.gather(stage.server.stop(0.0, lambda: None), waiting.outcome(), holder.outcome())
        assert stage.ran == ["hold"]
        assert stage.in_lane == (0, 0)

    on_stage(Lanes(1, 1, 10, 10.0), play)


def test_a_stop_does_not_wait_for_one_whose_client_leaves() -> None:
    """Also when it is the last: the holder's client has left, and what that one still cleans up is not waited for."""

    async def play(stage: Stage) -> None:
        holder, waiting = await stage.clients(2)
        await stage.hold(holder)
        await stage.wait_in_lane(waiting, "wait")
        stage.clean_up = asyncio.get_running_loop().create_future()
        stopping = asyncio.create_task(stage.server.stop(WAIT_S, lambda: None))
        await until(lambda: stage.server.stopping)
        holder.writer.close()
        await until(lambda: len(stage.server.connections) == 1)
        waiting.writer.close()
        await asyncio.wait_for(stopping, WAIT_S / 2)
        stage.clean_up.set_result(None)
        await until(lambda: stage.in_lane == (0, 0))
        assert stage.ran == ["hold"]

    on_stage(Lanes(1, 1, 10, 10.0), play)
