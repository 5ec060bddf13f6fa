"""Organizations: one's own for everybody, all of them for operators."""

from typing import Any

import httpx
import pytest

from tests.control import Control, Organization, at_once, disagreements, error_of, new_organization
from tests.service import Service, make_key
from tests.waiting import eventually

RECORD = {"id", "name", "tier", "created_at", "limits"}


# -- the routes --------------------------------------------------------------------------------------------------


def test_a_new_organization_comes_with_a_database_and_a_key(operator: Control) -> None:
    """The key manages the organization and nothing beyond it; the tier is the free one."""
    made = operator.post("/v1/organizations", {"name": "newcomer"})
    assert set(made) == RECORD | {"success", "key"}
    assert (made["name"], made["tier"]) == ("newcomer", "free")
    control = operator.with_token(made["key"])
    assert control.sql().value("select 1") == 1
    assert [(item["name"], item["state"], item["default"]) for item in control.all("/v1/databases")] == [
        ("main", "active", True)
    ]
    assert [key["scopes"] for key in control.all("/v1/keys")] == [["admin"]]
    control.refused(403, "forbidden", "GET", "/v1/organizations")
    assert {**operator.get(f"/v1/organizations/{made['id']}"), "key": made["key"]} == made


def test_everybody_sees_their_own_organization(control: Control, organization: Organization) -> None:
    """With its tier and its limits; a key that only reads does, too."""
    own = control.get("/v1/organization")
    assert set(own) == RECORD | {"success", "limits", "databases"}
    assert (own["id"], own["name"], own["tier"]) == (organization.id, organization.name, "unlimited")
    assert own["limits"]["rate"] == {"requests": None, "window_seconds": 60}
    assert own["limits"]["statement_timeout_ms"] == 30_000
    reader = control.with_token(control.post("/v1/keys", {"name": "r", "scopes": ["read"]})["key"])
    assert reader.get("/v1/organization") == own


def test_a_tier_shows_in_the_limits(operator: Control, service: Service) -> None:
    """As the settings have it."""
    made = new_organization(service, "pro")
    assert made.control.get("/v1/organization")["limits"]["rate"]["requests"] == 6000
    operator.patch(f"/v1/organizations/{made.id}", {"tier": "free"})
    assert made.control.get("/v1/organization")["limits"]["rate"]["requests"] == 200


def test_organizations_are_listed_in_pages(operator: Control, service: Service) -> None:
    """The installation's own first."""
    made = [new_organization(service).id for _ in range(2)]
    everyone = operator.all("/v1/organizations", limit=2)
    assert everyone[0]["name"] == "default"
    assert [item["id"] for item in everyone[-2:]] == made
    assert all(set(item) == RECORD for item in everyone)
    assert [item["id"] for item in operator.all("/v1/organizations")] == [item["id"] for item in everyone]


def test_an_organization_is_renamed(operator: Control, service: Service) -> None:
    """Nothing else changes."""
    made = new_organization(service)
    changed = operator.patch(f"/v1/organizations/{made.id}", {"name": "another-name"})
    assert (changed["name"], changed["tier"], changed["id"]) == ("another-name", "unlimited", made.id)
    assert made.control.get("/v1/organization")["name"] == "another-name"
    assert made.control.sql().value("select 1") == 1


def test_a_deleted_organization_is_gone_with_everything_in_it(operator: Control, service: Service) -> None:
    """Databases, keys and sessions, protected ones too; its name is free."""
    made = new_organization(service)
    made.control.post("/v1/databases", {"name": "second"})
    made.control.patch("/v1/databases/second", {"delete_protection": True})
    session = made.control.post("/v1/session")["token"]
    sql = made.control.sql(session)
    assert sql.value("select 1") == 1
    assert operator.delete(f"/v1/organizations/{made.id}") == {"success": True, "state": "gone"}
    eventually(lambda: sql.answer("select 1").status_code == 401)
    made.control.refused(401, "unauthenticated", "GET", "/v1/organization")
    operator.refused(404, "not_found", "GET", f"/v1/organizations/{made.id}")
    operator.refused(404, "not_found", "DELETE", f"/v1/organizations/{made.id}")
    operator.refused(404, "not_found", "PATCH", f"/v1/organizations/{made.id}", {"tier": "free"})
    assert disagreements(service).none
    assert operator.post("/v1/organizations", {"name": made.name})["id"] != made.id


def test_a_key_made_on_the_machine_manages_organizations(service: Service) -> None:
    """With the scope operator; it is no key to any data, and manages no databases."""
    control = Control(service, make_key(service, "operator"))
    made = control.post("/v1/organizations", {"name": "by-local-key"})
    assert control.patch(f"/v1/organizations/{made['id']}", {"tier": "pro"})["tier"] == "pro"
    control.delete(f"/v1/organizations/{made['id']}")
    control.refused(403, "forbidden", "GET", "/v1/databases")
    error_of(control.sql().answer("select 1"), 403, "forbidden")


# -- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "Capital"},
        {"name": ""},
        {"name": "a\n"},
        {"name": None},
        {"tier": "gold"},
        {"tier": ""},
        {"tier": 7},
        {"tier": "free\0"},
        {"id": "org_x"},
        {"limits": {"statement_timeout_ms": 0}},
        {"limits": {"statement_timeout": 1000}},
        {"limits": {"statement_timeout_ms": "5s"}},
    ],
)
def test_a_field_that_is_wrong_is_refused(operator: Control, organization: Organization, wrong: dict[str, Any]) -> None:
    """Nothing is made or changed."""
    before = operator.all("/v1/organizations")
    operator.refused(400, "malformed_request", "POST", "/v1/organizations", {"name": "x", **wrong})
    operator.refused(400, "malformed_request", "PATCH", f"/v1/organizations/{organization.id}", wrong)
    assert operator.all("/v1/organizations") == before


def test_an_unknown_parameter_of_the_url_is_refused(operator: Control, service: Service) -> None:
    """Also where something would be deleted."""
    made = new_organization(service)
    path = f"/v1/organizations/{made.id}"
    for method, target in (
        ("GET", "/v1/organization"),
        ("GET", "/v1/organizations"),
        ("GET", path),
        ("PATCH", path),
        ("DELETE", path),
        ("POST", "/v1/organizations"),
    ):
        operator.refused(400, "malformed_request", method, f"{target}?force=1")
    assert made.control.get("/v1/organization")["name"] == made.name


def test_a_name_that_is_taken_is_refused(operator: Control, organization: Organization, other: Organization) -> None:
    """To make one and to rename one."""
    before = operator.all("/v1/organizations")
    operator.refused(409, "already_exists", "POST", "/v1/organizations", {"name": organization.name})
    operator.refused(409, "already_exists", "PATCH", f"/v1/organizations/{other.id}", {"name": organization.name})
    assert operator.all("/v1/organizations") == before


def test_an_unknown_organization_is_not_found(operator: Control) -> None:
    """Whatever is to be done with it."""
    for id in ("org_nowhere", "x", "%00", "'"):
        operator.refused(404, "not_found", "GET", f"/v1/organizations/{id}")
        operator.refused(404, "not_found", "PATCH", f"/v1/organizations/{id}", {"tier": "pro"})
        operator.refused(404, "not_found", "DELETE", f"/v1/organizations/{id}")


def test_the_installations_own_organization_stays(operator: Control) -> None:
    """Whoever manages the others lives there."""
    own = operator.get("/v1/organization")["id"]
    operator.refused(409, "wrong_state", "DELETE", f"/v1/organizations/{own}")
    assert operator.sql().value("select 1") == 1


def test_an_admin_is_no_operator(control: Control, organization: Organization) -> None:
    """Not even for the organization that is their own."""
    path = f"/v1/organizations/{organization.id}"
    for method, target, body in (
        ("GET", "/v1/organizations", None),
        ("POST", "/v1/organizations", {"name": "mine"}),
        ("GET", path, None),
        ("PATCH", path, {"tier": "unlimited"}),
        ("DELETE", path, None),
    ):
        control.refused(403, "forbidden", method, target, body)


def test_of_two_who_make_the_same_organization_one_wins(operator: Control, service: Service) -> None:
    """One 201 and one 409, and nothing of the loser stays."""
    askers = [operator, operator.with_token(operator.token)]
    for number in range(8):

        def create(asker: Control, name: str = f"raced-{number}") -> httpx.Response:
            return asker.ask("POST", "/v1/organizations", {"name": name})

        answers = at_once([lambda asker=asker, create=create: create(asker) for asker in askers])  # type: ignore[misc]
        assert sorted(answer.status_code for answer in answers) == [201, 409], [a.text for a in answers]
        [key] = [answer.json()["key"] for answer in answers if answer.status_code == 201]
        assert operator.sql(key).value("select 1") == 1
    assert disagreements(service).none
