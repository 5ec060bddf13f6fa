"""Texts are read as the engine reads them, or refused: nothing hides a statement from the service."""

import random
from contextlib import suppress

import pytest

from tests.port.tenant import Tenant
from tests.port.test_open_transactions import opened
from tuplegate.engine.port import EngineFailure, StatementFailed
from tuplegate.protocol.statements import first_keyword

TEXTS = 2000
SIGNS = ("/*", "*/", "/*/", "*/*", "/", "*", "--", "-", "\n", "\r", " ", "x", ";", "'", '"', "$$", "#")
PIECES = (*SIGNS, "ı", "\u212a", "é")

HIDDEN = (
    ("commıt", "begın"),
    ("COMMİT", "BEGİN"),
    ("-- a\rselect 1\ncommit", "-- a\rselect 1\nbegin"),
    ("/* */-- a\r\rselect 1\ncommit", "-- a\r select 1\nbegin"),
    ("commıt -- \r", "begın /* */"),
)
"""Texts that end a transaction, and begin another, where an engine reads them otherwise than the service does."""


async def runs(tenant: Tenant, sql: str) -> bool:
    """Return whether the engine runs the text; a failure of the text itself is none of the connection."""
    try:
        await tenant.query(sql)
    except StatementFailed:
        return False
    return True


async def test_the_first_word_is_where_the_engine_finds_it(tenant: Tenant) -> None:
    """A text before a query hides it from both or from neither. One that is refused is hidden from both."""
    made = random.Random(20)
    hidden = 0
    for _ in range(TEXTS):
        before = "".join(made.choices(PIECES, k=made.randrange(8)))
        sql = before + "select 7"
        found = first_keyword(sql) == ("select", len(sql) - 2)
        ran = await runs(tenant, sql)
        assert found or not ran, sql
        if sql.isascii() and "\r" not in sql:
            assert found == ran, sql
        hidden += not ran
    assert TEXTS / 4 < hidden < TEXTS - TEXTS / 40, "both happen often"


async def test_line_ends_of_every_kind_are_taken(tenant: Tenant) -> None:
    for end in ("\n", "\r\n"):
        assert await tenant.value(f"-- größe{end}select{end}  7 -- the last{end}") == 7
    assert await tenant.value("select 7 -- the last\r") == 7


@pytest.mark.parametrize("scope", ["transaction", "open"])
async def test_nothing_ends_a_transaction_but_its_end(tenant: Tenant, scope: str) -> None:
    """Neither in letters that an engine folds nor behind a comment that it ends elsewhere."""
    table = await tenant.table()
    for number, (ending, beginning) in enumerate(HIDDEN):
        statements = (f"insert into {table} values ({number})", ending, beginning, "select 1/0")
        if scope == "transaction":
            with pytest.raises(EngineFailure):
                await tenant.transaction(*statements)
        else:
            await fail_in_open_transaction(tenant, statements)
    assert await tenant.rows(f"select a from {table}") == []


async def fail_in_open_transaction(tenant: Tenant, statements: tuple[str, ...]) -> None:
    """Send each statement, whatever becomes of the one before, and roll back."""
    async with opened(tenant) as transaction:
        for sql in statements:
            with suppress(EngineFailure):
                await transaction.run(sql)


@pytest.mark.parametrize("name", ["cockroach_restart", "mine"])
async def test_a_savepoint_that_is_released_commits_nothing(tenant: Tenant, name: str) -> None:
    table = await tenant.table()
    await fail_in_open_transaction(
        tenant, (f"savepoint {name}", f"insert into {table} values (1)", f"release savepoint {name}")
    )
    assert await tenant.rows(f"select a from {table}") == []


@pytest.mark.parametrize(
    "sql",
    [
        "select set_confıg('timezone', 'Asia/Tokyo', false)",
        "select set_config('timezone', 'Asia/Tokyo', false)",
        "select \"SET_CONFIG\"('timezone', 'Asia/Tokyo', false)",
        "SET TİME ZONE 'Asia/Tokyo'",
        "-- a\rselect 1\nset time zone 'Asia/Tokyo'",
    ],
)
async def test_no_spelling_leaves_a_setting(tenant: Tenant, sql: str) -> None:
    hour = "select extract(hour from '2026-01-01 00:00:00+00'::timestamptz)::int"
    for _ in range(3):
        await runs(tenant, sql)
        assert {await tenant.value(hour) for _ in range(3)} == {0}


@pytest.mark.parametrize("word", ["İNSERT", "ınsert", "-- a\rselect 1\ninsert"])
async def test_what_writes_counts_as_writing(tenant: Tenant, word: str) -> None:
    """A text that the engine may read as INSERT is stored by no reader, and not repeated as a read would be."""
    table = await tenant.table()
    sql = f"{word} into {table} values (1)"
    for target in (tenant.reader, tenant.writer):
        with pytest.raises(StatementFailed):
            await tenant.query(sql, target=target)
    assert await tenant.rows(f"select a from {table}") == []
