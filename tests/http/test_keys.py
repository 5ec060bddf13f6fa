"""API keys: made, listed, changed, rotated, revoked; and that all of it holds on the data plane within five seconds."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.control import Control, Organization, engine, error_of, new_organization
from tests.service import Service, Sql
from tests.waiting import eventually

RECORD = {
    "id",
    "name",
    "hint",
    "scopes",
    "database",
    "state",
    "created_at",
    "expires_at",
    "last_used_at",
    "consistency",
}


def make(control: Control, *scopes: str, **more: Any) -> dict[str, Any]:
    return control.post("/v1/keys", {"name": "k", "scopes": list(scopes) or ["read"], **more})


def refused(sql: Sql) -> bool:
    answer = sql.answer("select 1")
    if answer.status_code == 401:
        error_of(answer, 401, "unauthenticated")
        return True
    assert answer.json()["success"], answer.text
    return False


# -- the routes --------------------------------------------------------------------------------------------------


def test_a_new_key_is_shown_once(control: Control, service: Service) -> None:
    """It works at once; the record has its first and last letters, and the catalog only a hash of it."""
    made = make(control, "write", "read", "write", name="deploy bot ☂")
    assert set(made) == RECORD | {"success", "key"}
    assert made["key"].startswith("svc_k_" + made["id"])
    assert made["hint"] == f"{made['key'][:10]}…{made['key'][-4:]}"
    assert (made["name"], made["scopes"], made["state"]) == ("deploy bot ☂", ["read", "write"], "active")
    assert (made["database"], made["expires_at"], made["last_used_at"]) == (None, None, None)
    assert control.sql(made["key"]).value("select 1") == 1
    assert set(control.get(f"/v1/keys/{made['id']}")) == RECORD | {"success"}
    assert all(set(item) == RECORD for item in control.all("/v1/keys"))
    with engine(service) as connection:
        rows = connection.execute("select row_to_json(k)::text from api_key k where id = %s", [made["id"]]).fetchall()
    assert len(rows) == 1
    assert made["key"][18:-6] not in rows[0][0]


def test_keys_are_listed_in_pages(service: Service) -> None:
    """The first one of the organization first."""
    control = new_organization(service).control
    made = [make(control)["id"] for _ in range(4)]
    assert [item["id"] for item in control.all("/v1/keys", limit=2)][1:] == made
    first = control.get("/v1/keys", limit=1)
    assert [item["name"] for item in first["items"]] == ["first"]
    assert control.get("/v1/keys", limit=5)["next_cursor"] is None


def test_a_key_of_one_database_is_for_that_one(control: Control) -> None:
    """By its name in the record; another one is not found."""
    control.post("/v1/databases", {"name": "mine"})
    made = make(control, database="mine")
    assert made["database"] == "mine"
    control.sql(database="mine")("create table here (x int)")
    assert control.sql(made["key"]).value("select count(*) from here") == 0
    assert control.sql(made["key"], database="mine").value("select count(*) from here") == 0
    error_of(control.sql(made["key"], database="main").answer("select 1"), 404, "not_found")


def test_the_last_use_is_on_record(control: Control) -> None:
    """A moment later."""
    made = make(control)
    assert control.get(f"/v1/keys/{made['id']}")["last_used_at"] is None
    control.sql(made["key"]).value("select 1")
    eventually(lambda: control.get(f"/v1/keys/{made['id']}")["last_used_at"] is not None)
    assert control.get(f"/v1/keys/{made['id']}")["last_used_at"] > made["created_at"]


def test_a_key_is_changed(control: Control) -> None:
    """What is not named stays; new scopes hold on the data plane within five seconds."""
    made = make(control, "read")
    sql = control.sql(made["key"])
    assert sql.fails("create table by_key (x int)")["sqlstate"] in ("25006", "42501")
    changed = control.patch(f"/v1/keys/{made['id']}", {"scopes": ["write"]})
    assert (changed["name"], changed["scopes"], changed["expires_at"]) == ("k", ["write"], None)
    eventually(lambda: sql.answer("create table if not exists by_key (x int)").json()["success"])
    changed = control.patch(f"/v1/keys/{made['id']}", {"name": "renamed", "expires_in": 3600})
    ends = datetime.fromisoformat(changed["expires_at"]) - datetime.fromisoformat(changed["created_at"])
    assert timedelta(seconds=3600) <= ends < timedelta(seconds=3700)
    assert (changed["name"], changed["scopes"]) == ("renamed", ["write"])
    assert control.patch(f"/v1/keys/{made['id']}", {})["expires_at"] == changed["expires_at"]
    assert control.patch(f"/v1/keys/{made['id']}", {"expires_in": None})["expires_at"] is None


def test_a_revoked_key_is_refused_everywhere(control: Control) -> None:
    """Within five seconds; its record stays, and it can be revoked only once."""
    made = make(control, "admin")
    sql, itself = control.sql(made["key"]), control.with_token(made["key"])
    assert not refused(sql)
    revoked = control.delete(f"/v1/keys/{made['id']}")
    assert (revoked["id"], revoked["state"]) == (made["id"], "revoked")
    eventually(lambda: refused(sql))
    itself.refused(401, "unauthenticated", "GET", "/v1/keys")
    itself.refused(401, "unauthenticated", "POST", "/v1/session")
    for method, path, body in (
        ("DELETE", "", None),
        ("PATCH", "", {"name": "x"}),
        ("PATCH", "", {"expires_in": None}),
        ("POST", "/rotate", {}),
    ):
        control.refused(409, "wrong_state", method, f"/v1/keys/{made['id']}{path}", body)
    assert control.get(f"/v1/keys/{made['id']}")["state"] == "revoked"


def test_a_key_may_revoke_itself(control: Control) -> None:
    """It gets its answer, and then nothing more."""
    made = make(control, "admin")
    itself = control.with_token(made["key"])
    assert itself.delete(f"/v1/keys/{made['id']}")["state"] == "revoked"
    eventually(lambda: itself.ask("GET", "/v1/keys").status_code == 401)


def test_a_key_expires(control: Control) -> None:
    """With its sessions, on both planes; then it can only be revoked."""
    made = make(control, "admin", expires_in=1)
    sql = control.sql(made["key"])
    session = control.with_token(made["key"]).ask("POST", "/v1/session")
    eventually(lambda: refused(sql))
    assert control.get(f"/v1/keys/{made['id']}")["state"] == "expired"
    control.with_token(made["key"]).refused(401, "unauthenticated", "GET", "/v1/organization")
    if session.status_code == 201:
        eventually(lambda: refused(control.sql(session.json()["token"])))
    control.refused(409, "wrong_state", "PATCH", f"/v1/keys/{made['id']}", {"expires_in": None})
    control.refused(409, "wrong_state", "POST", f"/v1/keys/{made['id']}/rotate", {})
    assert control.delete(f"/v1/keys/{made['id']}")["state"] == "revoked"


def test_a_rotated_key_has_another_secret(control: Control) -> None:
    """The same id, name and rights; the former secret is refused within five seconds."""
    made = make(control, "write")
    old = control.sql(made["key"])
    assert not refused(old)
    rotated = control.post(f"/v1/keys/{made['id']}/rotate", status=200)
    assert set(rotated) == RECORD | {"success", "key"}
    assert rotated["key"] != made["key"]
    assert rotated["hint"] == f"{rotated['key'][:10]}…{rotated['key'][-4:]}"
    assert (rotated["id"], rotated["scopes"], rotated["created_at"]) == (made["id"], ["write"], made["created_at"])
    assert not refused(control.sql(rotated["key"]))
    eventually(lambda: refused(old))


def test_sessions_end_with_the_secret_that_opened_them(control: Control) -> None:
    """Whoever has found a secret keeps nothing of it, once the key is rotated and the grace over."""
    made = make(control, "write")

    def open_by(key: str) -> Sql:
        return control.sql(control.with_token(None).post("/v1/session", {"api_key": key})["token"])

    first = open_by(made["key"])
    second_key = control.post(f"/v1/keys/{made['id']}/rotate", {"grace_seconds": 600}, status=200)["key"]
    during, second = open_by(made["key"]), open_by(second_key)
    assert not any(map(refused, (first, during, second)))
    third_key = control.post(f"/v1/keys/{made['id']}/rotate", {"grace_seconds": 1}, status=200)["key"]
    third = open_by(third_key)
    eventually(lambda: all(map(refused, (first, during, second))))
    assert not refused(third)


def test_a_grace_lets_both_secrets_work(control: Control) -> None:
    """For so long; then only the new one does."""
    made = make(control)
    old = control.sql(made["key"])
    rotated = control.post(f"/v1/keys/{made['id']}/rotate", {"grace_seconds": 600}, status=200)
    new = control.sql(rotated["key"])
    assert not refused(old)
    assert not refused(new)
    last = control.post(f"/v1/keys/{made['id']}/rotate", {"grace_seconds": 1}, status=200)
    eventually(lambda: refused(old))
    eventually(lambda: refused(new))
    assert not refused(control.sql(last["key"]))
    control.delete(f"/v1/keys/{made['id']}")
    eventually(lambda: refused(control.sql(last["key"])))


# -- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"expires_in": 0},
        {"expires_in": -1},
        {"expires_in": 1.5},
        {"expires_in": "1"},
        {"expires_in": 10**12},
        {"expires_in": 10**30},
        {"expires_at": "2020-01-01T00:00:00Z"},
        {"scopes": []},
        {"scopes": ["root"]},
        {"scopes": "read"},
        {"scopes": None},
        {"name": ""},
        {"name": "x" * 201},
        {"name": "a\0b"},
        {"name": "a\nb"},
        {"name": None},
        {"database": "Main"},
        {"database": "main\n"},
        {"database": "main\0"},
        {"id": "chosen"},
        {"organization": "x"},
        {"state": "active"},
    ],
)
def test_a_field_that_is_wrong_is_refused(control: Control, wrong: dict[str, Any]) -> None:
    """When it is made and, where it can be changed, when it is changed; nothing is."""
    before = control.all("/v1/keys")
    control.refused(400, "malformed_request", "POST", "/v1/keys", {"name": "k", "scopes": ["read"], **wrong})
    control.refused(400, "malformed_request", "PATCH", f"/v1/keys/{before[0]['id']}", wrong)
    assert [{**key, "last_used_at": None} for key in control.all("/v1/keys")] == [
        {**key, "last_used_at": None} for key in before
    ]


@pytest.mark.parametrize(
    "body", [{"grace_seconds": -1}, {"grace_seconds": 10**9}, {"grace": 1}, {"grace_seconds": None}]
)
def test_a_grace_that_is_wrong_is_refused(control: Control, body: Any) -> None:
    """The secret stays the same."""
    made = make(control)
    control.refused(400, "malformed_request", "POST", f"/v1/keys/{made['id']}/rotate", body)
    control.refused(400, "malformed_request", "POST", f"/v1/keys/{made['id']}/rotate?grace_seconds=5")
    control.refused(400, "malformed_request", "DELETE", f"/v1/keys/{made['id']}?x=1")
    assert control.get(f"/v1/keys/{made['id']}")["hint"] == made["hint"]
    assert not refused(control.sql(made["key"]))


def test_a_key_that_is_not_ones_own_is_not_found(control: Control, other: Organization) -> None:
    """Unknown, or of another organization: there is no difference, and nothing happens to it."""
    theirs = make(other.control)
    for id in (theirs["id"], "nowhere", theirs["id"] + "%00", "%27"):
        control.refused(404, "not_found", "GET", f"/v1/keys/{id}")
        control.refused(404, "not_found", "PATCH", f"/v1/keys/{id}", {"name": "mine"})
        control.refused(404, "not_found", "DELETE", f"/v1/keys/{id}")
        control.refused(404, "not_found", "POST", f"/v1/keys/{id}/rotate", {})
    assert {**other.control.get(f"/v1/keys/{theirs['id']}"), "key": theirs["key"]} == theirs
    assert theirs["id"] not in [key["id"] for key in control.all("/v1/keys")]


def test_a_key_is_made_for_no_database_that_is_not_ones_own(control: Control, other: Organization) -> None:
    """Unknown, or of another organization."""
    body = {"name": "k", "scopes": ["read"]}
    for name in ("nowhere", "secret-plans"):
        control.refused(404, "not_found", "POST", "/v1/keys", {**body, "database": name})


def test_nobody_gives_or_touches_rights_that_they_have_not(operator: Control) -> None:
    """An admin makes no operator, raises no key to one, and neither changes, rotates nor revokes an operator's key."""
    admin = operator.with_token(make(operator, "admin")["key"])
    above = make(operator, "operator")
    below = make(operator, "read")
    before = len(operator.all("/v1/keys"))
    body = {"name": "k", "scopes": ["read", "operator"]}
    admin.refused(403, "forbidden", "POST", "/v1/keys", body)
    admin.refused(403, "forbidden", "PATCH", f"/v1/keys/{below['id']}", {"scopes": ["operator"]})
    admin.refused(403, "forbidden", "PATCH", f"/v1/keys/{above['id']}", {"name": "x"})
    admin.refused(403, "forbidden", "PATCH", f"/v1/keys/{above['id']}", {"scopes": ["read"]})
    admin.refused(403, "forbidden", "POST", f"/v1/keys/{above['id']}/rotate", {})
    admin.refused(403, "forbidden", "DELETE", f"/v1/keys/{above['id']}")
    assert len(operator.all("/v1/keys")) == before
    assert {**operator.get(f"/v1/keys/{above['id']}"), "key": above["key"]} == above
    assert operator.get(f"/v1/keys/{below['id']}")["scopes"] == ["read"]


def test_a_session_gives_no_more_than_it_has_itself(operator: Control) -> None:
    """Narrower than its key, it makes keys as narrow."""
    session = operator.with_token(operator.post("/v1/session", {"scopes": ["admin"]})["token"])
    session.refused(403, "forbidden", "POST", "/v1/keys", {"name": "k", "scopes": ["operator"]})
    assert make(session, "admin")["scopes"] == ["admin"]


@pytest.mark.parametrize("scopes", [["read"], ["write"], ["operator"]])
def test_only_an_admin_manages_keys(operator: Control, scopes: list[str]) -> None:
    """Every route of them, also for the key itself."""
    made = make(operator, *scopes)
    asker = operator.with_token(made["key"])
    for method, path, body in (
        ("GET", "/v1/keys", None),
        ("POST", "/v1/keys", {"name": "x", "scopes": ["read"]}),
        ("GET", f"/v1/keys/{made['id']}", None),
        ("PATCH", f"/v1/keys/{made['id']}", {"name": "x"}),
        ("DELETE", f"/v1/keys/{made['id']}", None),
        ("POST", f"/v1/keys/{made['id']}/rotate", {}),
    ):
        asker.refused(403, "forbidden", method, path, body)


def test_a_key_of_one_database_sees_and_makes_keys_of_that_one(control: Control) -> None:
    """What it makes is bound as it is itself."""
    control.post("/v1/databases", {"name": "narrow"})
    wide, bound = make(control, "read"), make(control, "admin", database="narrow")
    asker = control.with_token(bound["key"])
    assert [key["id"] for key in asker.all("/v1/keys")] == [bound["id"]]
    asker.refused(404, "not_found", "GET", f"/v1/keys/{wide['id']}")
    asker.refused(404, "not_found", "DELETE", f"/v1/keys/{wide['id']}")
    asker.refused(404, "not_found", "POST", "/v1/keys", {"name": "k", "scopes": ["read"], "database": "main"})
    assert make(asker, "read")["database"] == "narrow"
