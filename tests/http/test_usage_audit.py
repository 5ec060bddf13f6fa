"""What an organization used, by hour and database, and who did what on the control plane."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import psycopg
import pytest

from tests.control import Control, Organization, new_organization
from tests.needs import Abilities
from tests.servers import needs_linux
from tests.service import Service, Sql
from tests.waiting import eventually

USED = ("requests", "rows", "bytes", "errors")
ENTRY = {"id", "at", "action", "subject", "key", "session", "address", "request_id", "count", "last_at"}


# -- usage -------------------------------------------------------------------------------------------------------


def used(control: Control, database: str) -> dict[str, int]:
    items = [item for item in control.get("/v1/usage")["items"] if item["database"] == database]
    return {name: sum(item[name] for item in items) for name in USED}


@pytest.fixture(scope="module")
def consumer(service: Service) -> Organization:
    """Whose database `counted` is used by the data plane alone, so that nothing else is counted there."""
    made = new_organization(service)
    made.control.post("/v1/databases", {"name": "counted"})
    return made


@pytest.fixture
def sql(consumer: Organization) -> Sql:
    return consumer.control.sql(database="counted")


def test_requests_rows_bytes_and_errors_are_counted(consumer: Organization, sql: Sql) -> None:
    """By database; bytes are those of the bodies. A refused statement is an error, whatever its status."""
    control = consumer.control
    before = used(control, "counted")
    answers = [
        sql.answer("select generate_series(1, 10) as n"),
        sql.answer("select nonsense"),
        sql.answer("selec"),
        sql.client.post("/v1/transaction", json={"statements": ["select 1", "select generate_series(1, 3)"]}),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 400, 200]
    expected = {
        "requests": 4,
        "rows": 14,
        "bytes": sum(len(answer.content) for answer in answers),
        "errors": 2,
    }
    eventually(lambda: used(control, "counted")["requests"] == before["requests"] + 4)
    assert {name: used(control, "counted")[name] - before[name] for name in USED} == expected


def test_a_stream_is_counted(consumer: Organization, sql: Sql) -> None:
    """Its rows, and every byte that was sent as an event."""
    before = used(consumer.control, "counted")
    answer = sql.answer("/*+ STREAM */ select generate_series(1, 100) as n")
    assert answer.headers["content-type"].startswith("text/event-stream")
    eventually(lambda: used(consumer.control, "counted")["requests"] == before["requests"] + 1)
    after = used(consumer.control, "counted")
    assert after["rows"] - before["rows"] == 100
    assert after["bytes"] - before["bytes"] == len(answer.content)
    assert after["errors"] == before["errors"]


def test_usage_is_by_the_hour(consumer: Organization, sql: Sql) -> None:
    """Newest first, of the last day unless a time is named."""
    control = consumer.control
    sql("select 1")
    eventually(lambda: used(control, "counted")["requests"] > 0)
    items = control.get("/v1/usage")["items"]
    assert all(set(item) == {"hour", "database", *USED} for item in items)
    hours = [datetime.fromisoformat(item["hour"]) for item in items]
    assert hours == sorted(hours, reverse=True)
    assert all(hour.minute == hour.second == hour.microsecond == 0 for hour in hours)
    now = datetime.now(UTC)
    assert control.get("/v1/usage", since=(now + timedelta(hours=1)).isoformat())["items"] == []
    assert control.get("/v1/usage", until=(now - timedelta(hours=2)).isoformat())["items"] == []
    since, until = (now - timedelta(hours=2)).isoformat(), (now + timedelta(hours=2)).isoformat()
    assert [item["database"] for item in control.get("/v1/usage", since=since, until=until)["items"]] == [
        item["database"] for item in items
    ]


def test_usage_has_pages(service: Service, consumer: Organization) -> None:
    """They have every hour and database once, in the order of the whole."""
    control = consumer.control
    with psycopg.connect(service.conninfo("tuplegate"), autocommit=True) as metadata:
        metadata.execute(
            "insert into usage select %s, d.id, date_trunc('hour', now()) - h * interval '1 hour', 1, 1, 1, 0"
            " from database d, generate_series(100, 104) h where d.organization = %s",
            [consumer.id, consumer.id],
        )
    since = (datetime.now(UTC) - timedelta(hours=200)).isoformat()
    until = (datetime.now(UTC) - timedelta(hours=50)).isoformat()
    whole = control.get("/v1/usage", since=since, until=until)
    assert whole["next_cursor"] is None
    assert len(whole["items"]) >= 5
    paged: list[dict[str, object]] = []
    cursor: dict[str, str] = {}
    while True:
        page = control.get("/v1/usage", since=since, until=until, limit=2, **cursor)
        assert len(page["items"]) <= 2
        paged += page["items"]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert paged == whole["items"]


def test_nobody_sees_what_others_used(consumer: Organization, other: Organization, sql: Sql) -> None:
    """Only what is their own organization's."""
    sql("select 1")
    eventually(lambda: used(consumer.control, "counted")["requests"] > 0)
    assert "counted" not in [item["database"] for item in other.control.get("/v1/usage")["items"]]


@pytest.mark.parametrize(
    "query",
    [
        "since=yesterday",
        "since=",
        "until=2026-13-01",
        "since=9999-12-31T23:59:59-23:59",
        "until=0001-01-01T00:00:00%2B23:59",
        "since=2026-01-01&since=2026-01-02",
        "hour=1",
        "limit=0",
        "cursor=zzz",
    ],
)
def test_a_time_that_is_none_is_refused(control: Control, query: str) -> None:
    """And a parameter that the route does not know."""
    control.refused(400, "malformed_request", "GET", f"/v1/usage?{query}")


# -- audit -------------------------------------------------------------------------------------------------------


def test_every_change_has_one_entry_with_its_actor_and_request(service: Service, abilities: Abilities) -> None:
    """Newest first; what only asks, or is refused, has none."""
    organization = new_organization(service)
    control = organization.control
    key_id = control.all("/v1/keys")[0]["id"]
    assert control.all("/v1/audit") == []
    expected: list[tuple[str, str, str, str | None, str]] = []

    def done(asker: Control, action: str, method: str, path: str, body: Any = None, by: str = key_id,
             session: str | None = None, subject: str | None = None) -> Any:  # fmt: skip
        answer = asker.ask(method, path, body)
        made = answer.json()
        assert made["success"], made
        what = subject or made.get("session", made).get("id")
        expected.insert(0, (action, what, by, session, answer.headers["x-request-id"]))
        return made

    done(control, "database.create", "POST", "/v1/databases", {"name": "a"}, subject="a")
    action, more = ("clone", {"clone_of": "a"}) if abilities.can("postgresql") else ("create", {})
    done(control, f"database.{action}", "POST", "/v1/databases", {"name": "b", **more}, subject="b")
    done(control, "database.change", "PATCH", "/v1/databases/b", {"name": "c"}, subject="c")
    done(control, "database.change", "PATCH", "/v1/databases/c",
         {"default": True, "delete_protection": False}, subject="c")  # fmt: skip
    done(control, "database.delete", "DELETE", "/v1/databases/a", subject="a")
    key = done(control, "key.create", "POST", "/v1/keys", {"name": "k", "scopes": ["admin"]})
    done(control, "key.change", "PATCH", f"/v1/keys/{key['id']}", {"name": "l"})
    rotated = done(control, "key.rotate", "POST", f"/v1/keys/{key['id']}/rotate")
    holder = control.with_token(rotated["key"])
    opened = done(holder, "session.create", "POST", "/v1/session", by=key["id"])
    session, id = control.with_token(opened["token"]), opened["session"]["id"]
    done(session, "session.refresh", "POST", "/v1/session/refresh", by=key["id"], session=id)
    done(session, "key.create", "POST", "/v1/keys", {"name": "m", "scopes": ["read"]}, by=key["id"], session=id)
    done(session, "session.destroy", "DELETE", "/v1/session", by=key["id"], session=id, subject=id)
    done(control, "key.revoke", "DELETE", f"/v1/keys/{key['id']}")

    control.refused(409, "already_exists", "POST", "/v1/databases", {"name": "main"})
    control.refused(404, "not_found", "DELETE", "/v1/databases/nowhere")
    control.refused(403, "forbidden", "POST", "/v1/keys", {"name": "k", "scopes": ["operator"]})
    control.refused(400, "malformed_request", "POST", "/v1/keys", {"name": "k"})
    control.get("/v1/databases")

    entries = control.all("/v1/audit")
    assert all(set(entry) == ENTRY for entry in entries)
    assert [tuple(entry[name] for name in ("action", "subject", "key", "session", "request_id")) for entry in entries
            ] == expected  # fmt: skip
    times = [datetime.fromisoformat(entry["at"]) for entry in entries]
    assert times == sorted(times, reverse=True)
    assert control.all("/v1/audit", limit=3) == entries, "page by page"
    assert control.get("/v1/audit", limit=len(entries))["next_cursor"] is None


@needs_linux
def test_an_entry_has_the_address_that_the_request_came_from(service: Service, control: Control) -> None:
    """As the service sees it, whatever a header says."""
    headers = {"Authorization": f"Bearer {control.token}", "X-Forwarded-For": "192.0.2.1", "Forwarded": "for=192.0.2.1"}
    transport = httpx.HTTPTransport(local_address="127.0.0.7", verify=False)
    with httpx.Client(base_url=service.control_url, headers=headers, transport=transport) as client:
        made = client.post("/v1/keys", json={"name": "from afar", "scopes": ["read"]}).json()
    control.delete(f"/v1/keys/{made['id']}")
    entries = [
        (entry["action"], entry["address"]) for entry in control.all("/v1/audit") if entry["subject"] == made["id"]
    ]
    assert entries == [("key.revoke", "127.0.0.1"), ("key.create", "127.0.0.7")]


def test_what_was_done_on_the_machine_itself_has_no_address(operator: Control, read_key: str) -> None:
    """As the key that was made there."""
    [entry] = [entry for entry in operator.all("/v1/audit") if entry["subject"] in read_key]
    assert (entry["action"], entry["address"]) == ("key.create", None)


def test_what_an_operator_does_is_in_the_operators_audit(operator: Control) -> None:
    """The organization concerned is the subject; it does not see the operator's requests."""
    made = operator.post("/v1/organizations", {"name": "audited"})
    operator.patch(f"/v1/organizations/{made['id']}", {"tier": "unlimited"})
    assert operator.with_token(made["key"]).all("/v1/audit") == []
    operator.delete(f"/v1/organizations/{made['id']}")
    entries = operator.get("/v1/audit", limit=3)["items"]
    assert [(entry["action"], entry["subject"]) for entry in entries] == [
        ("organization.delete", made["id"]),
        ("organization.change", made["id"]),
        ("organization.create", "audited"),
    ]


def test_nobody_sees_what_others_did(control: Control, other: Organization) -> None:
    """Neither page by page nor by a cursor that was given to somebody else."""
    made = other.control.post("/v1/keys", {"name": "theirs", "scopes": ["read"]})
    entry = other.control.get("/v1/audit", limit=1)["items"][0]
    assert entry["subject"] == made["id"]
    own = control.all("/v1/audit") + control.get("/v1/audit", cursor=str(entry["id"] + 1))["items"]
    assert made["id"] not in [item["subject"] for item in own]
    assert {item["key"] for item in own}.isdisjoint({entry["key"]})


def test_what_a_key_does_again_and_again_is_counted(service: Service) -> None:
    """One entry an hour, of the first time: a script that opens a session for each call does not fill the audit."""
    organization = new_organization(service)
    control = organization.control
    first = control.post("/v1/session")
    sessions = [first, *(control.post("/v1/session") for _ in range(4))]
    for session in sessions:
        holder = control.with_token(session["token"])
        holder.post("/v1/session/refresh", status=200)
        holder.delete("/v1/session")
    by_action: dict[str, list[dict[str, Any]]] = {}
    for entry in control.all("/v1/audit"):
        by_action.setdefault(entry["action"], []).append(entry)
    hours = len(by_action["session.create"])  # one may have begun meanwhile
    assert hours <= 2
    assert sum(entry["count"] for entry in by_action["session.create"]) == 5
    assert by_action["session.create"][-1]["subject"] == first["session"]["id"]
    assert sum(entry["count"] for entry in by_action["session.destroy"]) == 5
    assert sum(entry["count"] for entry in by_action["session.refresh"]) == 5
    if hours == 1:
        [entry] = by_action["session.create"]
        assert datetime.fromisoformat(entry["at"]) < datetime.fromisoformat(entry["last_at"])


def test_a_session_that_an_admin_ends_is_an_entry_of_its_own(control: Control) -> None:
    """As every change that concerns somebody else."""
    opened = [control.post("/v1/session")["session"]["id"] for _ in range(3)]
    for id in opened:
        control.delete(f"/v1/sessions/{id}")
    entries = [entry for entry in control.all("/v1/audit") if entry["action"] == "session.destroy"]
    assert [entry["subject"] for entry in entries[:3]] == opened[::-1]
    assert all((entry["count"], entry["last_at"]) == (1, None) for entry in entries[:3])


def test_no_secret_is_in_the_audit(control: Control) -> None:
    """Neither of a key nor of a session."""
    key = control.post("/v1/keys", {"name": "k", "scopes": ["read"]})["key"]
    token = control.post("/v1/session")["token"]
    text = control.ask("GET", "/v1/audit").text
    assert key[18:] not in text
    assert token[18:] not in text


@pytest.mark.parametrize("scopes", [["read"], ["write"], ["operator"]])
def test_only_an_admin_sees_usage_and_audit(operator: Control, scopes: list[str]) -> None:
    """Of the organization that they belong to."""
    asker = operator.with_token(operator.post("/v1/keys", {"name": "k", "scopes": scopes})["key"])
    asker.refused(403, "forbidden", "GET", "/v1/usage")
    asker.refused(403, "forbidden", "GET", "/v1/audit")


# -- tokens that are bound to one database -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def divided(service: Service) -> Organization:
    """With a second database, `annex`."""
    made = new_organization(service)
    made.control.post("/v1/databases", {"name": "annex"})
    return made


@pytest.fixture(params=["key", "session"])
def bound(divided: Organization, request: pytest.FixtureRequest) -> Control:
    """An admin of `annex` alone, by its key or by a session that was narrowed so."""
    control = divided.control
    if request.param == "session":
        return control.with_token(control.post("/v1/session", {"database": "annex"})["token"])
    return control.with_token(control.post("/v1/keys", {"name": "k", "scopes": ["admin"], "database": "annex"})["key"])


def test_who_is_bound_sees_the_usage_of_that_database_alone(divided: Organization, bound: Control) -> None:
    """What the others used is not theirs to know."""
    control = divided.control
    for database in ("main", "annex"):
        control.sql(database=database)("select 1")
        eventually(lambda database=database: used(control, database)["requests"] > 0)  # type: ignore[misc]
    assert {item["database"] for item in bound.get("/v1/usage")["items"]} == {"annex"}
    assert {item["database"] for item in control.get("/v1/usage")["items"]} == {"main", "annex"}


def test_who_is_bound_sees_what_was_done_with_that_database_alone(divided: Organization, bound: Control) -> None:
    """Its own changes, whoever made them, its keys and its sessions; page by page too."""
    control = divided.control
    unbound = control.post("/v1/keys", {"name": "all", "scopes": ["read"]})
    elsewhere = [unbound["id"]]
    elsewhere.append(control.post("/v1/keys", {"name": "main", "scopes": ["read"], "database": "main"})["id"])
    elsewhere.append(control.with_token(unbound["key"]).post("/v1/session")["session"]["id"])
    control.patch("/v1/databases/main", {"delete_protection": False})
    control.patch("/v1/databases/annex", {"delete_protection": False})
    key = control.post("/v1/keys", {"name": "annex", "scopes": ["read"], "database": "annex"})
    session = control.with_token(key["key"]).post("/v1/session")["session"]["id"]
    control.delete(f"/v1/keys/{key['id']}")
    entries = bound.all("/v1/audit")
    assert [(entry["action"], entry["subject"]) for entry in entries[:4]] == [
        ("key.revoke", key["id"]),
        ("session.create", session),
        ("key.create", key["id"]),
        ("database.change", "annex"),
    ]
    assert not {entry["subject"] for entry in entries} & {"main", *elsewhere}
    assert bound.all("/v1/audit", limit=2) == entries
    assert {"main", "annex", *elsewhere} <= {entry["subject"] for entry in control.all("/v1/audit")}


def test_who_is_bound_cannot_move_the_default(divided: Organization, bound: Control) -> None:
    """It would be taken from a database that is not theirs."""
    bound.refused(403, "forbidden", "PATCH", "/v1/databases/annex", {"default": True})
    assert divided.control.get("/v1/databases/main")["default"] is True


def test_what_was_used_before_a_reset_is_still_that_databases(service: Service) -> None:
    """Also what was not yet on record: the engine's name for it is another, its own is not."""
    control = new_organization(service).control
    sql = control.sql()
    for _ in range(5):
        sql("select 1")
    assert sql.client.post("/admin/reset").status_code == 200
    eventually(lambda: used(control, "main")["requests"] >= 6)
    assert {item["database"] for item in control.get("/v1/usage")["items"]} == {"main"}
