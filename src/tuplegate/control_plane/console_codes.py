"""Routes of one-time codes: `tuplegate console` makes one with a key, and the page exchanges it for a session.

So no key is ever in a browser's address, history or storage. A code is as long and as random as a key, is stored as a
hash, and works once, for a minute. It cannot be guessed, so wrong codes are not counted: a client that sends many only
waits for its turns, and a good code is never refused because of them.
"""

import hmac
import secrets
from typing import Final

from tuplegate.access.tokens import RANDOM_BYTES, TokenKind, hash_token, make_token, read_token
from tuplegate.admission.actor import actor_of
from tuplegate.admission.fair_use.newcomers import Newcomers
from tuplegate.admission.identity import Identity, read_bearer
from tuplegate.catalog.catalog import Catalog
from tuplegate.catalog.metadata import Actor
from tuplegate.catalog.tokens.console_codes import CODE_LIFETIME_S, CodeRecord
from tuplegate.control_plane.common import answer, read_body, translate_refusal
from tuplegate.control_plane.sessions import SessionRoutes
from tuplegate.http.exchange import Exchange
from tuplegate.http.origins import Origin, find_seen
from tuplegate.http.sharing.memory import STRANGER
from tuplegate.protocol.control import CodeRequest, ConsoleSessionRequest
from tuplegate.protocol.errors import ServiceError

_ASKED_MAX: Final = 4
"""How many codes are looked up at once, of one address after the other."""


class ConsoleCodeRoutes:
    """`control` is the address of the control plane, as others reach it."""

    def __init__(self, catalog: Catalog, sessions: SessionRoutes, control: Origin | None) -> None:
        self._catalog = catalog
        self._sessions = sessions
        self._control = control
        self._newcomers = Newcomers(_ASKED_MAX)

    async def create(self, exchange: Exchange, identity: Identity) -> None:
        request = read_body(exchange, CodeRequest)
        if identity.principal.session is not None:
            raise ServiceError("forbidden", "a code is made with an API key, not with a session's token")
        terms = await self._sessions.settle(identity, request.scopes, request.database, request.expires_in)
        token = make_token(TokenKind.CODE, secrets.token_bytes(RANDOM_BYTES))
        secret = hash_token(read_bearer(exchange.headers.get(b"authorization")))
        with translate_refusal(gone="the key or its database was deleted at the same time"):
            expires_at = await self._catalog.console_codes.add(
                actor_of(identity, exchange), token, secret, terms.scopes, terms.database, terms.lifetime_s
            )
        seen = None if self._control is None else find_seen(self._control, exchange.headers.get(b"host"))
        url = None if seen is None else f"{seen}/console/#code={token.text}"
        answer(exchange, {"code": token.text, "expires_at": expires_at, "url": url}, 201)

    async def exchange(self, exchange: Exchange) -> None:
        """Open a session with a code. Only a code is accepted, even if the request has a token."""
        if not exchange.body:
            raise ServiceError("unauthenticated", "the request has no code", hint='Send {"code": "svc_c_…"}.')
        code = read_body(exchange, ConsoleSessionRequest).code.encode()
        known = read_token(code)
        if known is None or known[0] is not TokenKind.CODE:
            raise ServiceError("unauthenticated", "this is not a well-formed code", hint="A code begins with svc_c_.")
        async with self._newcomers.take_turn(exchange.outgoing.address):
            record = await self._catalog.console_codes.find(known[1])
        if record is None or not hmac.compare_digest(record.digest, hash_token(code).hex()):
            raise _used_up()
        token = make_token(TokenKind.SESSION, secrets.token_bytes(RANDOM_BYTES))
        lifetime_s = await self._catalog.console_codes.exchange(_actor_of(record, exchange), known[1], token)
        if lifetime_s is None:
            raise _used_up()
        await self._sessions.answer_opened(exchange, token, lifetime_s)


def _actor_of(record: CodeRecord, exchange: Exchange) -> Actor:
    address = exchange.outgoing.address.removeprefix(STRANGER)
    return Actor(record.organization, record.key, None, exchange.request_id, address or None)


def _used_up() -> ServiceError:
    return ServiceError(
        "unauthenticated",
        f"the code is unknown, was used already, or is older than {CODE_LIFETIME_S} seconds; or its key was revoked",
        hint="Make another with `tuplegate console`, or sign in with an API key.",
    )
