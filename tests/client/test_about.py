"""What the service tells about itself and a database, through the client."""

import pytest

from tuplegate.client import Client, NotFound


def test_tables_are_told_with_their_columns(database: Client) -> None:
    """Types, defaults, and what is the primary key."""
    database.query("create table told (id int primary key, name text not null default 'x', note numeric(5, 2))")
    [table] = [table for table in database.tables() if table.name == "told"]
    assert (table.schema, table.kind) == ("public", "table")
    assert [column.name for column in table.columns] == ["id", "name", "note"]
    assert [column.primary_key for column in table.columns] == [True, False, False]
    assert [column.nullable for column in table.columns] == [False, False, True]
    assert table.columns[1].default == "'x'::text"
    database.query("drop table told")


def test_capabilities_are_told_and_one_is_tried(database: Client) -> None:
    """The matrix, and a probe by its name."""
    told = database.capabilities()
    assert told["limits"]
    assert told["engine"]
    name = told["probes"][0]["name"]
    assert name in str(database.capability(name))
    with pytest.raises(NotFound):
        database.capability("no-such-probe")


def test_health_is_told(database: Client) -> None:
    """Without judging the key."""
    assert database.health()["status"] == "ok"
