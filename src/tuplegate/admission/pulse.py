"""Tells a worker of changes, by a look at the catalog several times a second.

A change (a revoked key, a renamed database) empties the worker's cache of identities. A paused database is released,
and one that moves to another engine is followed.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tuplegate.admission.identity import IdentityCache
from tuplegate.background import tick
from tuplegate.catalog.catalog import Catalog
from tuplegate.engine.port import EngineFailure, Orders
from tuplegate.protocol.errors import ServiceError

_EVERY_S = 0.25
_TOKENS_EVERY_S = 1.0
"""How often the tokens of long work are checked if nothing has changed: a token also expires."""


class TokenHolders(Protocol):
    """Work that continues after the request that began it, for as long as its token is valid."""

    @property
    def tokens(self) -> set[bytes]: ...

    def revoke(self, token: bytes) -> None: ...


class Pulse:
    def __init__(
        self,
        catalog: Catalog,
        identities: IdentityCache,
        orders: Orders,
        follow: Callable[[Mapping[str, tuple[str, str] | None]], None] | None,
        holders: Sequence[TokenHolders],
    ) -> None:
        """`follow` is told of databases that move, if there are several engines."""
        self._holders = holders
        self._follow = follow
        self._catalog = catalog
        self._identities = identities
        self._orders = orders
        self._revision = 0
        self._tokens_at = 0.0

    async def watch(self) -> None:
        """Run for ever."""
        while True:
            await tick(_EVERY_S)
            try:
                await self.look()
            except EngineFailure:
                continue  # identities expire by themselves; the next look comes in a moment

    async def look(self) -> None:
        beat = await self._catalog.read_pulse()
        if beat.revision != self._revision:
            self._revision = beat.revision
            self._identities.forget()
            self._tokens_at = 0.0
        now = asyncio.get_running_loop().time()
        if now >= self._tokens_at:
            self._tokens_at = now + _TOKENS_EVERY_S
            await self._revoke(now)
        if self._follow is not None:
            self._follow(beat.moves)
        self._orders.pause(beat.paused)

    async def _revoke(self, now: float) -> None:
        """End the work of tokens that are no longer valid. A token that cannot be looked up just now is checked again
        later."""
        for holder in self._holders:
            for token in holder.tokens:
                if self._identities.has_stayed_good(token, now):
                    continue
                try:
                    await self._identities.identify_token(token, "", now)
                except ServiceError as refusal:
                    if refusal.status == 401:
                        holder.revoke(token)
