"""URLs of engines, and the conninfos that are made of them."""

import pytest
from psycopg.conninfo import conninfo_to_dict

from tuplegate.engine.libpq.connections.logins import (
    add_settings,
    as_tenant,
    derive_password,
    find_database_name,
    has_password,
    read_url,
    where,
)
from tuplegate.engine.port import Access, BadUrl

URL = "postgresql://own%20er:p%27a%5C%20ss@db.example:5433/meta?sslmode=require"


def test_a_url_becomes_keywords() -> None:
    assert conninfo_to_dict(read_url(URL)) == {
        "user": "own er",
        "password": "p'a\\ ss",
        "host": "db.example",
        "port": "5433",
        "dbname": "meta",
        "sslmode": "require",
    }
    assert has_password(read_url(URL))
    assert not has_password(read_url("postgresql://a@b"))
    assert (find_database_name(read_url(URL)), find_database_name(read_url("postgresql://a@b"))) == ("meta", "")
    assert (where(read_url(URL)), where(read_url("postgresql://a@b"))) == ("db.example:5433", "b")


@pytest.mark.parametrize("url", ["secret", "postgresql://a:secret@b/c?no=1"])
def test_a_url_that_is_none(url: str) -> None:
    """What is wrong with it is said without its password."""
    with pytest.raises(BadUrl) as failure:
        read_url(url)
    assert "secret" not in str(failure.value)


@pytest.mark.parametrize("name", ["options", "application_name", "client_encoding"])
def test_what_the_service_sets_itself(name: str) -> None:
    with pytest.raises(BadUrl, match=name):
        read_url(f"postgresql://a@b/c?{name}=x")


def test_a_tenant_logs_in_as_itself() -> None:
    """With its own name and password, whatever the owner's are, and with settings that hold blanks and quotes."""
    secret = bytes(32)
    tenant = as_tenant(read_url(URL), secret, "tg_1", Access.READ)
    made = conninfo_to_dict(add_settings(tenant, "tg_1", {"DateStyle": "ISO, MDY", "search_path": '"$user",public'}))
    assert (made["user"], made["password"], made["dbname"]) == ("tg_1_r", derive_password(secret, "tg_1_r"), "tg_1")
    assert made["host"] == "db.example"
    assert made["options"] == '-c DateStyle=ISO,\\ MDY -c search_path="$user",public'
    assert derive_password(secret, "tg_1_r") != derive_password(secret, "tg_1_w")
