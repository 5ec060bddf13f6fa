"""Makes the actor of a change, for the audit."""

from tuplegate.admission.identity import Identity
from tuplegate.catalog.metadata import Actor
from tuplegate.http.exchange import Exchange
from tuplegate.http.sharing.memory import STRANGER


def actor_of(identity: Identity, exchange: Exchange) -> Actor:
    principal = identity.principal
    address = exchange.outgoing.address.removeprefix(STRANGER)
    return Actor(principal.organization, principal.key, principal.session, exchange.request_id, address or None)
