"""Requests that carry a mark of their own, and the check that an answer has that mark and no other.

A mark names the organization, the connection and the number of its request on it. Every organization's database has a
mark of its own as well, in the table `who`, so that an answer shows whose database it came from.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

import msgspec

from attack.door.raw import RawAnswer, post

MARK = re.compile(rb"mark-([0-9]+)-([0-9]+)-([0-9]+)-kram")
OWNER = re.compile(rb"owner-([0-9]+)-renwo")
_HOST = "Host: localhost"


@dataclass(frozen=True, slots=True)
class Asker:
    """A connection of an organization."""

    organization: int
    connection: int
    key: str

    def mark(self, number: int) -> str:
        return f"mark-{self.organization}-{self.connection}-{number}-kram"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What must come back: `least` to `most` marks, and the database's own mark `owners` times."""

    kind: str
    data: bytes
    mark: bytes
    owner: bytes
    least: int
    most: int
    owners: int = 0
    statuses: tuple[int, ...] = (200,)
    has_body: bool = True


def statements(organization: int) -> list[str]:
    """Prepare the database of an organization."""
    return [
        f"create table who as select 'owner-{organization}-renwo' as owner",
        "create table said (m text primary key)",
    ]


def ask(random: Random, asker: Asker, number: int) -> Wanted:
    """A request of any kind."""
    return random.choice(_KINDS)(random, asker, number)


def ask_shortly(random: Random, asker: Asker, number: int) -> Wanted:
    """One that is answered at once, in one packet."""
    return random.choice((_parameter, _literal, _text))(random, asker, number)


def ask_at_length(random: Random, asker: Asker, number: int) -> Wanted:
    """One whose answer takes many packets."""
    return random.choice((_large, _events, _lines))(random, asker, number)


def judge(wanted: Wanted, answer: RawAnswer, is_disturbed: bool) -> str | None:
    """What is wrong with the answer. Where a worker was killed, the answer may be that the service is not available."""
    if (foreign := judge_bytes(wanted.mark, wanted.owner, answer.head + answer.body)) is not None:
        return foreign
    if is_disturbed and answer.status in (502, 503):
        return None
    if answer.status not in wanted.statuses:
        return f"status {answer.status}: {answer.body[:300]!r}"
    if not wanted.has_body:
        return None
    marks, owners = len(MARK.findall(answer.body)), len(OWNER.findall(answer.body))
    if is_disturbed and b'"success":false' in answer.body:
        return None
    if not wanted.least <= marks <= wanted.most or owners != wanted.owners:
        return f"{marks} marks and {owners} of the database in {answer.body[:200]!r} … {answer.body[-200:]!r}"
    if not answer.body.rstrip().endswith(b"}"):
        return f"it ends in {answer.body[-100:]!r}"
    if wanted.kind not in ("events", "lines"):
        try:
            msgspec.json.decode(answer.body)
        except msgspec.DecodeError as exc:
            return f"no JSON ({exc}): {answer.body[:200]!r}"
    return None


def judge_bytes(mark: bytes, owner: bytes, data: bytes) -> str | None:
    """Whose marks are in there, if they are anybody else's."""
    for found in MARK.finditer(data):
        if found[0] != mark:
            return f"FOREIGN: {found[0].decode()} came instead of {mark.decode()}"
    for found in OWNER.finditer(data):
        if found[0] != owner:
            return f"FOREIGN: the database of {found[0].decode()} answered {mark.decode()}"
    return None


# -- kinds of requests ------------------------------------------------------------------------------------------------


def _wanted(
    kind: str, asker: Asker, number: int, data: bytes, least: int, most: int | None = None, **more: object
) -> Wanted:
    owner = f"owner-{asker.organization}-renwo".encode()
    mark = asker.mark(number).encode()
    return Wanted(kind, data, mark, owner, least, least if most is None else most, **more)  # type: ignore[arg-type]


def _query(asker: Asker, body: Mapping[str, object], *more: str) -> bytes:
    return post("/v1/query", asker.key, json.dumps(body).encode(), *more)


def _parameter(random: Random, asker: Asker, number: int) -> Wanted:
    body = {"sql": "select $1::text as m, owner from who", "params": [asker.mark(number)]}
    return _wanted("parameter", asker, number, _query(asker, body), 1, owners=1)


def _literal(random: Random, asker: Asker, number: int) -> Wanted:
    data = _query(asker, {"sql": f"select '{asker.mark(number)}' as m, owner from who"})
    return _wanted("literal", asker, number, data, 1, owners=1)


def _text(random: Random, asker: Asker, number: int) -> Wanted:
    sql = f"select '{asker.mark(number)}' as m"
    return _wanted("text", asker, number, post("/query", asker.key, sql.encode(), content_type="text/plain"), 1)


def _large(random: Random, asker: Asker, number: int) -> Wanted:
    count = random.choice((200, 2_000, 10_000))
    body = {"sql": f"select repeat($1::text, {count}) as m, owner from who", "params": [asker.mark(number)]}
    return _wanted("large", asker, number, _query(asker, body), count, owners=1)


def _rows(random: Random, asker: Asker, number: int) -> Wanted:
    count = random.randrange(1, 200)
    body = {"sql": "select $1::text as m, i from generate_series(1, $2::int) i", "params": [asker.mark(number), count]}
    return _wanted("rows", asker, number, _query(asker, body), count)


def _events(random: Random, asker: Asker, number: int) -> Wanted:
    count = random.choice((1, 10, 300, 3_000))
    body = {"sql": f"/*+ STREAM */ select '{asker.mark(number)}' as m from generate_series(1, {count})"}
    return _wanted("events", asker, number, _query(asker, body), count)


def _lines(random: Random, asker: Asker, number: int) -> Wanted:
    count = random.choice((1, 10, 300, 3_000))
    body = {"sql": f"select $1::text as m from generate_series(1, {count})", "params": [asker.mark(number)]}
    return _wanted("lines", asker, number, _query(asker, body, "Accept: application/x-ndjson"), count)


def _transaction(random: Random, asker: Asker, number: int) -> Wanted:
    mark = asker.mark(number)
    statements: list[object] = [
        {"sql": "insert into said values ($1)", "params": [mark]},
        {"sql": "select m, owner from said, who where m = $1", "params": [mark]},
        f"select '{mark}' as again",
    ]
    data = post("/v1/transaction", asker.key, json.dumps({"statements": statements}).encode())
    return _wanted("transaction", asker, number, data, 2, owners=1)


def _error(random: Random, asker: Asker, number: int) -> Wanted:
    """The engine repeats the text that it cannot read."""
    data = _query(asker, {"sql": random.choice(("select '{}'::int", 'select "{}"')).format(asker.mark(number))})
    return _wanted("error", asker, number, data, 1, 3)


def _unknown_field(random: Random, asker: Asker, number: int) -> Wanted:
    data = _query(asker, {"sql": "select 1", asker.mark(number): 1})
    return _wanted("unknown field", asker, number, data, 0, 3, statuses=(400,))


def _unknown_route(random: Random, asker: Asker, number: int) -> Wanted:
    head = f"GET /nope/{asker.mark(number)} HTTP/1.1\r\n{_HOST}\r\nAuthorization: Bearer {asker.key}\r\n\r\n"
    return _wanted("unknown route", asker, number, head.encode(), 0, 3, statuses=(404,))


def _unknown_database(random: Random, asker: Asker, number: int) -> Wanted:
    data = _query(asker, {"sql": "select 1"}, f"Tuplegate-Database: {asker.mark(number)}")
    return _wanted("unknown database", asker, number, data, 0, 3, statuses=(404,))


def _no_key(random: Random, asker: Asker, number: int) -> Wanted:
    data = post("/v1/query", asker.mark(number), b'{"sql":"select 1"}')
    return _wanted("no key", asker, number, data, 0, 3, statuses=(401,))


def _slow(random: Random, asker: Asker, number: int) -> Wanted:
    body = {
        "sql": f"select $1::text as m, pg_sleep({random.uniform(0.001, 0.05):.3f})::text",
        "params": [asker.mark(number)],
    }
    return _wanted("slow", asker, number, _query(asker, body), 1)


def _late(random: Random, asker: Asker, number: int) -> Wanted:
    """The statement does not end in its time."""
    body = {"sql": f"select '{asker.mark(number)}' as m, pg_sleep(0.2)::text", "timeout_ms": random.randrange(5, 40)}
    return _wanted("late", asker, number, _query(asker, body), 0, 1, statuses=(200, 503))


def _head(random: Random, asker: Asker, number: int) -> Wanted:
    head = f"HEAD /health HTTP/1.1\r\n{_HOST}\r\nX-Mark: {asker.mark(number)}\r\n\r\n"
    return _wanted("head", asker, number, head.encode(), 0, statuses=(200, 405), has_body=False)


def _banner(random: Random, asker: Asker, number: int) -> Wanted:
    head = f"GET /health HTTP/1.1\r\n{_HOST}\r\nX-Mark: {asker.mark(number)}\r\n\r\n"
    return _wanted("health", asker, number, head.encode(), 0, statuses=(200,))


_KINDS: tuple[Callable[[Random, Asker, int], Wanted], ...] = (
    _parameter, _parameter, _parameter, _literal, _literal, _text, _large, _rows, _rows, _events, _lines, _transaction,
    _error, _error, _unknown_field, _unknown_route, _unknown_database, _no_key, _slow, _late, _head, _banner,
)  # fmt: skip
