"""Finds the open transaction of a request: in this worker, in another, or among those that have ended."""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from tuplegate.access.transaction_ids import IdKind, TransactionIds
from tuplegate.admission.identity import Identity, IdentityCache
from tuplegate.data_plane.consistency import tell_newest
from tuplegate.data_plane.engine_errors import to_service_error
from tuplegate.data_plane.interactive.ended import Answer, Ended, explain_end
from tuplegate.data_plane.interactive.handover import Handover, Holder, HolderGone, HolderSilent
from tuplegate.data_plane.interactive.held import Held, Holdings, find_repeated
from tuplegate.data_plane.transaction import write_committed
from tuplegate.engine import port
from tuplegate.http.exchange import Exchange
from tuplegate.protocol.errors import ServiceError

_encode: Final = msgspec.json.Encoder().encode
Run = Callable[[Exchange, Identity], Awaitable[None]]
_KNOWN_MAX: Final = 1_000
"""Ids that are remembered with their holders. To read one again costs as much as half of a hand-over."""


class Finder:
    """Finds transactions for requests. `ids` tell the holder of a transaction; `handover` reaches that worker."""

    def __init__(
        self,
        answers: port.Answers,
        records: port.Records,
        identities: IdentityCache,
        holdings: Holdings,
        handover: Handover,
        ids: TransactionIds,
    ) -> None:
        self._answers = answers
        self._records = records
        self._identities = identities
        self._holdings = holdings
        self._handover = handover
        self._ids = ids
        self._holders: dict[tuple[str, str], Holder] = {}
        """The holders, by database and id, of ids that were found to be genuine."""

    async def find_held(
        self, exchange: Exchange, identity: Identity, sequence: int | None, *, commits: bool = False, ends: bool = False
    ) -> Held | None:
        """Return the transaction of the request; None if it is over and the request is answered.

        No other worker holds it. A commit or a rollback of one that is over is answered with its outcome.
        """
        target = await self._identities.find_target(identity, exchange)
        id = exchange.path_values["id"]
        held = self._find_here(id, identity, target)
        if held is None and self._find_holder(id, target) is None:
            raise _not_found()
        if held is not None and held.transaction.over is None:
            if held.begun_by.may_write and not target.may_write and not ends:
                raise ServiceError("forbidden", "the transaction may write, and this token only reads")
            return held
        if held is not None:  # it is being rolled back
            await held.wait_until_over()
        ended = self._find_ended(id, identity)
        if ended is not None:
            repeated = None
            has_rows = ended.answer is not None or ended.outcome is port.Outcome.COMMITTED
            if sequence is not None and sequence <= ended.sequence and has_rows:
                repeated = find_repeated(sequence, ended.sequence, ended.answer)
            elif commits and ended.outcome is port.Outcome.COMMITTED:
                repeated = ended.answer
            if repeated is not None:
                replay(exchange, repeated)
                return None
        outcome = ended.outcome if ended is not None else await self._settle(target, id)
        self._answer_ended(exchange, id, outcome, commits=commits, ends=ends)
        return None

    def _answer_ended(
        self, exchange: Exchange, id: str, outcome: port.EndReason | port.Outcome, *, commits: bool, ends: bool
    ) -> None:
        if commits and outcome is port.Outcome.COMMITTED:
            # Its answer is not here any more, but that it was committed is recorded.
            done = port.TransactionResult([], port.Commit.TWO_PHASE, None, 1, 0, [])
            exchange.respond(200, write_committed(exchange, id.encode(), done))
        elif ends and outcome not in (port.Outcome.COMMITTED, port.Outcome.IN_PROGRESS):
            exchange.respond(200, _encode({"success": True, "transaction_id": id, "state": "aborted"}))
        else:
            raise explain_end(id, outcome)

    def run_where_held(self, exchange: Exchange, identity: Identity, run: Run) -> Awaitable[None]:
        """Run a request where its transaction is held: here, or in another worker, which then reads the body."""
        if exchange.path_values["id"] in self._holdings.open:
            return run(exchange, identity)
        return self._ask_holder(exchange, identity, run)

    async def _ask_holder(self, exchange: Exchange, identity: Identity, run: Run) -> None:
        target = await self._identities.find_target(identity, exchange)
        holder = self._find_holder(exchange.path_values["id"], target)
        if holder is None or not await self._handed_over(exchange, holder):
            await run(exchange, identity)

    async def tell_state(self, exchange: Exchange, identity: Identity, *, abort: bool) -> bool:
        """Answer with the state of an open transaction; with `abort`, roll it back first if it still can be. Return
        False if the id is of another kind."""
        target = await self._identities.find_target(identity, exchange)
        id = exchange.path_values["id"]
        holder = self._find_holder(id, target)
        if holder is None:
            return False
        if await self._handed_over(exchange, holder):
            return True
        held = self._find_here(id, identity, target)
        if held is not None:
            if abort:
                held.abort(port.EndReason.ROLLBACK)
                await held.wait_until_over()
            else:
                exchange.respond(200, _encode({"success": True, "transaction_id": id, **describe(held)}))
                return True
        ended = self._find_ended(id, identity)
        if ended is None:
            outcome = await self._settle(target, id)
            about = {"state": outcome.value}
            if outcome is port.Outcome.ABORTED:
                about["reason"] = port.EndReason.LOST.value
        else:
            about = describe_ended(ended.outcome)
        await tell_newest(exchange, self._answers)
        exchange.respond(200, _encode({"success": True, "transaction_id": id, **about}))
        return True

    def _find_holder(self, id: str, target: port.Target) -> Holder | None:
        """Return the worker that holds or held the transaction; None if the id is not one of an open transaction in
        this database."""
        known = self._holders.get((target.id, id))
        if known is not None:
            return known
        read = self._ids.read(id, target.id)
        if read is None or read.kind is not IdKind.OPEN:
            return None
        if len(self._holders) >= _KNOWN_MAX:
            self._holders.clear()
        holder = self._holders[target.id, id] = Holder.read(read.number)
        return holder

    def _find_here(self, id: str, identity: Identity, target: port.Target) -> Held | None:
        """Return the transaction if this worker holds it. Raises not_found if another key has begun it, or it belongs
        to another database. An id that is held was signed here, and need not be checked again."""
        held = self._holdings.open.get(id)
        if held is None:
            return None
        begun_by = held.begun_by
        if begun_by.key != identity.principal.key or begun_by.database != target.id:
            raise _not_found()
        return held

    def _find_ended(self, id: str, identity: Identity) -> Ended | None:
        ended = self._holdings.ended.find(identity.principal.organization, id)
        if ended is not None and ended.key != identity.principal.key:
            raise _not_found()
        return None if ended is None or ended.outcome is port.Outcome.IN_PROGRESS else ended

    async def _settle(self, target: port.Target, id: str) -> port.Outcome:
        """Return the outcome of a transaction that nobody holds: unless it is committed, it never will be."""
        try:
            return await self._records.abort_id(target.database, id, even_if_full=True)
        except port.EngineFailure as failure:
            raise to_service_error(failure) from failure

    async def _handed_over(self, exchange: Exchange, holder: Holder) -> bool:
        """Return whether another worker holds the transaction, and has answered. A worker that is gone holds
        nothing."""
        handover = self._handover
        if holder.number == handover.own.number:
            return False
        if holder.node != handover.own.node and handover.vouches(exchange):
            raise ServiceError(
                "engine_unavailable",
                "the transaction is held by another machine than the one that was asked for it",
                hint="Does the setting node_url of each machine lead to that machine?",
            )
        try:
            await handover.pass_on(exchange, holder)
        except HolderGone:
            return False
        except HolderSilent as silent:
            state = await handover.ask_state(exchange, holder)
            if state in ("aborted", "committed"):
                return False
            raise ServiceError(
                "outcome_unknown" if state else "engine_unavailable",
                "the worker that holds the transaction has not answered",
                hint="Send the request again with its `sequence`." if state else None,
            ) from silent
        exchange.usage = None  # the holder has counted it
        return True


def describe(held: Held) -> dict[str, str]:
    """Return the fields that tell the state of a transaction."""
    over = held.transaction.over
    if over is not None:
        return describe_ended(over)
    return {
        "state": "failed" if held.transaction.state is port.OpenState.FAILED else "open",
        "expires_at": held.expires_at,
    }


def describe_ended(outcome: port.EndReason | port.Outcome) -> dict[str, str]:
    if isinstance(outcome, port.Outcome):
        return {"state": outcome.value}
    return {"state": port.Outcome.ABORTED.value, "reason": outcome.value}


def replay(exchange: Exchange, answer: Answer) -> None:
    exchange.extra_headers += b"tuplegate-replayed: true\r\n"
    exchange.respond(answer.status, answer.body)


def _not_found() -> ServiceError:
    return ServiceError("not_found", "this token has begun no transaction with that id")
