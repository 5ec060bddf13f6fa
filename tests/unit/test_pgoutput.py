"""Messages of the plugin pgoutput, read into statements."""

from struct import pack

import pytest

from tuplegate.engine.postgres.transfer.pgoutput import Changes, Snapshot, Unreadable

RELATION = (
    b"R" + pack("!I", 7) + b"public\0it\"em\0d" + pack("!H", 2)
    + b"\1id\0" + pack("!II", 23, 0) + b"\0note\0" + pack("!II", 25, 0)
)  # fmt: skip


def begin(number: int) -> bytes:
    return b"B" + pack("!QQI", 0, 0, number)


UNTOLD = b"u"
"""Stands for a long value that has not changed."""


def row(*values: bytes | None) -> bytes:
    parts = [
        b"n" if value is None else UNTOLD if value is UNTOLD else b"t" + pack("!I", len(value)) + value
        for value in values
    ]
    return pack("!H", len(values)) + b"".join(parts)


@pytest.fixture
def changes() -> Changes:
    made = Changes(Snapshot.parse("100:200:150,160"))
    made.read(begin(200))
    made.read(RELATION)
    return made


def test_rows_are_added_changed_and_removed(changes: Changes) -> None:
    """By their key: the one before, where that has changed, too. A long value that is not told stays as it is."""
    table, checked = '"public"."it""em"', "WITH done AS ({} RETURNING 1) SELECT 1 / (count(*) = 1)::int FROM done"
    assert changes.read(b"I" + pack("!I", 7) + b"N" + row(b"1", None)) == (
        f'INSERT INTO {table} ("id", "note") OVERRIDING SYSTEM VALUE VALUES ($1, $2)',
        ("1", None),
    )
    assert changes.read(b"U" + pack("!I", 7) + b"N" + row(b"1", "ä".encode())) == (
        checked.format(f'UPDATE ONLY {table} SET "note" = $2 WHERE "id" = $1'),
        ("1", "ä"),
    )
    assert changes.read(b"U" + pack("!I", 7) + b"K" + row(b"1", None) + b"N" + row(b"2", UNTOLD)) == (
        checked.format(f'UPDATE ONLY {table} SET "id" = $2 WHERE "id" = $1'),
        ("1", "2"),
    )
    assert changes.read(b"D" + pack("!I", 7) + b"K" + row(b"2", None)) == (
        checked.format(f'DELETE FROM ONLY {table} WHERE "id" = $1'),
        ("2",),
    )
    assert changes.read(b"T" + pack("!IBI", 1, 2, 7)) == (f"TRUNCATE ONLY {table} RESTART IDENTITY CASCADE", ())


def test_a_fixed_column_must_be_as_it_was(changes: Changes) -> None:
    """No UPDATE may set it; where it has changed at the source, no row is found, and that is noticed."""
    table, checked = '"public"."it""em"', "WITH done AS ({}) SELECT 1 / (count(*) = 1)::int FROM done"
    changes.fixed = frozenset({(table, '"note"')})
    assert changes.read(b"U" + pack("!I", 7) + b"N" + row(b"1", b"5")) == (
        checked.format(f'SELECT FROM ONLY {table} WHERE "id" = $1 AND "note" = $2'),
        ("1", "5"),
    )
    assert changes.read(b"U" + pack("!I", 7) + b"K" + row(b"1", None) + b"N" + row(b"2", b"5")) == (
        checked.format(f'UPDATE ONLY {table} SET "id" = $2 WHERE "id" = $1 AND "note" = $3 RETURNING 1'),
        ("1", "2", "5"),
    )


@pytest.mark.parametrize(("number", "is_told"), [(99, False), (149, False), (150, True), (199, False), (200, True)])
def test_what_the_copy_has_seen_is_left_out(changes: Changes, number: int, is_told: bool) -> None:
    changes.read(begin(number))
    assert (changes.read(b"I" + pack("!I", 7) + b"N" + row(b"1", b"x")) is not None) is is_told


def test_numbers_go_round() -> None:
    """The plugin tells the lower half of a number."""
    turn = 2**32
    seen = Snapshot.parse(f"{turn - 5}:{turn + 5}:{turn - 2}")
    assert [seen.has_seen(number % turn) for number in (turn - 6, turn - 2, turn - 1, turn, turn + 4, turn + 5)] == [
        True, False, True, True, True, False,
    ]  # fmt: skip


def test_what_cannot_be_read_is_refused(changes: Changes) -> None:
    with pytest.raises(Unreadable):
        changes.read(b"?")
    with pytest.raises(Unreadable):
        changes.read(b"I" + pack("!I", 7) + b"N" + pack("!H", 1) + b"b")
    with pytest.raises(Unreadable):
        changes.read(b"D" + pack("!I", 7) + b"K" + row(UNTOLD, None))
    assert changes.read(b"C") is None
