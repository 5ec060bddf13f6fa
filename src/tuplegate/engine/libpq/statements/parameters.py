"""Writes the parameters of a statement as text. Asks the engine for the placeholders' types if they decide the text."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
from psycopg.pq.abc import PGresult

from tuplegate.direct_future import yield_to_loop
from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import DESCRIBE, Command
from tuplegate.engine.libpq.connections.server_errors import check
from tuplegate.engine.libpq.pools.pool import Member
from tuplegate.engine.libpq.statements.rows import learn_types
from tuplegate.engine.libpq.values.parameter_texts import (
    PARAMS_AT_ONCE,
    add_texts,
    add_untyped_texts,
    is_json_refusal,
    needs_types,
    to_texts,
    to_untyped_texts,
)
from tuplegate.engine.libpq.values.row_encoder import EncoderCache
from tuplegate.engine.libpq.values.types import TypeRegistry
from tuplegate.protocol.messages import PARAMS_MAX


async def describe_statement(member: Member, sql: bytes, types: Sequence[int] = ()) -> PGresult:
    """Ask the engine for the placeholders and columns of a statement, without running it. `types` are the placeholder
    types to declare."""
    results = await member.run(Command(sql, name=b"", types=types), DESCRIBE)
    check(results)
    return results[-1]


def read_placeholders(described: PGresult) -> list[int]:
    """Return the types of the placeholders."""
    return [described.param_type(place) for place in range(described.nparams)]


class Ending(Protocol):
    """A run that can be ended before its time."""

    @property
    def ended(self) -> object: ...


async def write_params(
    encoders: EncoderCache,
    member: Member,
    statement: port.Statement,
    run: Ending,
    *,
    describe: bool,
    types: Sequence[int] = (),
) -> list[bytes | None] | None:
    """Return the parameters as text. Ask for the placeholders' types if they matter, or if `describe` is set.

    The number of parameters is checked here if the types are asked for, otherwise by the engine. If the run is ended
    meanwhile, the list is incomplete: the caller must check `ended`.
    """
    params = statement.params
    if not params and not describe:
        return None
    params = params or []
    if len(params) > PARAMS_MAX:
        raise port.ParameterMismatch(
            f"{len(params)} parameters were sent, at most {PARAMS_MAX} can be", sqlstate="54000"
        )
    known = encoders.types
    texts: list[bytes | None] = []
    if statement.is_untyped:
        await _write_in_pieces(add_untyped_texts(texts, params, known), run)
        return texts
    if not describe and len(params) <= PARAMS_AT_ONCE and not needs_types(params):
        return to_texts(params, None, known)
    described = await describe_statement(member, statement.sql.encode(), types)
    oids = read_placeholders(described)
    if len(oids) != len(params):
        raise _explain_number(params, oids)
    await learn_types(encoders, member, oids)
    await _write_in_pieces(add_texts(texts, params, oids, known), run)
    return texts


async def write_all_params(
    encoders: EncoderCache, member: Member, sql: str, lists: Sequence[Sequence[msgspec.Raw]], run: Ending
) -> list[list[bytes | None]]:
    """Return each list's parameters as text, for one statement that runs once with each list. Ask for the placeholders'
    types once. If the run is ended meanwhile, the result is incomplete."""
    described = await describe_statement(member, sql.encode())
    oids = read_placeholders(described)
    await learn_types(encoders, member, oids)
    written: list[list[bytes | None]] = []
    for index, params in enumerate(lists):
        if len(oids) != len(params):
            wrong = _explain_number(params, oids)
            wrong.statement = index
            raise wrong
        texts: list[bytes | None] = []
        await _write_in_pieces(add_texts(texts, params, oids, encoders.types), run)
        if index % PARAMS_AT_ONCE == PARAMS_AT_ONCE - 1:
            await yield_to_loop()
        written.append(texts)
    return written


def _explain_number(params: Sequence[msgspec.Raw], oids: Sequence[int]) -> port.ParameterMismatch:
    message = f"{len(params)} parameters were sent, the statement has {len(oids)} placeholders"
    return port.ParameterMismatch(message, sqlstate="08P01")


async def _write_in_pieces(pieces: Iterator[None], run: Ending) -> None:
    for _ in pieces:
        await yield_to_loop()
        if run.ended is not None:
            break


def write_texts(statement: port.Statement, types: TypeRegistry) -> list[bytes | None] | None:
    """Return the parameters as text; None if their types must be asked for first."""
    params = statement.params
    if not params:
        return []
    if statement.is_untyped:
        return to_untyped_texts(params, types)
    if len(params) > PARAMS_AT_ONCE or needs_types(params):
        return None
    return to_texts(params, None, types)


def wants_types(failure: port.StatementFailed, statement: port.Statement) -> bool:
    """Return whether a string should have been sent as JSON: then a second try with known types is worthwhile."""
    return bool(statement.params) and not statement.is_untyped and is_json_refusal(failure.sqlstate, str(failure))


def needs_describing(statement: port.Statement) -> bool:
    """Return whether the engine must be asked for the placeholders' types before the statement can be sent."""
    params = statement.params
    return params is not None and not statement.is_untyped and (len(params) > PARAMS_AT_ONCE or needs_types(params))
