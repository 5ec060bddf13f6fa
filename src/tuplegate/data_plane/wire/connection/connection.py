"""One client: its bytes to the engine and back.

`to_engine` judges what the client sends, `to_client` what the engine answers. This passes the bytes on, until one side
ends.
"""

import asyncio
import struct

from tuplegate.admission.identity import Identity
from tuplegate.data_plane.wire.admission import WireAdmission, WireCounts
from tuplegate.data_plane.wire.connection.ending import Ending
from tuplegate.data_plane.wire.connection.extended import ExtendedQueries
from tuplegate.data_plane.wire.connection.outgoing import Outgoing
from tuplegate.data_plane.wire.connection.refusals import Refusals
from tuplegate.data_plane.wire.connection.simple import SimpleQueries
from tuplegate.data_plane.wire.connection.text_rules import TextRules
from tuplegate.data_plane.wire.connection.to_client import ToClient
from tuplegate.data_plane.wire.connection.to_engine import ToEngine
from tuplegate.data_plane.wire.connection.unit import Unit
from tuplegate.data_plane.wire.flow import ClientMessages
from tuplegate.data_plane.wire.messages import READY, TERMINATE, WireError, write_message
from tuplegate.engine import port
from tuplegate.http.exchange import Counts
from tuplegate.http.websocket import WebSocketConnection
from tuplegate.protocol.time_limits import WorkKind


class WireConnection:
    """A client whose key was accepted, joined to a connection of the engine. `token` is what it came with, `bounds` are
    those of a statement."""

    def __init__(
        self,
        websocket: WebSocketConnection,
        opened: port.OpenedWire,
        bounds: port.Bounds,
        identity: Identity,
        target: port.Target,
        usage: Counts,
        token: bytes,
        counts: WireCounts,
        bytes_max: int,
    ) -> None:
        link = self._link = opened.session
        self._websocket = websocket
        self.target = target
        self.token = token
        self._usage = usage
        self._counts = counts
        self._client = ClientMessages(bytes_max)
        out = self._out = Outgoing(link)
        self._ending = Ending(out.flow)
        admission = self._admission = WireAdmission(link, identity, usage, counts)
        unit, refusals = Unit(out, link, target.may_write), Refusals()
        kinds = {**identity.allowance.bounds, WorkKind.STATEMENT: bounds}
        rules = TextRules(link, out.flow, unit, kinds, target.may_write)
        simple = SimpleQueries(out, unit, rules, admission)
        extended = ExtendedQueries(out, unit, rules, admission, opened.blocks_pipelines)
        self._to_engine = ToEngine(out, unit, simple, extended, admission, refusals, self._ending)
        self._to_client = ToClient(link, out, unit, simple, refusals, self._ending, usage)
        self.heard_at = asyncio.get_running_loop().time()

    @property
    def identity(self) -> Identity:
        return self._admission.identity

    @identity.setter
    def identity(self, identity: Identity) -> None:
        self._admission.identity = identity

    @property
    def is_idle(self) -> bool:
        """Return whether the engine waits for the client."""
        return self._out.flow.waits_for_client

    async def run(self, first: bytes) -> None:
        """Pass bytes on until one side ends; `first` came with the start-up. Raises WireError with the last word."""
        loop = asyncio.get_running_loop()
        up, down = loop.create_task(self._pass_up(first)), loop.create_task(self._pass_down())
        ended = loop.create_task(self._ending.wait())
        tasks = [up, down, ended]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and (failure := task.exception()) is not None:
                    raise failure
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def end(self, error: WireError, *, at_once: bool) -> None:
        """End the connection with these words: at once, or when nothing runs any more."""
        self._ending.end(error, at_once=at_once)

    async def cancel(self) -> None:
        await self._link.cancel()

    # -- to the engine --------------------------------------------------------------------------------------------

    async def _pass_up(self, data: bytes) -> None:
        loop, out = asyncio.get_running_loop(), self._out
        while True:
            if data:
                self.heard_at = loop.time()
                self._counts.bytes_in += len(data)
            for message in self._client.feed(data):
                if message[0] == TERMINATE:
                    await self._leave(message)
                judged = await self._to_engine.judge(message)
                out.add(judged)  # only now: meanwhile what was judged before may have been written
            self._websocket.hold(self._client.held)
            await out.write()
            if self._client.has_more:
                data = b""
                await asyncio.sleep(0)  # others have their turn
            else:
                data = await self._websocket.receive()
                if not data:
                    return

    async def _leave(self, message: bytes) -> None:
        """Pass the client's last message on, and wait until the engine has answered what came before it."""
        self._ending.is_expected = True
        self._out.add(message)
        await self._out.write()
        await self._ending.wait()

    # -- to the client --------------------------------------------------------------------------------------------

    async def _pass_down(self) -> None:
        while data := await self._link.read():
            passed = self._to_client.feed(data)
            self._out.tell_state()
            if passed:
                self._counts.bytes_out += len(passed)
                self._usage.bytes += len(passed)
                await self._websocket.send(passed)
            self._ending.check()
        if not self._ending.is_expected:
            raise self._explain_loss()

    def _explain_loss(self) -> WireError:
        ended = self._link.explain("57P01")
        if ended is not None:
            return WireError("57P01", ended.message, ended.hint)
        return WireError("08006", "the connection to the engine was lost; what was not committed is rolled back")


def write_last_word(error: WireError) -> bytes:
    return error.write("FATAL")


def write_greeting(greeting: bytes, key_data: bytes) -> bytes:
    """Return the messages that greet a client whose key is accepted."""
    return write_message(ord("R"), struct.pack(">i", 0)) + greeting + key_data + write_message(READY, b"I")
