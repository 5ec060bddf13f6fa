"""Which exception says what, and what it carries."""

import pytest

from tests.service import Service
from tuplegate.client import (
    ApiError,
    BadRequest,
    CheckViolation,
    Client,
    ConnectionFailed,
    DataError,
    DivisionByZero,
    DuplicateTable,
    ForeignKeyViolation,
    IntegrityError,
    InvalidTextRepresentation,
    NotFound,
    NotNullViolation,
    ProgrammingError,
    RaisedException,
    ReadOnlyTransaction,
    SqlError,
    SqlSyntaxError,
    TooLarge,
    TuplegateError,
    Unauthenticated,
    UndefinedColumn,
    UndefinedFunction,
    UndefinedTable,
    UniqueViolation,
)


@pytest.fixture
def items(database: Client) -> None:
    database.query("drop table if exists item")
    database.query(
        "create table item (id int primary key check (id > 0), parent int references item, name text not null)"
    )
    database.query("insert into item values (1, null, 'a')")


@pytest.mark.parametrize(
    ("sql", "kind", "above"),
    [
        ("insert into item values (1, null, 'b')", UniqueViolation, IntegrityError),
        ("insert into item values (-1, null, 'b')", CheckViolation, IntegrityError),
        ("insert into item values (2, 9, 'b')", ForeignKeyViolation, IntegrityError),
        ("insert into item values (2, 1, null)", NotNullViolation, IntegrityError),
        ("select 1 / 0", DivisionByZero, DataError),
        ("select 'x'::int", InvalidTextRepresentation, DataError),
        ("select * from nowhere", UndefinedTable, ProgrammingError),
        ("select nothing from item", UndefinedColumn, ProgrammingError),
        ("select nothing()", UndefinedFunction, ProgrammingError),
        ("create table item ()", DuplicateTable, ProgrammingError),
        ("selec 1", SqlSyntaxError, ProgrammingError),
        ("do $$ begin raise 'no'; end $$", RaisedException, SqlError),
    ],
)
@pytest.mark.usefixtures("items")
def test_every_sqlstate_of_the_table_has_its_class(
    database: Client, sql: str, kind: type[SqlError], above: type[SqlError]
) -> None:
    """From a query, a transaction and a stream."""
    assert issubclass(kind, above)
    assert issubclass(kind, SqlError)
    with pytest.raises(kind) as caught:
        database.query(sql)
    assert caught.value.sqlstate is not None
    assert caught.value.request_id is not None
    with pytest.raises(kind) as caught:
        database.transaction(["select 1", sql])
    assert caught.value.statement == 1
    with pytest.raises(kind):
        list(database.stream(sql))


def test_an_error_carries_what_the_engine_said(database: Client) -> None:
    """Position, hint and detail are there where the engine gave them."""
    with pytest.raises(UndefinedColumn) as caught:
        database.query("select lenght from (select 1 as length) t")
    error = caught.value
    assert (error.code, error.status, error.sqlstate, error.position) == ("sql_error", 200, "42703", 8)
    assert error.hint is not None
    assert "length" in error.hint
    assert not error.retryable
    assert str(error) == error.message == 'column "lenght" does not exist'


def test_a_wrong_key_is_unauthenticated(service: Service) -> None:
    """And its text is in no message."""
    with Client(service.url, "svc_k_wrong") as client, pytest.raises(Unauthenticated) as caught:
        client.query("select 1")
    assert caught.value.status == 401
    assert "svc_k_wrong" not in str(caught.value) + repr(caught.value) + repr(client)


def test_a_reader_cannot_write(service: Service, read_key: str) -> None:
    """It is the engine that says so."""
    with Client(service.url, read_key) as client, pytest.raises((ReadOnlyTransaction, ProgrammingError)):
        client.query("create table reader_was_here ()")


def test_a_database_that_is_not_there_is_not_found(service: Service) -> None:
    """Chosen by the client's `database`."""
    with Client(service.url, service.key, database="nowhere") as client, pytest.raises(NotFound):
        client.query("select 1")
    with Client(service.url, service.key, database="main") as client:
        assert client.query("select 1").value() == 1


def test_a_body_over_the_limit_is_too_large(database: Client) -> None:
    """Nothing was run."""
    with pytest.raises(TooLarge):
        database.query("select length($1)", ["x" * (11 * 2**20)])


def test_a_wrong_number_of_parameters_is_a_bad_request(database: Client) -> None:
    """Or the engine's own word on it; an error below TuplegateError either way."""
    with pytest.raises((BadRequest, SqlError)):
        database.query("select $1::int", [1, 2])
    with pytest.raises(BadRequest):
        database.query("   ")
    with pytest.raises(BadRequest):
        database.query("begin")


def test_all_of_them_are_below_one() -> None:
    """So that one `except` catches what the client raises."""
    for kind in (ApiError, SqlError, ConnectionFailed):
        assert issubclass(kind, TuplegateError)


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://127.0.0.1", "http://", "http://user:secret@127.0.0.1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """When the client is made, before a key goes anywhere."""
    with pytest.raises(ValueError, match="address"):
        Client(url, "svc_k_x")


def test_a_missing_key_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """With where it can come from."""
    monkeypatch.delenv("TUPLEGATE_API_KEY", raising=False)
    with pytest.raises(ValueError, match="TUPLEGATE_API_KEY"):
        Client("http://127.0.0.1:1")
    with pytest.raises(ValueError, match="characters"):
        Client("http://127.0.0.1:1", "svc_k_x\r\nX-Evil: 1")


def test_address_and_key_come_from_the_environment(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they are not given."""
    monkeypatch.setenv("TUPLEGATE_URL", service.url + "/")
    monkeypatch.setenv("TUPLEGATE_API_KEY", service.key)
    with Client() as client:
        assert client.query("select 1").value() == 1


def test_something_else_at_the_address_is_noticed(service: Service) -> None:
    """It is not taken for an empty answer."""
    with Client(service.url + "/nowhere", service.key) as client, pytest.raises(TuplegateError):
        client.query("select 1")
