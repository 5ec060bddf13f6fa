"""Writes answers whose rows take much memory: they count against the memory for rows until their client has taken them.

So the rows of a database's next large answer are not fetched before, and slow readers cannot fill the worker.
"""

from typing import Final

from tuplegate.engine import port
from tuplegate.http.exchange import Exchange

LARGE_ANSWER: Final = 2**20
"""Bytes from which an answer is large."""
_COPIES: Final = 2
"""While a body is put together from parts, the parts are in memory as well."""


async def respond_whole(
    exchange: Exchange, engine: port.Answers, database: str, body: bytes, status: int = 200
) -> None:
    """Answer with a body that was put together; if it is large, wait until the client has taken it. Only an answer of
    200 or 201 can be large."""
    if len(body) <= LARGE_ANSWER:
        exchange.respond(status, body)
        return
    with engine.hold_answer(database, _COPIES * len(body)):
        await exchange.respond_large([body], status)
