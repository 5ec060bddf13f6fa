"""A connection of which the event loop will say nothing more is looked at all the same, and whoever waits goes on."""

import asyncio
import select

from tests.servers import Open, ask
from tests.waiting import eventually
from tuplegate.engine.libpq.connections.commands import Command
from tuplegate.engine.libpq.connections.connection import Connection, look_at_broken

POLL_MS = 30_000


def test_answer_and_end_at_once(started: Open) -> None:
    """The answer and the end of the connection are both there when a task comes to look: the answer is given."""
    server = started()

    async def scenario() -> list[bytes | None]:
        connection = await Connection.open(f"{server.conninfo} dbname=postgres", 10)
        waiting = asyncio.get_running_loop().create_task(connection.run(Command(b"SELECT 'the answer'")))
        await asyncio.sleep(0)
        # From here on nothing is awaited, so the loop learns nothing.
        poll = select.poll()
        poll.register(connection.pgconn.socket, select.POLLIN)
        assert poll.poll(POLL_MS)
        assert ask(server, f"select pg_terminate_backend({connection.backend})") is True
        poll.modify(connection.pgconn.socket, 0)
        eventually(lambda: bool(poll.poll(0)))
        look_at_broken()
        done, _ = await asyncio.wait([waiting], timeout=POLL_MS / 1000)
        assert done, "whoever waits was forgotten"
        connection.close()
        return [result.get_value(0, 0) for result in waiting.result()]

    # Not asyncio.run: that would wait for ever for a task that cannot go on.
    loop = asyncio.new_event_loop()
    try:
        assert loop.run_until_complete(scenario()) == [b"the answer"]
    finally:
        loop.close()
