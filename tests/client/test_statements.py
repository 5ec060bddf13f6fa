"""What the client takes for a statement that reads."""

import pytest

from tuplegate.client.statements import seems_to_read


@pytest.mark.parametrize(
    ("sql", "reads"),
    [
        ("select 1", True),
        ("/* why */ (select 1)", True),
        ("with a as (select 1) select * from a", True),
        ("with a as (insert into t values (1) returning n) select * from a", False),
        ("WITH a AS (SELECT 1) UPDATE t SET n = 1", False),
        ("with a as (select 1) select * into t from a", False),
        ("insert into t values (1)", False),
        ("", False),
    ],
)
def test_what_reads_is_told_from_what_may_write(sql: str, reads: bool) -> None:
    """By its first word; a WITH reads where no word in it writes."""
    assert seems_to_read(sql) is reads
