"""One-time codes: made with a key, exchanged once and soon for a session, by a page that knows no key."""

import zlib
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import httpx
import pytest

from tests.control import Control, Organization, at_once, engine, error_of, new_organization
from tests.service import Service
from tuplegate.access.tokens import TokenKind, read_token, write_base62

CODES, SESSIONS = "/v1/console/codes", "/v1/console/sessions"
USED_UP = "the code is unknown, was used already, or is older than 60 seconds"


def exchange(control: Control, code: str) -> httpx.Response:
    """Send the code as the page does: without a token."""
    return control.with_token(None).ask("POST", SESSIONS, {"code": code})


def signed_in(control: Control, code: str) -> Control:
    made = control.with_token(None).post(SESSIONS, {"code": code})
    return control.with_token(made["token"])


def test_a_code_becomes_a_session_with_the_rights_of_its_key(control: Control, organization: Organization) -> None:
    """The answer is that of a session; the code is in the address behind `#`, which no browser sends anywhere."""
    made = control.post(CODES)
    assert set(made) == {"success", "code", "expires_at", "url"}
    assert made["url"] == f"{control.service.control_url}/console/#code={made['code']}"
    opened = control.with_token(None).post(SESSIONS, {"code": made["code"]})
    assert set(opened) == {"success", "token", "expires_at", "expires_in", "session"}
    assert opened["expires_in"] == 86_400
    session = control.with_token(opened["token"])
    assert session.get("/v1/session")["session"] == opened["session"]
    assert opened["session"]["organization"] == organization.id
    assert opened["session"]["scopes"] == ["admin"]
    assert session.sql().value("select 1") == 1


def test_a_code_can_be_narrower_than_its_key(control: Control) -> None:
    """As a session can; what the key has not is refused when the code is made."""
    control.post("/v1/databases", {"name": "narrow"})
    wishes = {"scopes": ["read"], "database": "narrow", "expires_in": 900}
    session = signed_in(control, control.post(CODES, wishes)["code"])
    record = session.get("/v1/session")["session"]
    assert (record["scopes"], record["database"]) == (["read"], "narrow")
    lasts = datetime.fromisoformat(record["expires_at"]) - datetime.fromisoformat(record["created_at"])
    assert lasts == timedelta(seconds=900)
    control.refused(403, "forbidden", "POST", CODES, {"scopes": ["operator"]})
    control.refused(404, "not_found", "POST", CODES, {"database": "nowhere"})
    control.refused(400, "malformed_request", "POST", CODES, {"expires_in": 86_401})
    control.refused(400, "malformed_request", "POST", CODES, {"api_key": control.token})


def test_a_read_key_makes_a_session_that_reads(service: Service, operator: Control, read_key: str) -> None:
    """Any key may make codes, as any may open sessions."""
    reader = operator.with_token(read_key)
    session = signed_in(operator, reader.post(CODES)["code"])
    assert session.sql().value("select 1") == 1
    assert session.sql().fails("create table t (x int)")["sqlstate"] in ("25006", "42501")
    session.refused(403, "forbidden", "GET", "/v1/keys")


def test_a_code_works_once(control: Control) -> None:
    """The second attempt is told what may be the matter, and the first session goes on."""
    code = control.post(CODES)["code"]
    session = signed_in(control, code)
    answer = exchange(control, code)
    assert USED_UP in error_of(answer, 401, "unauthenticated")["message"]
    assert session.sql().value("select 1") == 1


def test_of_many_at_once_one_gets_the_session(control: Control) -> None:
    """However close they come."""
    for _ in range(5):
        code = control.post(CODES)["code"]
        pages = [control.with_token(None) for _ in range(4)]
        for page in pages:
            page.client.get("/health")
        answers = at_once([partial(page.ask, "POST", SESSIONS, {"code": code}) for page in pages])
        assert sorted(answer.status_code for answer in answers) == [201, 401, 401, 401]


def test_a_code_is_good_for_a_minute(service: Service, control: Control) -> None:
    """By the clock of the catalog, here moved on by a minute for that code alone."""
    made = control.post(CODES)
    with engine(service) as catalog:
        [(left, digest)] = catalog.execute(
            "select extract(epoch from expires_at - created_at)::float, encode(digest, 'escape') from console_code"
            " where id = %s",
            [made["code"][6:18]],
        ).fetchall()
        assert left == 60
        assert made["code"] not in digest, "the catalog has only its hash"
        catalog.execute("update console_code set expires_at = clock_timestamp() where id = %s", [made["code"][6:18]])
    assert USED_UP in error_of(exchange(control, made["code"]), 401, "unauthenticated")["message"]
    control.post(CODES)
    with engine(service) as catalog:
        left_over = catalog.execute("select 1 from console_code where id = %s", [made["code"][6:18]]).fetchall()
    assert left_over == [], "the next code of a key removes those that are over"


def test_a_code_ends_with_its_key(control: Control) -> None:
    """Also where the key is revoked between code and exchange."""
    key = control.post("/v1/keys", {"name": "k", "scopes": ["read"]})
    code = control.with_token(key["key"]).post(CODES)["code"]
    control.delete(f"/v1/keys/{key['id']}")
    error_of(exchange(control, code), 401, "unauthenticated")


def test_a_code_ends_with_the_secret_that_made_it(control: Control) -> None:
    key = control.post("/v1/keys", {"name": "k", "scopes": ["read"]})
    code = control.with_token(key["key"]).post(CODES)["code"]
    control.post(f"/v1/keys/{key['id']}/rotate", status=200)
    error_of(exchange(control, code), 401, "unauthenticated")


def test_a_code_ends_with_its_database_and_its_organization(service: Service, operator: Control) -> None:
    """Nothing of either can be reached then."""
    made = new_organization(service)
    made.control.post("/v1/databases", {"name": "doomed"})
    bound = made.control.post(CODES, {"database": "doomed"})["code"]
    made.control.delete("/v1/databases/doomed")
    error_of(exchange(operator, bound), 401, "unauthenticated")
    code = made.control.post(CODES)["code"]
    operator.delete(f"/v1/organizations/{made.id}")
    error_of(exchange(operator, code), 401, "unauthenticated")


def test_a_session_cannot_make_codes(control: Control) -> None:
    """Otherwise it could outlive itself."""
    session = signed_in(control, control.post(CODES)["code"])
    session.refused(403, "forbidden", "POST", CODES)
    control.with_token(None).refused(401, "unauthenticated", "POST", CODES)


def test_a_code_of_one_organization_is_of_no_other(control: Control, other: Organization) -> None:
    """Whoever exchanges it gets its own organization's session, whatever token comes along."""
    code = control.post(CODES)["code"]
    made = other.control.post(SESSIONS, {"code": code})
    assert made["session"]["organization"] != other.id
    assert "secret-plans" not in [
        one["name"] for one in control.with_token(made["token"]).get("/v1/databases")["items"]
    ]


def test_a_code_is_no_token_and_a_token_no_code(control: Control) -> None:
    """Each is refused where the other belongs, and the code is not used up by that."""
    made = control.post(CODES)
    control.with_token(made["code"]).refused(401, "unauthenticated", "GET", "/v1/session")
    error_of(control.with_token(made["code"]).sql().answer("select 1"), 401, "unauthenticated")
    control.with_token(made["code"]).refused(401, "unauthenticated", "POST", "/v1/session")
    control.with_token(None).refused(401, "unauthenticated", "POST", "/v1/session", {"api_key": made["code"]})
    for wrong in (control.token, control.post("/v1/session")["token"]):
        assert wrong is not None
        error_of(exchange(control, wrong), 401, "unauthenticated")
    assert exchange(control, made["code"]).status_code == 201


@pytest.mark.parametrize("body", [{}, {"code": 1}, {"code": None}, {"code": "x", "more": 1}, ["x"]])
def test_a_body_that_is_no_code_is_malformed(control: Control, body: Any) -> None:
    """It is judged before anything is looked up."""
    control.with_token(None).refused(400, "malformed_request", "POST", SESSIONS, body)


def test_both_steps_are_in_the_audit(control: Control) -> None:
    """With the key that made the code; the session's own id is the subject of the second."""
    key = control.post("/v1/keys", {"name": "k", "scopes": ["read"]})
    made = control.with_token(key["key"]).post(CODES)
    opened = control.with_token(None).post(SESSIONS, {"code": made["code"]})
    second, first = control.get("/v1/audit", limit=2)["items"]
    assert (first["action"], first["subject"], first["key"]) == ("console_code.create", made["code"][6:18], key["id"])
    assert (second["action"], second["subject"], second["key"]) == (
        "console_code.exchange",
        opened["session"]["id"],
        key["id"],
    )
    assert second["address"] == "127.0.0.1"
    assert made["code"] not in control.service.log


# -- guesses -------------------------------------------------------------------------------------------------------


def test_wrong_codes_do_not_keep_a_good_one_out(control: Control) -> None:
    """However many come from the same address. The same public id with another secret is refused like an unknown one,
    and leaves the code as it was."""
    made, second = control.post(CODES)["code"], control.post(CODES)["code"]
    mixed = _rewrite(made, second)
    for _ in range(50):
        error_of(exchange(control, mixed), 401, "unauthenticated")
    error_of(exchange(control, "svc_c_typo"), 401, "unauthenticated")
    assert [exchange(control, code).status_code for code in (made, second)] == [201, 201]


def _rewrite(first: str, second: str) -> str:
    """Return the id of one code with the secret of another, and a checksum that fits."""
    body = first[6:18] + second[18:-6]
    whole = first[:6] + body + write_base62(zlib.crc32(body.encode()), 6)
    assert read_token(whole.encode()) == (TokenKind.CODE, first[6:18])
    return whole
