"""Who changes something, for the audit."""

from querygate.admission.identity import Identity
from querygate.catalog.session import Actor
from querygate.http.exchange import Exchange


def actor_of(identity: Identity, exchange: Exchange) -> Actor:
    principal = identity.principal
    return Actor(principal.organization, principal.key, principal.session, exchange.request_id)
