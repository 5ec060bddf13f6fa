"""Sessions: opened with a key, used on both planes, refreshed, ended; and how a browser goes through all of it."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.control import Control, Organization, error_of, new_organization
from tests.service import Service, running_service
from tests.waiting import eventually

DAY = timedelta(hours=24)


def time_of(text: str) -> datetime:
    return datetime.fromisoformat(text)


def login(control: Control, **wishes: Any) -> Control:
    return control.with_token(control.post("/v1/session", wishes)["token"])


def token_of(control: Control) -> str:
    assert control.token is not None
    return control.token


# -- the four routes ---------------------------------------------------------------------------------------------


def test_a_key_opens_a_session_of_24_hours(control: Control, organization: Organization) -> None:
    """The answer has the token once and the record of the session."""
    made = control.post("/v1/session")
    assert set(made) == {"success", "token", "expires_at", "expires_in", "session"}
    assert made["token"].startswith("svc_s_")
    assert made["expires_in"] == 86_400
    session = made["session"]
    assert set(session) == {"id", "created_at", "expires_at", "organization", "database", "scopes"}
    assert time_of(session["expires_at"]) - time_of(session["created_at"]) == DAY
    assert made["expires_at"] == session["expires_at"]
    assert session["organization"] == organization.id
    assert session["scopes"] == ["admin"]
    assert session["database"] is None


def test_the_key_may_stand_in_the_body(control: Control) -> None:
    """As a form of a web page sends it."""
    made = control.with_token(None).post("/v1/session", {"api_key": control.token})
    assert control.with_token(made["token"]).get("/v1/session")["session"] == made["session"]


def test_a_refresh_adds_24_hours_and_keeps_the_token(control: Control) -> None:
    """Counted from when it would have ended, also the second time."""
    made = control.post("/v1/session")
    session = control.with_token(made["token"])
    ends = time_of(made["expires_at"])
    for times in (1, 2):
        refreshed = session.post("/v1/session/refresh", status=200)
        assert set(refreshed) == {"success", "expires_at", "session"}
        assert time_of(refreshed["expires_at"]) == ends + times * DAY
        assert refreshed["session"]["id"] == made["session"]["id"]
    assert session.get("/v1/session")["session"] == refreshed["session"]


def test_after_a_log_out_the_token_is_refused_on_both_planes(control: Control) -> None:
    """And by every session route."""
    session = login(control)
    sql = session.sql()
    assert sql.value("select 1") == 1
    assert session.delete("/v1/session") == {"success": True, "state": "destroyed"}
    error_of(sql.answer("select 1"), 401, "unauthenticated")
    for method, path in (("GET", "/v1/session"), ("POST", "/v1/session/refresh"), ("DELETE", "/v1/session")):
        answer = session.ask(method, path)
        error_of(answer, 401, "unauthenticated")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert control.sql().value("select 1") == 1, "the key and its other sessions go on"


def test_the_flow_of_a_browser(control: Control) -> None:
    """Log in with the key in the body, list, query, refresh, log out: then nothing works any more."""
    made = control.with_token(None).post("/v1/session", {"api_key": control.token})
    session = control.with_token(made["token"])
    assert "main" in [database["name"] for database in session.get("/v1/databases")["items"]]
    assert session.sql().rows("select 40 + 2 as answer") == [{"answer": 42}]
    assert time_of(session.post("/v1/session/refresh", status=200)["expires_at"]) > time_of(made["expires_at"])
    session.delete("/v1/session")
    session.refused(401, "unauthenticated", "GET", "/v1/databases")
    error_of(session.sql().answer("select 1"), 401, "unauthenticated")


# -- rights ------------------------------------------------------------------------------------------------------


def test_a_session_may_have_fewer_rights_than_its_key(control: Control) -> None:
    """The engine itself refuses what it may not write; the control plane what it may not manage."""
    session = login(control, scopes=["read"])
    assert session.get("/v1/session")["session"]["scopes"] == ["read"]
    assert session.sql().value("select 1") == 1
    assert session.sql().fails("create table t (x int)")["sqlstate"] in ("25006", "42501")
    session.refused(403, "forbidden", "GET", "/v1/databases")


def test_a_session_may_be_bound_to_one_database(control: Control) -> None:
    """It is that one which it queries, and the only one that it sees."""
    control.post("/v1/databases", {"name": "bound"})
    session = login(control, database="bound")
    assert session.get("/v1/session")["session"]["database"] == "bound"
    session.sql()("create table only_here (x int)")
    assert control.sql(database="bound").value("select count(*) from only_here") == 0
    error_of(session.sql(database="main").answer("select 1"), 404, "not_found")
    assert [database["name"] for database in session.get("/v1/databases")["items"]] == ["bound"]


def test_a_session_loses_what_its_key_loses_and_keeps_the_rest(control: Control) -> None:
    """An admin's session whose key may only read any more still reads."""
    key = control.post("/v1/keys", {"name": "k", "scopes": ["admin"]})
    session = login(control.with_token(key["key"]))
    sql = session.sql()
    sql("create table if not exists narrowed (x int)")
    control.patch(f"/v1/keys/{key['id']}", {"scopes": ["read"]})
    eventually(lambda: session.ask("GET", "/v1/databases").status_code == 403)
    assert sql.value("select count(*) from narrowed") == 0
    assert sql.fails("insert into narrowed values (1)")["sqlstate"] in ("25006", "42501")


def test_a_session_ends_with_its_key(control: Control) -> None:
    """On the data plane within five seconds, on the control plane too."""
    key = control.post("/v1/keys", {"name": "k", "scopes": ["admin"]})
    session = login(control.with_token(key["key"]))
    sql = session.sql()
    assert sql.value("select 1") == 1
    control.delete(f"/v1/keys/{key['id']}")
    eventually(lambda: sql.answer("select 1").status_code == 401)
    session.refused(401, "unauthenticated", "GET", "/v1/session")


# -- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        {"api_keys": "x"},
        {"scopes": []},
        {"scopes": ["root"]},
        {"scopes": "read"},
        {"database": 7},
        {"database": ""},
        {"database": "main\0x"},
        {"api_key": None, "more": 1},
        [],
        "svc_k_",
        7,
    ],
)
def test_a_body_that_is_not_what_the_route_takes_is_refused(control: Control, body: Any) -> None:
    """With the key as Bearer, so that only the body is wrong."""
    control.refused(400, "malformed_request", "POST", "/v1/session", body)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/session"), ("GET", "/v1/session"), ("POST", "/v1/session/refresh"), ("DELETE", "/v1/session")],
)
def test_an_unknown_parameter_of_the_url_is_refused(control: Control, method: str, path: str) -> None:
    """Nothing is opened, extended or ended."""
    session = login(control)
    asker = control if path == "/v1/session" and method == "POST" else session
    before = session.get("/v1/session")
    asker.refused(400, "malformed_request", method, path + "?scope=read")
    assert session.get("/v1/session") == before


def test_a_key_in_the_body_must_be_a_good_one(control: Control) -> None:
    """A bad one is 401, not 400."""
    nobody = control.with_token(None)
    for key in ("", "svc_k_", "x" * 57, token_of(control)[:-1] + "_", "svc_k_\u00e9" + "0" * 50):
        nobody.refused(401, "unauthenticated", "POST", "/v1/session", {"api_key": key})
    nobody.refused(401, "unauthenticated", "POST", "/v1/session", {})
    nobody.refused(401, "unauthenticated", "POST", "/v1/session")


def test_the_key_is_given_once(control: Control) -> None:
    """As Bearer or in the body."""
    control.refused(400, "malformed_request", "POST", "/v1/session", {"api_key": control.token})


def test_a_session_opens_no_other_session(control: Control) -> None:
    """Neither as Bearer nor in the body."""
    session = login(control)
    session.refused(403, "forbidden", "POST", "/v1/session")
    control.with_token(None).refused(403, "forbidden", "POST", "/v1/session", {"api_key": session.token})


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/session"), ("POST", "/v1/session/refresh"), ("DELETE", "/v1/session")]
)
def test_a_key_is_no_session(control: Control, method: str, path: str) -> None:
    """The routes about a session need its token."""
    control.refused(403, "forbidden", method, path)


def test_nobody_gets_rights_that_the_key_has_not(control: Control) -> None:
    """Neither a scope nor a database."""
    control.refused(403, "forbidden", "POST", "/v1/session", {"scopes": ["operator"]})
    reader = control.with_token(control.post("/v1/keys", {"name": "r", "scopes": ["read"], "database": "main"})["key"])
    reader.refused(403, "forbidden", "POST", "/v1/session", {"scopes": ["read", "write"]})


def test_a_session_for_a_database_that_is_not_the_keys_is_not_found(control: Control, other: Organization) -> None:
    """Unknown, of another organization, or outside of the key's own."""
    control.post("/v1/databases", {"name": "elsewhere"})
    bound = control.with_token(control.post("/v1/keys", {"name": "b", "scopes": ["read"], "database": "main"})["key"])
    for asker, name in (
        (control, "nowhere"),
        (control, "secret-plans"),
        (bound, "elsewhere"),
    ):
        asker.refused(404, "not_found", "POST", "/v1/session", {"database": name})


# -- lifetime ----------------------------------------------------------------------------------------------------


def lifetime_s(session: dict[str, Any]) -> float:
    return (time_of(session["expires_at"]) - time_of(session["created_at"])).total_seconds()


def test_a_session_can_be_shorter_and_stays_so(control: Control) -> None:
    """A refresh adds as much as it was to last, not a day."""
    opened = control.post("/v1/session", {"expires_in": 600, "scopes": ["read"], "database": "main"})
    assert (opened["expires_in"], lifetime_s(opened["session"])) == (600, 600)
    refreshed = control.with_token(opened["token"]).post("/v1/session/refresh", status=200)
    assert lifetime_s(refreshed["session"]) == 1200


@pytest.mark.parametrize("seconds", [0, -1, 86_401, 10**9])
def test_a_session_cannot_be_longer_than_others(control: Control, seconds: int) -> None:
    """Nor over before it begins."""
    error = control.refused(400, "malformed_request", "POST", "/v1/session", {"expires_in": seconds})
    assert "`expires_in` must be at" in error["message"]


@pytest.fixture(scope="module")
def hasty() -> Iterator[Service]:
    """A service whose sessions live for two seconds, and for at most five by being refreshed."""
    with running_service("--session-lifetime-s", "2", "--session-cap-s", "5") as running:
        yield running


def test_a_session_expires(hasty: Service) -> None:
    """Both planes refuse it, and no refresh brings it back."""
    control = Control(hasty, hasty.key)
    session = login(control)
    sql = session.sql()
    assert sql.value("select 1") == 1
    eventually(lambda: sql.answer("select 1").status_code == 401)
    session.refused(401, "unauthenticated", "POST", "/v1/session/refresh")
    session.refused(401, "unauthenticated", "GET", "/v1/session")


def test_a_cap_bounds_what_refreshes_add_up_to(hasty: Service) -> None:
    """Counted from the creation of the session."""
    made = Control(hasty, hasty.key).post("/v1/session")
    session = Control(hasty, made["token"])
    created = time_of(made["session"]["created_at"])
    ends = [time_of(session.post("/v1/session/refresh", status=200)["expires_at"]) for _ in range(3)]
    assert ends == [created + timedelta(seconds=4), created + timedelta(seconds=5), created + timedelta(seconds=5)]


# -- those of the organization -----------------------------------------------------------------------------------


def listed(control: Control) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in control.all("/v1/sessions", limit=2)}


def test_an_admin_sees_the_sessions_that_are_open(service: Service) -> None:
    """With the key of each, and which one is asking; those that have ended are not there."""
    control = new_organization(service).control
    key = control.post("/v1/keys", {"name": "k", "scopes": ["read"]})
    assert listed(control) == {}
    own, narrow = control.post("/v1/session"), control.post("/v1/session", {"scopes": ["read"], "database": "main"})
    of_key = control.with_token(key["key"]).post("/v1/session")
    short = control.post("/v1/session", {"expires_in": 1})["session"]["id"]
    gone = login(control)
    gone.delete("/v1/session")
    eventually(lambda: short not in listed(control))
    seen = listed(control.with_token(own["token"]))
    assert list(seen) == [made["session"]["id"] for made in (own, narrow, of_key)], "in the order of their making"
    assert [one["current"] for one in seen.values()] == [True, False, False]
    first, second, third = seen.values()
    assert first["key"] == second["key"] != third["key"] == key["id"]
    for made, one in ((own, first), (narrow, second), (of_key, third)):
        assert {name: value for name, value in one.items() if name not in ("key", "current")} == made["session"]
    control.with_token(key["key"]).refused(403, "forbidden", "GET", "/v1/sessions")


def test_an_admin_ends_the_session_of_another(control: Control) -> None:
    """At once, on both planes, once; the audit has it."""
    session = login(control)
    sql = session.sql()
    assert sql.value("select 1") == 1
    id = session.get("/v1/session")["session"]["id"]
    assert control.delete(f"/v1/sessions/{id}") == {"success": True, "state": "destroyed"}
    error_of(sql.answer("select 1"), 401, "unauthenticated")
    control.refused(404, "not_found", "DELETE", f"/v1/sessions/{id}")
    entry = control.get("/v1/audit", limit=1)["items"][0]
    assert (entry["action"], entry["subject"], entry["session"]) == ("session.destroy", id, None)


def test_sessions_of_others_are_not_there(service: Service, operator: Control, control: Control) -> None:
    """Of another organization, or of another database for a token of one; and nobody ends one that may do more."""
    foreign = operator.post("/v1/session")["session"]["id"]
    assert foreign not in listed(control)
    control.refused(404, "not_found", "DELETE", f"/v1/sessions/{foreign}")
    control.post("/v1/databases", {"name": "fenced"})
    bound = control.with_token(
        control.post("/v1/keys", {"name": "k", "scopes": ["admin"], "database": "fenced"})["key"]
    )
    inside = bound.post("/v1/session")["session"]["id"]
    outside = control.post("/v1/session")["session"]["id"]
    assert set(listed(bound)) == {inside}
    bound.refused(404, "not_found", "DELETE", f"/v1/sessions/{outside}")
    assert {inside, outside} <= set(listed(control))
    admin = operator.with_token(operator.post("/v1/keys", {"name": "k", "scopes": ["admin"]})["key"])
    admin.refused(403, "forbidden", "DELETE", f"/v1/sessions/{foreign}")
    assert operator.delete(f"/v1/sessions/{foreign}")["state"] == "destroyed"


def test_every_token_learns_the_names_of_its_databases(control: Control, organization: Organization) -> None:
    """From its organization: those that it can use, and which one is used where none is named."""
    control.post("/v1/databases", {"name": "named"})
    reader = control.with_token(control.post("/v1/keys", {"name": "k", "scopes": ["read"]})["key"])
    shown = reader.get("/v1/organization")["databases"]
    assert {"name": "main", "default": True} in shown
    assert {"name": "named", "default": False} in shown
    bound = login(control, database="named", scopes=["read"])
    assert bound.get("/v1/organization")["databases"] == [{"name": "named", "default": False}]
