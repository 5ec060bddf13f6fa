"""Turns the changes that PostgreSQL's own plugin `pgoutput` sends into statements. Pure.

It reads version 1 of the plugin's protocol, with values as text. Every statement changes one row, found by its replica
identity, and fails if there is none: so a copy that differs is noticed.
"""

from dataclasses import dataclass, field
from struct import unpack_from

from tuplegate.engine.libpq.values.quoting import quote

Step = tuple[str, tuple[str | None, ...]]
"""A statement, and its parameters."""

_KEY = 1
_RESTART = 2


class Unreadable(Exception):
    """A message is none of the protocol's."""


@dataclass(frozen=True, slots=True)
class _Relation:
    name: str
    columns: list[str]
    keys: list[bool]


@dataclass(slots=True)
class Changes:
    """Reads messages in their order. `snapshot` is the copy's: changes that it includes are skipped. `fixed` are the
    columns, each with its table, that no UPDATE may set: they are GENERATED ALWAYS AS IDENTITY."""

    snapshot: "Snapshot"
    fixed: frozenset[tuple[str, str]] = frozenset()
    _relations: dict[int, _Relation] = field(default_factory=dict)
    _skips: bool = False

    def read(self, message: bytes) -> Step | None:
        """Return the statement for the message, if there is one."""
        kind = message[:1]
        match kind:
            case b"B":
                self._skips = self.snapshot.has_seen(unpack_from("!I", message, 17)[0])
            case b"R":
                self._note(message)
            case b"I" | b"U" | b"D" | b"T" if not self._skips:
                return self._step(kind, message)
            case b"C" | b"O" | b"Y" | b"M" | b"I" | b"U" | b"D" | b"T":
                pass
            case _:
                raise Unreadable(f"a message of the kind {kind!r}")
        return None

    def _note(self, message: bytes) -> None:
        [oid] = unpack_from("!I", message, 1)
        namespace, place = _read_text(message, 5)
        name, place = _read_text(message, place)
        [count] = unpack_from("!H", message, place + 1)
        place += 3
        columns, keys = [], []
        for _ in range(count):
            keys.append(bool(message[place] & _KEY))
            column, place = _read_text(message, place + 1)
            columns.append(quote(column))
            place += 8  # the number of its type, and the modifier
        self._relations[oid] = _Relation(f"{quote(namespace)}.{quote(name)}", columns, keys)

    def _step(self, kind: bytes, message: bytes) -> Step:
        if kind == b"T":
            return self._truncate(message)
        relation = self._relations[unpack_from("!I", message, 1)[0]]
        old: list[str | bool | None] | None = None
        place = 5
        if message[place : place + 1] in (b"K", b"O"):
            old, place = _read_tuple(message, place + 1)
        if kind == b"D":
            assert old is not None, "a deletion names its row"
            return _delete(relation, old)
        new, _ = _read_tuple(message, place + 1)
        return _insert(relation, new) if kind == b"I" else self._update(relation, old, new)

    def _update(self, relation: _Relation, old: list[str | bool | None] | None, new: list[str | bool | None]) -> Step:
        """Update a row. If the old key is not sent, it is unchanged. A fixed column must be unchanged, or no row is
        found."""
        where, params = _write_where(relation, old or new)
        sets = []
        for column, is_key, value in zip(relation.columns, relation.keys, new, strict=True):
            if value is False or (is_key and old is None):
                continue
            params.append(_require_told(value))
            if (relation.name, column) in self.fixed:
                where += f" AND {column} = ${len(params)}"
            else:
                sets.append(f"{column} = ${len(params)}")
        if not sets:
            return _require_row(f"SELECT FROM ONLY {relation.name} WHERE {where}", ""), tuple(params)
        return _require_row(f"UPDATE ONLY {relation.name} SET {', '.join(sets)} WHERE {where}"), tuple(params)

    def _truncate(self, message: bytes) -> Step:
        count, options = unpack_from("!IB", message, 1)
        names = (self._relations[oid].name for oid in unpack_from(f"!{count}I", message, 6))
        restart = " RESTART IDENTITY" if options & _RESTART else ""
        # Tables that refer to these were emptied with them at the source, even if they are not published.
        return f"TRUNCATE {', '.join(f'ONLY {name}' for name in names)}{restart} CASCADE", ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The view of a transaction, by the numbers of others: all below `end` except those that were running."""

    end: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> "Snapshot":
        """Parse a snapshot as the engine writes it: `xmin:xmax:xip,xip`."""
        _, end, running = text.split(":")
        return cls(int(end), frozenset(int(number) for number in running.split(",") if number))

    def has_seen(self, number: int) -> bool:
        """Return whether the snapshot includes a transaction. `number` has 32 bits, as the plugin sends it; the
        engine's own have 64."""
        whole = (self.end & ~0xFFFFFFFF) | number
        if whole > self.end + 2**31:
            whole -= 2**32
        elif whole < self.end - 2**31:
            whole += 2**32
        return whole < self.end and whole not in self.running


def _read_text(message: bytes, place: int) -> tuple[str, int]:
    end = message.index(b"\0", place)
    return message[place:end].decode(), end + 1


def _read_tuple(message: bytes, place: int) -> tuple[list[str | bool | None], int]:
    """Return the values of a row: texts, None for NULL, and False for a long value that has not changed and was not
    sent."""
    [count] = unpack_from("!H", message, place)
    place += 2
    values: list[str | bool | None] = []
    for _ in range(count):
        kind = message[place : place + 1]
        place += 1
        if kind == b"t":
            [length] = unpack_from("!I", message, place)
            values.append(message[place + 4 : place + 4 + length].decode())
            place += 4 + length
        elif kind in (b"n", b"u"):
            values.append(None if kind == b"n" else False)
        else:
            raise Unreadable(f"a value of the kind {kind!r}")
    return values, place


def _insert(relation: _Relation, new: list[str | bool | None]) -> Step:
    if not relation.columns:
        return f"INSERT INTO {relation.name} DEFAULT VALUES", ()
    places = ", ".join(f"${number}" for number in range(1, len(new) + 1))
    sql = f"INSERT INTO {relation.name} ({', '.join(relation.columns)}) OVERRIDING SYSTEM VALUE VALUES ({places})"
    return sql, tuple(_require_told(value) for value in new)


def _delete(relation: _Relation, old: list[str | bool | None]) -> Step:
    where, params = _write_where(relation, old)
    return _require_row(f"DELETE FROM ONLY {relation.name} WHERE {where}"), tuple(params)


def _write_where(relation: _Relation, old: list[str | bool | None]) -> tuple[str, list[str | None]]:
    params: list[str | None] = []
    parts = []
    for column, is_key, value in zip(relation.columns, relation.keys, old, strict=True):
        if is_key:
            params.append(_require_told(value))
            parts.append(f"{column} = ${len(params)}")
    return " AND ".join(parts), params


def _require_row(sql: str, returning: str = " RETURNING 1") -> str:
    """Return the statement, made to fail with a division by zero unless it finds exactly one row."""
    return f"WITH done AS ({sql}{returning}) SELECT 1 / (count(*) = 1)::int FROM done"


def _require_told(value: str | bool | None) -> str | None:
    if isinstance(value, bool):
        raise Unreadable("a value that is needed is not told")
    return value
