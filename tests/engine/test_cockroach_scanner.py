"""The service cuts a text into words, strings and comments where CockroachDB does, or refuses it."""

import random
import re

import psycopg

from tests.engine.test_writing_functions import cluster
from tests.inside import owner
from tests.service import Service
from tuplegate.engine import port
from tuplegate.engine.cockroach.dialect.texts import check_text, fold, scan

__all__ = ["cluster"]

TEXTS = 2000
SEED = 31
QUOTES = ("'", "''", '"', '""', "\\", "\\'", "\\\\", "$$", "$a$", "$", "e'", "E'", "b'", "B'", "x'", "U&'")
COMMENTS = ("/*", "*/", "--", "-", "/", "*", "#-", "//", "\n", "\r", "\r\n")
OTHERS = (
    " ",
    "\t",
    "\f",
    "\v",
    ";",
    "1",
    "x",
    "ı",
    "\u0130",
    "\u212a",
    "\u037e",
    "é",
    "\u00a0",
    "\u2028",
    "\ufeff",
    "日",
)
INSIDE = QUOTES + COMMENTS + OTHERS
"""Pieces of what stands in quotes and comments, as far as these do not end before it."""
AROUND = (
    ("/*", "*/"),
    ("--", "\n"),
    ("'", "'"),
    ("e'", "'"),
    ("b'", "'"),
    ("B'", "'"),
    ("$$", "$$"),
    ("$é$", "$é$"),
    ('1 as "', '"'),
    ("", ""),
)
MARK = re.compile(r"w\d+")


def make_text(made: random.Random) -> str:
    """Return a query with columns of the names w1, w2, …: some stand in quotes or comments, and are none."""
    number, parts = 0, ["select 0 as first"]
    for _ in range(made.randrange(1, 6)):
        opening, closing = made.choice(AROUND)
        inside = ""
        for _ in range(made.randrange(5)):
            number += 1
            inside += made.choice(INSIDE) + made.choice(("", "", f",1 as w{number} "))
        comma = "" if opening in ("/*", "--", "") else ","
        number += 1
        parts.append(f"{comma}{opening}{inside}{closing},1 as w{number} ")
    return " ".join(parts)


def find_marks(sql: str) -> list[str]:
    """Return the names of columns that the service finds."""
    found = [fold(sql[start:end]).strip('"') for kind, start, end in scan(sql) if kind in ("word", "quoted")]
    return [name for name in found if MARK.fullmatch(name)]


def is_refused(sql: str) -> bool:
    try:
        check_text(sql)
    except port.ParseFailed:
        return True
    return False


def test_words_are_outside_of_quotes_for_both(service: Service) -> None:
    """Every text that the engine runs has the columns that the service finds in it, refused by the service or not."""
    made = random.Random(SEED)
    ran = refused = hidden = 0
    with owner(service) as connection:
        for _ in range(TEXTS):
            sql = make_text(made)
            try:
                with connection.pipeline():
                    cursor = connection.execute(sql.encode())
            except psycopg.Error:
                continue
            names = [column.name for column in cursor.description or () if MARK.fullmatch(column.name)]
            assert find_marks(sql) == names, sql
            ran += 1
            refused += is_refused(sql)
            hidden += len(names) < len(MARK.findall(sql))
    assert ran > TEXTS / 20
    assert hidden > TEXTS / 40
    assert refused
