"""Which statements may be read from a standby, by their text."""

import pytest

from tuplegate.engine.port import Statement
from tuplegate.engine.postgres.standbys.snapshots import may_run_on_standby


@pytest.mark.parametrize(
    ("sql", "may"),
    [
        ("select 1", True),
        ("select nextval('s')", False),
        ("with d as (delete from t returning 1) select * from d", False),
        (f"select length('{'i ' * 100}')", True),
        (f"select length('{'i ' * 10_000}')", False),
    ],
)
def test_what_writes_or_is_long_is_for_the_primary(sql: str, may: bool) -> None:
    assert may_run_on_standby(Statement(sql, sql.partition(" ")[0])) is may
