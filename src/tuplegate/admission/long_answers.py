"""Answers that take long: streams and dumps. Each can be ended from outside, and ends when its token does.

`Pulse` checks the tokens. An answer is ended by cancelling its handler; inside of `running` that becomes the error for
the client.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tuplegate.admission.identity import read_bearer
from tuplegate.http.exchange import Exchange
from tuplegate.protocol.errors import ServiceError

_REVOKED: Final = "the token was revoked or has expired meanwhile; the answer ends here, and the statement with it"


class LongAnswers:
    """The long answers that this worker writes now."""

    def __init__(self) -> None:
        self._tokens: dict[Exchange, bytes] = {}
        self._ends: dict[Exchange, ServiceError] = {}
        """The errors with which answers were ended that are still being written."""

    @contextmanager
    def running(self, exchange: Exchange) -> Iterator[None]:
        """Write the answer within this block, which raises the ServiceError with which the answer was ended."""
        self._tokens[exchange] = read_bearer(exchange.headers.get(b"authorization"))
        try:
            yield
        except asyncio.CancelledError:
            if exchange not in self._ends or exchange.client_gone:
                raise
            raise self._ends[exchange] from None
        finally:
            del self._tokens[exchange]
            self._ends.pop(exchange, None)

    def end(self, exchange: Exchange, error: ServiceError) -> None:
        """End the answer with this error, if it is still being written. A slow reader cannot delay that."""
        if exchange in self._tokens and exchange not in self._ends and exchange.run is not None:
            self._ends[exchange] = error
            exchange.run.cancel()

    @property
    def tokens(self) -> set[bytes]:
        return set(self._tokens.values())

    def revoke(self, token: bytes) -> None:
        """End the answers to requests whose token is no longer valid."""
        for exchange in [exchange for exchange, known in self._tokens.items() if known == token]:
            self.end(exchange, ServiceError("unauthenticated", _REVOKED))
