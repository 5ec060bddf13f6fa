"""Sessions, databases, keys and organizations through the client."""

import pytest

from tests.service import Service
from tuplegate.client import AlreadyExists, BadRequest, Client, Forbidden, NotFound, RateLimited, Unauthenticated


def test_a_session_is_opened_refreshed_and_ended(service: Service) -> None:
    """Its token is used from the login to the logout; then the key again."""
    with Client(service.url, service.key, control_url=service.control_url) as client:
        opened = client.login(scopes=["read"], database="main")
        assert opened.token is not None
        assert opened.token not in repr(opened)
        assert opened.scopes == ("read",)
        assert client.who_am_i().id == opened.id
        assert client.query("select 1").value() == 1
        with pytest.raises(Forbidden):
            client.databases.create("not_for_readers")
        refreshed = client.refresh()
        assert refreshed.expires_at is not None
        assert opened.expires_at is not None
        assert refreshed.expires_at > opened.expires_at
        with Client(service.url, opened.token, control_url=service.control_url) as other:
            assert other.who_am_i().id == opened.id
            client.logout()
            with pytest.raises(Unauthenticated):
                other.who_am_i()
        assert client.databases.list()


def test_open_sessions_are_listed_and_ended(service: Service, database: Client) -> None:
    """By an admin; the list says whose each is, and which one asks."""
    with Client(service.url, service.key, control_url=service.control_url) as client:
        opened = client.login()
        [own] = [one for one in client.sessions.list() if one.current]
        assert own.id == opened.id
        assert own.key in {key.id for key in database.keys.list()}
        database.sessions.end(opened.id)
        with pytest.raises(Unauthenticated):
            client.who_am_i()
    with pytest.raises(NotFound):
        database.sessions.end(opened.id)


def test_a_code_opens_a_session_in_the_console(service: Service, database: Client) -> None:
    """It is shown once, and not in a repr."""
    made = database.console_code(scopes=["read"], database="main")
    assert made.url == f"{service.control_url}/console/#code={made.code}"
    assert made.expires_at is not None
    assert made.code not in repr(made)


def test_databases_are_made_cloned_changed_and_deleted(service: Service, database: Client) -> None:
    """Each with its own data."""
    made = database.databases.create("client-source")
    assert (made.name, made.state, made.default) == ("client-source", "active", False)
    assert made.created_at is not None
    with Client(service.url, service.key, database="client-source") as source:
        source.query("create table t as select 7 as n")
    database.databases.create("client-copy", clone_of="client-source")
    with Client(service.url, service.key, database="client-copy") as copy:
        assert copy.query("select n from t").value() == 7
    with pytest.raises(AlreadyExists):
        database.databases.create("client-copy")
    assert database.databases.update("client-copy", delete_protection=True).delete_protection
    with pytest.raises(AlreadyExists, match="protected"):
        database.databases.delete("client-copy")
    database.databases.update("client-copy", new_name="client-other", delete_protection=False)
    names = {found.name for found in database.databases.list()}
    assert {"main", "client-source", "client-other"} <= names
    for name in ("client-source", "client-other"):
        database.databases.delete(name)
    with pytest.raises(NotFound):
        database.databases.get("client-source")


def test_keys_are_made_changed_rotated_and_revoked(service: Service, database: Client) -> None:
    """The key itself is shown when it is made, and not in a repr."""
    made = database.keys.create("ci", ["read"], database="main", expires_in=3600)
    assert made.key is not None
    assert made.key not in repr(made)
    assert (made.name, made.scopes, made.database, made.state) == ("ci", ("read",), "main", "active")
    with Client(service.url, made.key) as reader:
        assert reader.query("select 1").value() == 1
    assert database.keys.get(made.id).key is None
    assert database.keys.update(made.id, name="nightly").name == "nightly"
    rotated = database.keys.rotate(made.id, grace_seconds=0)
    assert rotated.key is not None
    with Client(service.url, rotated.key) as reader:
        assert reader.query("select 1").value() == 1
    database.keys.revoke(made.id)
    assert database.keys.get(made.id).state == "revoked"
    assert made.id in {found.id for found in database.keys.list()}


def test_lists_are_read_to_their_end(database: Client) -> None:
    """Over more than one page."""
    ids = {database.keys.create(f"many-{n}", ["read"]).id for n in range(105)}
    assert ids <= {found.id for found in database.keys.list()}
    assert len(database.audit(limit=104)) == 104
    for id in ids:
        database.keys.revoke(id)


def use_up(guest: Client) -> None:
    """Asks more often than any minute allows; a wait until the next one does not fit into a call's time."""
    for _ in range(2000):
        guest.query("select 1", timeout_s=0.5)


def test_organizations_have_their_own_keys_and_databases(service: Service, database: Client) -> None:
    """Made by an operator, with a first key; its requests are counted by its tier."""
    made = database.organizations.create("client-guest", tier="tiny")
    assert made.key is not None
    assert database.organizations.get(made.id).tier == "tiny"
    with Client(service.url, made.key, control_url=service.control_url) as guest:
        assert guest.organization().name == "client-guest"
        assert [found.name for found in guest.databases.list()] == ["main"]
        guest.query("create table mine ()")
        with pytest.raises(Forbidden):
            guest.organizations.list()
        with pytest.raises(RateLimited) as caught:
            use_up(guest)
    assert caught.value.status == 429
    assert caught.value.retry_after_s is not None
    with pytest.raises(BadRequest):
        database.organizations.update(made.id, tier="none-of-these")
    assert database.organizations.update(made.id, tier="pro").tier == "pro"
    assert made.id in {found.id for found in database.organizations.list()}
    database.organizations.delete(made.id)
    with pytest.raises(NotFound):
        database.organizations.get(made.id)


def test_usage_is_told_by_the_hour(database: Client) -> None:
    """As far as it has been written down."""
    assert isinstance(database.usage(), list)
