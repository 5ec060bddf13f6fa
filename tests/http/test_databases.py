"""Databases: made, listed, changed and deleted by name, within one organization."""

from itertools import count
from typing import Any

import httpx
import psycopg
import pytest

from tests.control import (
    OPEN_ROUTES,
    Control,
    Organization,
    at_once,
    disagreements,
    engine_name,
    error_of,
    list_engine,
    new_organization,
    sleeping,
)
from tests.needs import Abilities
from tests.service import Service
from tests.waiting import eventually

RECORD = {"id", "name", "state", "engine", "default", "delete_protection", "size_bytes", "created_at", "activity"}
_numbers = count(1)


def new_name() -> str:
    return f"db-{next(_numbers)}"


def make(control: Control, **more: Any) -> str:
    name = new_name()
    control.post("/v1/databases", {"name": name, **more})
    return name


def names(control: Control) -> list[str]:
    return [database["name"] for database in control.all("/v1/databases")]


# -- the routes --------------------------------------------------------------------------------------------------


def test_an_organization_starts_with_its_default_database(control: Control, abilities: Abilities) -> None:
    """It is called main and works at once."""
    main = control.get("/v1/databases/main")
    assert set(main) == RECORD | {"success"}
    assert (main["name"], main["state"], main["default"], main["delete_protection"]) == ("main", "active", True, False)
    assert main["size_bytes"] > 1_000_000 or not abilities.can("postgresql")
    assert control.sql().value("select 1") == 1


def test_a_new_database_is_active_and_empty(control: Control, service: Service) -> None:
    """Chosen by a header on the data plane; its name in the engine is not the tenant's."""
    name = new_name()
    made = control.post("/v1/databases", {"name": name})
    assert set(made) == RECORD | {"success"}
    assert (made["name"], made["state"], made["default"], made["delete_protection"]) == (name, "active", False, False)
    shown = control.get(f"/v1/databases/{name}")
    assert {**shown, "size_bytes": 0} == {**made, "size_bytes": 0}
    sql = control.sql(database=name)
    sql("create table t (x int)")
    sql("insert into t values (1)")
    assert sql.value("select x from t") == 1
    assert control.sql().fails("select x from t")["sqlstate"] == "42P01", "the default database is another one"
    assert name not in engine_name(service, made["id"])


def test_an_organization_has_so_many_databases(service: Service) -> None:
    """Those that are being made or deleted count too; the next is welcome when one is gone."""
    own = new_organization(service)
    most = own.control.get("/v1/organization")["limits"]["databases"]
    with psycopg.connect(service.conninfo("tuplegate"), autocommit=True) as metadata:
        metadata.execute(
            "insert into database (id, organization, name, state, engine_name) select 'full_' || n, %s, 'full-' || n,"
            " 'failed', 'full_' || n from generate_series(2, %s::int) n",
            [own.id, most],
        )
        try:
            refused = own.control.refused(409, "too_many_databases", "POST", "/v1/databases", {"name": "more"})
            assert f"has {most} databases" in refused["message"]
            metadata.execute("delete from database where id = 'full_2'")
            own.control.post("/v1/databases", {"name": "more"})
        finally:
            metadata.execute("delete from database where id like 'full\\_%'")


def test_the_tenants_roles_own_no_database(control: Control, service: Service) -> None:
    """One for writing and one for reading, which see what is made later; neither is the owner."""
    made = control.post("/v1/databases", {"name": new_name()})
    name = engine_name(service, made["id"])
    with psycopg.connect(service.server_of(name)) as connection:
        owner = connection.execute(
            "select pg_get_userbyid(datdba) from pg_database where datname = %s", [name]
        ).fetchone()
    assert owner is not None
    assert not str(owner[0]).startswith("tg_")
    writer = control.sql(database=made["name"])
    writer("create schema later")
    writer("create table later.t as select 7 as x")
    reader = control.post("/v1/keys", {"name": "r", "scopes": ["read"], "database": made["name"]})["key"]
    assert control.sql(reader).value("select x from later.t") == 7
    assert control.sql(reader).fails("delete from later.t")["sqlstate"] in ("25006", "42501")


def test_lists_come_in_pages(service: Service) -> None:
    """In the order of their making; a cursor leads from one page to the next, and what is added later moves nothing."""
    control = new_organization(service).control
    made = ["main", *(make(control) for _ in range(3))]
    first = control.get("/v1/databases", limit=2)
    assert [item["name"] for item in first["items"]] == made[:2]
    assert all(set(item) == RECORD for item in first["items"])
    late = make(control)
    second = control.get("/v1/databases", limit=2, cursor=first["next_cursor"])
    assert [item["name"] for item in second["items"]] == made[2:]
    third = control.get("/v1/databases", limit=2, cursor=second["next_cursor"])
    assert [item["name"] for item in third["items"]] == [late]
    assert third["next_cursor"] is None
    assert control.get("/v1/databases", limit=5)["next_cursor"] is None
    assert names(control) == [*made, late]


def test_a_database_is_renamed(control: Control) -> None:
    """Its data and its keys stay; the old name is free."""
    name, other_name = make(control), new_name()
    control.sql(database=name)("create table kept as select 1 as x")
    key = control.post("/v1/keys", {"name": "k", "scopes": ["read"], "database": name})
    id = control.get(f"/v1/databases/{name}")["id"]
    changed = control.patch(f"/v1/databases/{name}", {"name": other_name})
    assert (changed["id"], changed["name"]) == (id, other_name)
    assert control.sql(database=other_name).value("select x from kept") == 1
    assert control.sql(key["key"]).value("select x from kept") == 1
    assert control.get(f"/v1/keys/{key['id']}")["database"] == other_name
    error_of(control.sql(database=name).answer("select 1"), 404, "not_found")
    control.refused(404, "not_found", "GET", f"/v1/databases/{name}")


def test_a_database_made_under_a_former_name_is_another(control: Control) -> None:
    """A key belongs to the database, not to the name."""
    name = make(control)
    control.sql(database=name)("create table old (x int)")
    key = control.post("/v1/keys", {"name": "k", "scopes": ["read"], "database": name})["key"]
    control.patch(f"/v1/databases/{name}", {"name": new_name()})
    control.post("/v1/databases", {"name": name})
    assert control.sql(key).value("select count(*) from old") == 0
    assert control.sql(database=name).fails("select * from old")["sqlstate"] == "42P01"
    error_of(control.sql(key, database=name).answer("select 1"), 404, "not_found")


def test_the_default_moves(service: Service) -> None:
    """There is always exactly one, and requests that name none go there."""
    control = new_organization(service).control
    name = make(control)
    assert control.patch(f"/v1/databases/{name}", {"default": True})["default"] is True
    control.sql()("create table in_the_new_one (x int)")
    assert control.sql(database=name).value("select count(*) from in_the_new_one") == 0
    assert [item["name"] for item in control.all("/v1/databases") if item["default"]] == [name]
    control.delete("/v1/databases/main")
    assert names(control) == [name]


def test_a_change_of_several_things_happens_whole_or_not_at_all(service: Service) -> None:
    """A name that is taken keeps the default where it is."""
    control = new_organization(service).control
    name = make(control)
    change = {"name": "main", "default": True, "delete_protection": True}
    control.refused(409, "already_exists", "PATCH", f"/v1/databases/{name}", change)
    shown = control.get(f"/v1/databases/{name}")
    assert (shown["default"], shown["delete_protection"]) == (False, False)
    assert control.get("/v1/databases/main")["default"] is True
    other_name = new_name()
    changed = control.patch(f"/v1/databases/{name}", {**change, "name": other_name})
    assert (changed["name"], changed["default"], changed["delete_protection"]) == (other_name, True, True)


def test_a_deleted_database_is_gone(control: Control, service: Service) -> None:
    """With its keys and their sessions, within five seconds; its name is free."""
    name = make(control)
    id = control.get(f"/v1/databases/{name}")["id"]
    there = engine_name(service, id)
    assert there in list_engine(service)
    key = control.post("/v1/keys", {"name": "k", "scopes": ["write"], "database": name})
    session = control.with_token(key["key"]).post("/v1/session")["token"]
    narrowed = control.post("/v1/session", {"database": name})["token"]
    tokens = [control.sql(token) for token in (key["key"], session, narrowed)]
    assert [sql.value("select 1") for sql in tokens] == [1, 1, 1]
    assert control.delete(f"/v1/databases/{name}") == {"success": True, "state": "gone"}
    for sql in tokens:
        eventually(lambda sql=sql: sql.answer("select 1").status_code == 401)  # type: ignore[misc]
    control.refused(404, "not_found", "GET", f"/v1/keys/{key['id']}")
    control.refused(404, "not_found", "GET", f"/v1/databases/{name}")
    assert [left for left in list_engine(service) if left.startswith(there)] == []
    assert control.post("/v1/databases", {"name": name})["id"] != id


def test_what_runs_in_a_database_that_is_deleted_ends(control: Control, service: Service) -> None:
    """It gets an answer, and the deletion does not wait for it."""
    name = make(control)
    id = control.get(f"/v1/databases/{name}")["id"]
    sql = control.sql(database=name)

    def delete() -> int:
        eventually(lambda: sleeping(service, id))
        return control.ask("DELETE", f"/v1/databases/{name}").status_code

    slow, deleted = at_once([lambda: sql.answer("select pg_sleep(25)").status_code, delete])
    assert deleted == 200
    assert slow in (200, 503), slow


def test_a_protected_database_stays(control: Control) -> None:
    """Until its protection is taken away."""
    name = make(control)
    assert control.patch(f"/v1/databases/{name}", {"delete_protection": True})["delete_protection"] is True
    error = control.refused(409, "delete_protected", "DELETE", f"/v1/databases/{name}")
    assert "delete_protection" in error["hint"]
    assert control.sql(database=name).value("select 1") == 1
    control.patch(f"/v1/databases/{name}", {"delete_protection": False})
    control.delete(f"/v1/databases/{name}")


# -- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["", "A", "a b", "1a", "-a", "_a", "a.b", "a\n", "a\0", "ä", "a" * 64, "a/b", "Main", None, 7, ["a"], 'a"; drop'],
)
def test_an_illegal_name_is_refused(control: Control, name: Any) -> None:
    """When it is made, renamed or copied; nothing is changed."""
    before = names(control)
    control.refused(400, "malformed_request", "POST", "/v1/databases", {"name": name})
    control.refused(400, "malformed_request", "PATCH", "/v1/databases/main", {"name": name})
    if name is not None:
        control.refused(400, "malformed_request", "POST", "/v1/databases", {"name": "copy", "clone_of": name})
    assert names(control) == before


def test_the_longest_name_works(control: Control) -> None:
    """63 characters, of every kind."""
    name = "a-_9" + "z" * 59
    control.post("/v1/databases", {"name": name})
    assert control.sql(database=name).value("select 1") == 1


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/databases", {}),
        ("POST", "/v1/databases", {"nam": "x"}),
        ("POST", "/v1/databases", {"name": "x", "size": 1}),
        ("POST", "/v1/databases", []),
        ("POST", "/v1/databases?name=x", {"name": "x"}),
        ("PATCH", "/v1/databases/main", {"state": "failed"}),
        ("PATCH", "/v1/databases/main", {"default": False}),
        ("PATCH", "/v1/databases/main", {"default": None}),
        ("PATCH", "/v1/databases/main", {"delete_protection": "yes"}),
        ("PATCH", "/v1/databases/main?x=1", {"delete_protection": True}),
        ("DELETE", "/v1/databases/main?force=true", None),
        ("GET", "/v1/databases/main?x=1", None),
        ("GET", "/v1/databases?page=2", None),
        ("GET", "/v1/databases?limit=0", None),
        ("GET", "/v1/databases?limit=-1", None),
        ("GET", "/v1/databases?limit=1001", None),
        ("GET", "/v1/databases?limit=" + "9" * 5000, None),
        ("GET", "/v1/databases?limit=ten", None),
        ("GET", "/v1/databases?limit=", None),
        ("GET", "/v1/databases?limit=1&limit=2", None),
        ("GET", "/v1/databases?limit=%D9%A3", None),
        ("GET", "/v1/databases?limit", None),
    ],
)
def test_a_request_that_the_route_does_not_take_is_refused(control: Control, method: str, path: str, body: Any) -> None:
    """Nothing is changed."""
    before = control.get("/v1/databases/main"), names(control)
    control.refused(400, "malformed_request", method, path, body)
    after = control.get("/v1/databases/main"), names(control)
    assert {**after[0], "size_bytes": 0} == {**before[0], "size_bytes": 0}
    assert after[1] == before[1]


def test_a_body_of_another_kind_is_refused(control: Control) -> None:
    """Neither text nor what is no JSON at all."""
    send = control.client.post
    error_of(send("/v1/databases", content="name=x", headers={"Content-Type": "text/plain"}), 415,
             "unsupported_media_type")  # fmt: skip
    for content in (b"{", b'{"name": "x"', b"\xff", b"[" * 60_000, b"nul"):
        error_of(send("/v1/databases", content=content), 400, "malformed_request")


@pytest.mark.parametrize("list_", ["/v1/databases", "/v1/keys", "/v1/organizations", "/v1/audit"])
@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "AAAA",
        "!!!!",
        "%ff%fe",
        "None",
        "-1",
        "1e3",
        "99999999999999999999",
        "WyIyMDI2LTAxLTAxVDAwOjAwOjAwIiwieCJd",  # ["2026-01-01T00:00:00","x"]: no time zone
        "WyIwMDAxLTAxLTAxVDAwOjAwOjAwKzIzOjU5IiwieCJd",  # ["0001-01-01T00:00:00+23:59","x"]
        "Wzk5OTk5OTk5OTk5OTk5OTk5OSwieCJd",  # [999999999999999999,"x"]
        "WyIyMDI2LTAxLTAxVDAwOjAwOjAwWiIsIlx1MDAwMCJd",  # ["2026-01-01T00:00:00Z","\u0000"]
        "WyIyMDI2LTAxLTAxVDAwOjAwOjAwWiJd",  # ["2026-01-01T00:00:00Z"]
    ],
)
def test_a_cursor_from_nowhere_is_refused(operator: Control, list_: str, cursor: str) -> None:
    """Whatever a list did not give out itself."""
    operator.refused(400, "malformed_request", "GET", f"{list_}?cursor={cursor}")


def test_a_cursor_with_something_added_is_refused(operator: Control) -> None:
    """Even what a decoder would skip."""
    operator.post("/v1/keys", {"name": "one more", "scopes": ["read"]})
    cursor = operator.get("/v1/keys", limit=1)["next_cursor"]
    assert cursor is not None
    for changed in (cursor + "!", cursor + "=", "!" + cursor, cursor[:-1], cursor + "AAAA"):
        operator.refused(400, "malformed_request", "GET", f"/v1/keys?cursor={changed}")


@pytest.mark.parametrize("name", ["nowhere", "main%00x", "main%0a", "Main", "%ff", "'", "secret-plans", "main%20"])
def test_a_database_that_is_not_ones_own_is_not_found(control: Control, other: Organization, name: str) -> None:
    """Unknown, or of another organization: there is no difference."""
    path = f"/v1/databases/{name}"
    control.refused(404, "not_found", "GET", path)
    control.refused(404, "not_found", "PATCH", path, {"delete_protection": True})
    control.refused(404, "not_found", "DELETE", path)
    assert other.control.get("/v1/databases/secret-plans")["delete_protection"] is False


def test_another_organizations_database_is_not_copied(control: Control, other: Organization) -> None:
    """Nor one that is not there."""
    for source in ("nowhere", "secret-plans"):
        control.refused(404, "not_found", "POST", "/v1/databases", {"name": "stolen", "clone_of": source})
    control.refused(404, "not_found", "GET", "/v1/databases/stolen")
    error_of(control.sql(database="secret-plans").answer("select 1"), 404, "not_found")


def test_another_organization_may_use_the_same_name(control: Control, other: Organization) -> None:
    """A name says nothing about what others have."""
    assert control.post("/v1/databases", {"name": "secret-plans"})["name"] == "secret-plans"
    control.delete("/v1/databases/secret-plans")
    assert other.control.get("/v1/databases/secret-plans")["state"] == "active"


def test_a_name_that_is_taken_is_refused(control: Control) -> None:
    """To make one, to copy one and to rename one; nothing is left of it."""
    name = make(control)
    before = names(control)
    control.refused(409, "already_exists", "POST", "/v1/databases", {"name": "main"})
    control.refused(409, "already_exists", "POST", "/v1/databases", {"name": "main", "clone_of": name})
    control.refused(409, "already_exists", "PATCH", f"/v1/databases/{name}", {"name": "main"})
    assert control.patch(f"/v1/databases/{name}", {"name": name})["name"] == name
    assert names(control) == before


def test_the_default_database_stays(control: Control) -> None:
    """The hint says how to go about it."""
    error = control.refused(409, "wrong_state", "DELETE", "/v1/databases/main")
    assert "default" in error["hint"]
    assert control.sql().value("select 1") == 1


@pytest.mark.parametrize("scopes", [["read"], ["write"], ["operator"]])
def test_only_an_admin_manages_databases(operator: Control, scopes: list[str]) -> None:
    """Every route of them."""
    asker = operator.with_token(operator.post("/v1/keys", {"name": "k", "scopes": scopes})["key"])
    for method, path, body in (
        ("GET", "/v1/databases", None),
        ("POST", "/v1/databases", {"name": "x"}),
        ("GET", "/v1/databases/main", None),
        ("PATCH", "/v1/databases/main", {"delete_protection": True}),
        ("DELETE", "/v1/databases/main", None),
    ):
        asker.refused(403, "forbidden", method, path, body)


def test_a_key_of_one_database_sees_and_makes_no_other(control: Control) -> None:
    """An admin's, too."""
    name = make(control)
    key = control.post("/v1/keys", {"name": "k", "scopes": ["admin"], "database": name})["key"]
    bound = control.with_token(key)
    assert names(bound) == [name]
    bound.refused(404, "not_found", "GET", "/v1/databases/main")
    bound.refused(404, "not_found", "DELETE", "/v1/databases/main")
    bound.refused(403, "forbidden", "POST", "/v1/databases", {"name": "more"})
    assert bound.patch(f"/v1/databases/{name}", {"delete_protection": True})["delete_protection"] is True


def test_nobody_without_a_token_gets_anywhere(control: Control) -> None:
    """Every route of the control plane but those that say what it is and how it is."""
    nobody = control.with_token(None)
    for endpoint in nobody.client.get("/").json()["endpoints"]:
        method, path = endpoint.split(" ")
        if path in OPEN_ROUTES:
            assert nobody.ask(method, path).status_code == 200
        else:
            answer = nobody.ask(method, path.replace("{name}", "main").replace("{id}", "x"))
            error_of(answer, 401, "unauthenticated")
            assert answer.headers["www-authenticate"] == "Bearer"


# -- races -------------------------------------------------------------------------------------------------------


def test_of_two_who_make_the_same_name_one_wins(control: Control, service: Service) -> None:
    """One 201 and one 409, and nothing of the loser stays."""
    askers = [control, control.with_token(control.token)]
    for _ in range(8):
        name = new_name()

        def create(asker: Control, name: str = name) -> httpx.Response:
            return asker.ask("POST", "/v1/databases", {"name": name})

        answers = at_once([lambda asker=asker, create=create: create(asker) for asker in askers])  # type: ignore[misc]
        assert sorted(answer.status_code for answer in answers) == [201, 409], [a.text for a in answers]
        [won] = [answer.json() for answer in answers if answer.status_code == 201]
        assert won["state"] == "active"
        assert control.get(f"/v1/databases/{name}")["id"] == won["id"]
    assert disagreements(service).none


def test_of_two_who_move_the_default_both_are_heard(service: Service) -> None:
    """In one order or the other; there is one default at the end."""
    control = new_organization(service).control
    askers = [(control, make(control)), (control.with_token(control.token), make(control))]
    for _ in range(10):
        changed = at_once(
            [lambda asker=asker, name=name: asker.patch(f"/v1/databases/{name}", {"default": True})  # type: ignore[misc]
             for asker, name in askers]
        )  # fmt: skip
        assert len(changed) == 2
        assert len([item for item in control.all("/v1/databases") if item["default"]]) == 1


def test_a_list_can_be_asked_for_while_databases_come_and_go(control: Control) -> None:
    """It shows some of them or not, and never fails."""
    asker = control.with_token(control.token)
    done: list[bool] = []

    def come_and_go() -> int:
        try:
            for _ in range(2):
                control.delete(f"/v1/databases/{make(control)}")
        finally:
            done.append(True)
        return 0

    def look() -> int:
        looks = 0
        while not done:
            assert all(item["state"] in ("creating", "active", "deleting") for item in asker.all("/v1/databases"))
            looks += 1
        return looks

    assert at_once([come_and_go, look])[1] > 0
