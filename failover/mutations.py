"""Ways to weaken the product, each of which a run must find: they show that its checks can fail.

Each is applied within the process of a service node, before that starts. It names the parts of the product that it
replaces, so one that is gone, or is called otherwise by now, is an error and not a mutation without effect.
"""

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from tests.list_append.workload import Shares

from tuplegate.data_plane import idempotency
from tuplegate.engine import port
from tuplegate.engine.libpq.connections import connection
from tuplegate.engine.libpq.connections.commands import Command, ConnectionLost
from tuplegate.engine.libpq.values.quoting import quote_text
from tuplegate.engine.postgres.pools import pools
from tuplegate.engine.postgres.pools.pool import Login
from tuplegate.engine.postgres.query.execute import Execution
from tuplegate.engine.postgres.replication.verified import Expected
from tuplegate.engine.postgres.rules import blocks
from tuplegate.engine.postgres.service.admin import TenantSession
from tuplegate.engine.postgres.service.records import Records
from tuplegate.engine.postgres.standbys import snapshots
from tuplegate.engine.postgres.transaction.certainty import Certainty
from tuplegate.engine.postgres.transaction.deciding import Decision
from tuplegate.engine.postgres.transaction.histories import Histories
from tuplegate.engine.postgres.transaction.ledger import Ledger
from tuplegate.engine.postgres.transaction.recovery import Recovery
from tuplegate.engine.run.run import Run

MIXED = Shares(queries=0.2, interactive=0.12, streams=0.12, snapshots=0.15, wire=0.15, chosen_ids=0.6, keys=0.5)
"""What clients send: something of everything."""
_WHOLE = Shares(chosen_ids=0.4, keys=0.3)
_SINGLE = Shares(queries=1.0)
_READS = Shares(queries=0.5, snapshots=0.4, chosen_ids=0.6)
_WIRE = Shares(wire=0.9)
_LOST = ("reset", "half-open", "reset")


def replace(owner: Any, name: str, new: Any) -> Any:
    """Put something in the place of a part of the product; return that part. It must be there, and what it is called
    with must fit what takes its place."""
    old = getattr(owner, name)
    if inspect.isroutine(old):
        kinds = inspect.signature(old).parameters.values()
        by_name = {each.name: None for each in kinds if each.kind is each.KEYWORD_ONLY}
        inspect.signature(new).bind(*(None for each in kinds if each.kind < each.VAR_POSITIONAL), **by_name)
    setattr(owner, name, new)
    return old


async def _yes(*_: object) -> bool:
    return True


def run_keys_again() -> None:
    async def replay(*_: object, **__: object) -> bool:
        return False

    def write_id_only(self: Records, promise: port.Promise, done: port.TransactionResult) -> list[Command]:
        if promise.keep is not None:
            promise.keep.body(done)  # it makes the answer
        return write(self, port.Promise(promise.id), done)  # type: ignore[no-any-return]

    replace(idempotency, "_replay", replay)
    write: Any = replace(Records, "write", write_id_only)


def fail_prepared() -> None:
    async def commit(self: Decision, gid: str, _number: int) -> None:
        try:
            await self._block.member.run(Command(f"COMMIT PREPARED '{gid}'".encode(), begins=False))
        except ConnectionLost as lost:
            raise port.TimedOut(self._run.bounds) from lost

    replace(Decision, "commit_prepared", commit)


def roll_prepared_back() -> None:
    async def roll_back(self: Recovery, server: str, database: str, gid: str) -> bool:
        async with TenantSession(self._connector, self._secret, database) as session:
            await session.fetch_of(server, f"ROLLBACK PREPARED {quote_text(gid)}")
        return True

    replace(Recovery, "_commit", roll_back)


def abort_without_record() -> None:
    async def abort_id(self: Ledger, database: str, id: str, *, even_if_full: bool = False) -> port.Outcome:
        verdict = await self.verdict(database, id)
        return verdict or port.Outcome.ABORTED

    replace(Ledger, "abort_id", abort_id)


def tell_lost_as_aborted() -> None:
    replace(Run, "explain_loss", lambda self, lost: self.explain_harmless_loss())


def send_lost_again() -> None:
    tell_lost_as_aborted()
    replace(Execution, "note_loss", lambda self, lost, attempts_max: 0.0)


def _commit_as(level: str) -> None:
    replace(pools, "Expected", partial(Expected, commit=level))
    pools.SESSION_SETTINGS["synchronous_commit"] = level
    for check in ("is_certain", "is_confirmed"):
        replace(Certainty, check, _yes)


def commit_lazily() -> None:
    _commit_as("off")


def commit_locally() -> None:
    _commit_as("local")


def ignore_cut_waits() -> None:
    replace(connection, "_WAIT_FOR_STANDBY", b"nothing is called so")
    for check in ("is_certain", "is_confirmed"):
        replace(Certainty, check, _yes)


def ignore_positions() -> None:
    replace(snapshots, "read_position", lambda _text: None)


def repeat_reads_only() -> None:
    pools.SESSION_SETTINGS["default_transaction_isolation"] = "repeatable read"
    for step in blocks.OPENING.values():
        assert step.command is not None
        step.command = Command(step.command.sql.replace(b"SERIALIZABLE", b"REPEATABLE READ"))


def weaken_wire() -> None:
    def make_login(
        self: pools.Pools, target: port.Target, settings: dict[str, str] | None = None, application: str = "tuplegate"
    ) -> Login:
        if settings is None:  # it is a pool's
            return cast("Login", make(self, target))
        weaker = {**settings, "default_transaction_isolation": "read committed"}
        login: Login = make(self, target, weaker, application)
        return dataclasses.replace(login, expected=login.expected._replace(isolation="read committed"))

    make: Any = replace(pools.Pools, "make_login", make_login)


def forget_timelines() -> None:
    replace(Histories, "fits", lambda _self, _history, _server: True)


@dataclass(frozen=True)
class Mutation:
    """`faults` are those that bring it to light."""

    name: str
    sentence: str
    apply: Callable[[], None]
    faults: tuple[str, ...]
    shares: Shares = MIXED
    waits: bool = True
    """It shows where commits wait for a standby."""


MUTATIONS = {
    mutation.name: mutation
    for mutation in (
        Mutation("key-again", "a repeated Idempotency-Key is run again", run_keys_again, ("worker", "node")),
        Mutation(
            "prepared-fails", "a lost COMMIT PREPARED is told as a failure", fail_prepared, ("connection",), _WHOLE
        ),
        Mutation("rolls-back", "recovery rolls back what is prepared", roll_prepared_back, ("connection",), _WHOLE),
        Mutation("abort-unwritten", "abort leaves no record behind", abort_without_record, ("worker",)),
        Mutation("lost-aborted", "a lost COMMIT is told as aborted", tell_lost_as_aborted, _LOST, _SINGLE),
        Mutation("lost-again", "a lost write is sent again", send_lost_again, _LOST, _SINGLE),
        Mutation("not-durable", "commits do not wait for the disk", commit_lazily, ("kill",)),
        Mutation("not-replicated", "commits do not wait for a standby", commit_locally, ("cut",)),
        Mutation("cut-waits", "commits whose wait was cut short are acknowledged", ignore_cut_waits, ("cut-waits",)),
        Mutation(
            "cut-aborted",
            "commits whose wait was cut short are told as failed",
            tell_lost_as_aborted,
            ("cut-waits",),
            _SINGLE,
        ),
        Mutation("positions", "replicas ignore the position", ignore_positions, ("lag",), _READS),
        Mutation("isolation", "SERIALIZABLE is REPEATABLE READ", repeat_reads_only, ()),
        Mutation("wire-isolation", "sessions of /v2 are READ COMMITTED", weaken_wire, (), _WIRE),
        Mutation("timelines", "outcomes forget the timeline", forget_timelines, ("cut",), _WHOLE, waits=False),
    )
}
