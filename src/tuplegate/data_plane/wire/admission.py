"""Counts a client's messages: against its quota, and for the engine, which remembers a limited number of transactions.

Every ReadyForQuery that the engine will send is paid for. In the extended protocol the first message after a Sync pays
for one statement, whatever its type: to parse and to plan begins a transaction, too. So does the first message after
each Execute, which may have ended the transaction; only a Close begins none.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from tuplegate.admission.identity import Identity
from tuplegate.data_plane.wire.messages import CLOSE, EXECUTE, WireError
from tuplegate.data_plane.wire.wire_errors import to_wire_error
from tuplegate.engine import port
from tuplegate.http.exchange import Counts
from tuplegate.protocol.errors import ServiceError

_QUOTA_HINT: Final = "Wait until the minute is over. The connection stays open."


@dataclass(slots=True)
class WireCounts:
    """Counts of all connections of a worker."""

    opened: int = 0
    statements: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class WireAdmission:
    """The payments of one client. Its methods raise WireError if something may not run."""

    def __init__(self, link: port.WireSession, identity: Identity, usage: Counts, counts: WireCounts) -> None:
        self._link = link
        self.identity = identity
        self._usage = usage
        self._counts = counts
        self._is_paid = False
        """Everything up to the next Execute is paid for."""
        self._has_executed = False
        """Since the last Sync."""

    async def admit(self, begins: int) -> None:
        """Let a text pay for the transactions that it can begin."""
        self.count(begins)
        quota = self.identity.quota
        if quota is not None:
            now = asyncio.get_running_loop().time()
            try:
                for _ in range(begins):
                    if not quota.take(now) and not await quota.take_more(now):
                        raise WireError("53400", str(quota.refusal(now)), hint=_QUOTA_HINT)
            except ServiceError as failure:
                raise to_wire_error(failure) from failure
        await self.begin(begins)

    def count(self, requests: int) -> None:
        """Count a text without payment."""
        self._counts.statements += 1
        self._usage.requests += requests

    async def begin(self, begins: int) -> None:
        """Have the engine count transactions that the client has paid for."""
        try:
            await self._link.admit(begins)
        except port.EngineFailure as failure:
            raise to_wire_error(failure) from failure

    def must_pay(self, kind: int) -> bool:
        """Note a message of the extended protocol; return whether it must be admitted like a statement."""
        if kind == CLOSE and self._has_executed:
            return False
        is_paid, self._is_paid = self._is_paid, kind != EXECUTE
        self._has_executed = self._has_executed or kind == EXECUTE
        return not is_paid

    async def admit_part(self, kind: int) -> None:
        """Count a message of the extended protocol."""
        if self.must_pay(kind):
            await self.admit(1)

    async def admit_sync(self) -> None:
        """Count a Sync without messages before it; and check that its commit is allowed."""
        is_paid, self._is_paid, self._has_executed = self._is_paid or self._has_executed, False, False
        if is_paid:
            await self.begin(0)
        else:
            await self.admit(1)

    def waive(self) -> None:
        """Accept everything up to and including the next Execute without payment."""
        self.count(1)
        self._is_paid = True
