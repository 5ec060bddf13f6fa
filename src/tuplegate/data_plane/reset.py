"""`POST /admin/reset`: deletes everything in the caller's database; the database, its keys and its settings stay."""

from time import perf_counter_ns

import msgspec

from tuplegate.admission.actor import actor_of
from tuplegate.admission.identity import Identity, IdentityCache
from tuplegate.engine.port import EngineBusy, EngineFailure, NotInTime
from tuplegate.http.exchange import Exchange
from tuplegate.protocol.errors import ServiceError
from tuplegate.tenancy.lifecycle import Lifecycle

_encode = msgspec.json.Encoder().encode


class ResetRoute:
    def __init__(self, identities: IdentityCache, lifecycle: Lifecycle) -> None:
        self._identities = identities
        self._lifecycle = lifecycle

    async def run(self, exchange: Exchange, identity: Identity) -> None:
        target = await self._identities.find_target(identity, exchange)
        try:
            done = await self._lifecycle.reset(actor_of(identity, exchange), target.id)
        except EngineBusy as failure:
            raise ServiceError("busy", failure.told) from failure
        except NotInTime as failure:
            raise ServiceError("busy", "what a reset needs in the engine is locked; nothing was changed") from failure
        except EngineFailure as failure:
            message = "the engine is not there just now; the reset is finished or taken back when it is"
            raise ServiceError("engine_unavailable", message) from failure
        if not done:
            raise ServiceError(
                "delete_protected",
                "the database is protected; nothing was changed",
                hint='Take its protection away first: PATCH /v1/databases/{name} with {"delete_protection": false}.',
            )
        self._identities.forget()
        total_us = (perf_counter_ns() - exchange.started_ns) // 1000
        exchange.respond(200, _encode({"success": True, "timings": {"total_us": total_us}}))
