"""The service finds a statement's first word where the engine finds it, behind comments of every form."""

import random

from psycopg.pq import ExecStatus

from tests.inside import owner
from tests.service import Service
from tuplegate.protocol.statements import first_keyword

TEXTS = 4000
PIECES = ("/*", "*/", "/*/", "*/*", "/", "*", "--", "-", "\n", "\r", " ", "x", ";")


def test_the_first_word_is_where_the_engine_finds_it(service: Service) -> None:
    """A text before a query hides it from both or from neither."""
    made = random.Random(20)
    hidden = 0
    with owner(service) as connection:
        for _ in range(TEXTS):
            before = "".join(made.choices(PIECES, k=made.randrange(8)))
            sql = before + "select 7"
            runs = connection.pgconn.exec_params(sql.encode(), None).status == ExecStatus.TUPLES_OK
            assert runs == (first_keyword(sql) == ("select", len(sql) - 2)), sql
            hidden += not runs
    assert TEXTS / 4 < hidden < TEXTS - TEXTS / 40, "both happen often"
